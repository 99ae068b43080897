"""The gateway's layers one by one, on the simulated engine or on none."""

import asyncio
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench import idle_streams, stores
from bench.contenders import (
    MODEL,
    RAW,
    STARLETTE,
    InProcess,
    KnownKeys,
    OverHttp,
    mulgil,
    raw_answers,
    ready_made,
)
from bench.load import Load
from bench.plans import Plan
from bench.servers import say
from bench.stores import valkey

_STREAMS = 32
_TOKENS = 200
_FEW, _MANY = 10, 10_000
_PREPARED_WORDS = (12, 200, 1_000)
SIMULATED, PACED_STARLETTE = "simulated engine", f"{STARLETTE}, one wake-up a chunk"


@dataclass(frozen=True, kw_only=True)
class Chunks:
    """How fast a process streams.

    Attributes:
        contender: who.
        repetition: those with the same number were measured one right after the other.
        events: a second, of all streams together.
        tokens: likewise.
        cpu: seconds of its process for 1,000 events.
        generator: share of a core that the load generator used meanwhile.
    """

    contender: str
    repetition: int
    events: float
    tokens: float
    cpu: float
    generator: float


@dataclass(frozen=True)
class KeyCost:
    """Seconds for a request with a few and with many known keys, measured one right after the other."""

    few: float
    many: float


def chunks(folder: Path, repetitions: int) -> list[Chunks]:
    """One process with the simulated engine, bare Starlette in two ways, and the load generator's own ceiling."""
    known = KnownKeys.made(10, folder)
    found = []
    with (
        valkey() as (redis_url, _),
        mulgil(folder / "chunks", redis_url, known) as gateway,
        ready_made(folder / "ready-made") as starlette,
        raw_answers(folder / "raw") as raw,
    ):
        asked: list[tuple[str, OverHttp, dict[str, bool]]] = [
            (SIMULATED, gateway, {}),
            (STARLETTE, starlette, {}),
            (PACED_STARLETTE, starlette, {"wake": True}),
            (RAW, raw, {}),
        ]
        for _, contender, extra in asked:
            _streamed(contender, extra, 1)
        for repetition in range(repetitions):
            for name, contender, extra in asked if repetition % 2 == 0 else asked[::-1]:
                one = dataclasses.replace(_streamed(contender, extra, 4), contender=name, repetition=repetition)
                say(f"{name}: {one.events:,.0f} chunks/s, load generator at {one.generator:.0%} of a core")
                found.append(one)
    return found


def _streamed(contender: OverHttp, extra: dict[str, bool], requests: int) -> Chunks:
    before = contender.server.usage().cpu
    load = Load(port=0, model=MODEL, streams=_STREAMS, requests=requests, tokens=_TOKENS, extra=extra)
    done = contender.answer(load)
    if done.failures:
        raise RuntimeError(f"{contender.name}: {done.failures}")
    used = contender.server.usage().cpu - before
    return Chunks(
        contender=contender.name,
        repetition=0,
        events=done.events / done.seconds,
        tokens=done.tokens / done.seconds,
        cpu=used / done.events * 1_000,
        generator=done.cpu / done.seconds,
    )


def known_keys(folder: Path, requests: int, repetitions: int) -> list[KeyCost]:
    """Plain answers of one token, one after the other, by gateways that know few and many keys; all keys are used."""
    few, many = KnownKeys.made(_FEW, folder), KnownKeys.made(_MANY, folder)
    found = []
    with (
        valkey() as (redis_url, _),
        mulgil(folder / "few", redis_url, few) as small,
        mulgil(folder / "many", redis_url, many) as large,
    ):
        for gateway in (small, large):
            _seconds_each(gateway, 40, _MANY // 40)
        for repetition in range(repetitions):
            pair = (small, large) if repetition % 2 == 0 else (large, small)
            costs = {gateway: _seconds_each(gateway, 1, requests) for gateway in pair}
            found.append(KeyCost(costs[small], costs[large]))
            say(f"a request: {costs[small] * 1e6:.0f} µs with {_FEW} keys, {costs[large] * 1e6:.0f} µs with {_MANY:,}")
    return found


def _seconds_each(gateway: OverHttp, streams: int, requests: int) -> float:
    load = Load(port=0, model=MODEL, streams=streams, requests=requests, tokens=1, streamed=False, words=4, cycle=True)
    done = gateway.answer(load)
    if done.failures:
        raise RuntimeError(f"{gateway.name}: {done.failures}")
    return done.seconds / requests


def preparation(engine: InProcess) -> list[dict[str, float]]:
    """What template and tokenizer take for short and long prompts."""
    engine.preparation(_PREPARED_WORDS[0], 20)
    return [{"words": words, **engine.preparation(words, 50)} for words in _PREPARED_WORDS]


def measured(folder: Path, plan: Plan) -> dict[str, object]:
    """All layers that need no model, as they become JSON."""
    return {
        "chunks": _plain(chunks(folder, plan.repetitions)),
        "stores": {name: _plain(rounds) for name, rounds in _stores(plan).items()},
        "idle": _plain([_idle(folder, streams) for streams in plan.idle_streams]),
        "keys": _plain(known_keys(folder, plan.key_requests, plan.repetitions)),
    }


def _stores(plan: Plan) -> dict[str, list[stores.Round]]:
    found = uvloop.run(asyncio.wait_for(stores.measured(plan.store_seconds, plan.store_rounds), 300))
    for name, rounds in found.items():
        say(f"{name}: {max(one.rate for one in rounds):,.0f} a second at best")
    return found


def _idle(folder: Path, streams: int) -> idle_streams.Idle:
    found = idle_streams.measured(folder, streams)
    say(f"{streams:,} idle streams: {found.bytes_each / 1000:.1f} kB each")
    return found


def _plain(found: Sequence[object]) -> list[dict[str, object]]:
    return [dataclasses.asdict(one) for one in found]  # type: ignore[call-overload]  # all are dataclasses
