"""Prepare, generate, settle: every generation ends, once, whatever happens around it."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator

import pytest
from harness import MODEL, UNLIMITED, chat_body, eventually, script

from mulgil.admission.gates import Gates
from mulgil.admission.lease import Leases
from mulgil.admission.queue import FairQueue, QueueRules
from mulgil.auth.keys import Caller
from mulgil.catalogue import Catalogue
from mulgil.config_file import ModelOptions, load_tiers
from mulgil.engine.base import Prepared
from mulgil.engine.simulated import SimulatedEngine
from mulgil.engine.snapshot import Snapshot
from mulgil.errors import (
    EngineError,
    EngineUnavailableError,
    InternalServerError,
    ModelNotFoundError,
    ShuttingDownError,
)
from mulgil.gateway import Gateway
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.stores.memory import MemoryStore
from mulgil.variants import Variant

CALLER = Caller(key_id="key-1", tenant="t")


def request(content: str = "hello", **fields: object) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate(chat_body(content, **fields))


def gateway(engine: SimulatedEngine | None = None, **options: ModelOptions) -> tuple[Gateway, SimulatedEngine]:
    engine = engine or SimulatedEngine()
    leases = Leases(MemoryStore(), ttl=30, renew_interval=5)
    gates = Gates(load_tiers(UNLIMITED), leases, FairQueue(QueueRules()))
    return Gateway(lambda: engine, Catalogue((MODEL,), "fp_test", options), gates), engine


async def test_a_generation_ends_with_the_engines_counts() -> None:
    subject, _ = gateway()
    generation = await subject.start(request(script(tokens=12)), CALLER)
    last = await generation.finished()
    assert last.completion_tokens == 12
    assert last.choices[0].finish_reason == "stop"
    assert subject.running == 0


async def test_an_unknown_model_is_refused_before_the_engine_is_asked() -> None:
    subject, engine = gateway()
    with pytest.raises(ModelNotFoundError):
        await subject.start(request(model="other"), CALLER)
    assert engine.load().unfinished == 0


async def test_an_abandoned_generation_stops_and_keeps_its_exact_count() -> None:
    subject, engine = gateway()
    generation = await subject.start(request(script(tokens=1000, gap=0.001)), CALLER)
    await eventually(lambda: generation.snapshot.completion_tokens >= 5)
    subject.abandon(generation)
    subject.abandon(generation)
    with pytest.raises(EngineError, match="cancelled"):
        await generation.finished()
    assert 5 <= generation.snapshot.completion_tokens < 1000
    assert engine.load().unfinished == 0
    assert subject.running == 0


async def test_abandoning_a_finished_generation_changes_nothing() -> None:
    subject, _ = gateway()
    generation = await subject.start(request(), CALLER)
    last = await generation.finished()
    subject.abandon(generation)
    assert await generation.finished() is last


class SlowToAccept(SimulatedEngine):
    """Takes its time before it accepts."""

    async def generate(self, prepared: Prepared) -> AsyncGenerator[Snapshot]:
        await asyncio.sleep(0.05)
        async for snapshot in super().generate(prepared):
            yield snapshot


async def test_a_caller_that_is_cancelled_before_acceptance_leaves_nothing_running() -> None:
    subject, engine = gateway(SlowToAccept())
    starting = asyncio.create_task(subject.start(request(script(tokens=4_000, gap=0.01)), CALLER))
    await eventually(lambda: subject.running == 1)
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    await eventually(lambda: subject.running == 0)
    assert engine.load().unfinished == 0


class Endless(SimulatedEngine):
    """Ends without a finish reason, or with whatever it is told."""

    def __init__(self, *snapshots: Snapshot, error: Exception | None = None) -> None:
        super().__init__()
        self._snapshots = snapshots
        self._error = error

    async def generate(self, prepared: Prepared) -> AsyncGenerator[Snapshot]:
        async for snapshot in super().generate(prepared):
            yield snapshot
            break
        if self._error is not None:
            raise self._error


async def test_an_answer_without_an_end_is_a_failure_and_not_a_short_answer() -> None:
    subject, _ = gateway(Endless())
    generation = await subject.start(request(), CALLER)
    with pytest.raises(EngineError, match="without saying why"):
        await generation.finished()


async def test_an_abort_that_nobody_asked_for_is_a_failure_and_not_a_short_answer() -> None:
    subject, engine = gateway()
    generation = await subject.start(request(script(hang_at=2)), CALLER)
    await engine.abort(generation.id)
    with pytest.raises(EngineError, match="cancelled"):
        await generation.finished()


async def test_a_fault_in_the_engine_adapter_ends_the_generation_and_hides_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    subject, _ = gateway(Endless(error=ZeroDivisionError("secret detail")))
    generation = await subject.start(request(), CALLER)
    with pytest.raises(InternalServerError) as failure:
        await generation.finished()
    assert "secret" not in failure.value.message
    assert "secret detail" in caplog.text
    assert subject.running == 0


async def test_an_engine_that_dies_ends_every_generation_with_an_error() -> None:
    subject, engine = gateway()
    others = [await subject.start(request(script(hang_at=2)), CALLER) for _ in range(3)]
    await subject.start(request(script(die_at=1)), CALLER)
    for generation in others:
        with pytest.raises(EngineUnavailableError):
            await generation.finished()
    assert engine.dead
    assert subject.running == 0


async def test_drain_ends_what_runs_and_waits_for_it() -> None:
    subject, engine = gateway()
    generations = [await subject.start(request(script(hang_at=1)), CALLER) for _ in range(5)]
    await subject.drain()
    assert subject.running == 0
    assert engine.load().unfinished == 0
    assert all(generation.closed for generation in generations)


class Deaf(SimulatedEngine):
    """Cannot be told to abort."""

    async def abort(self, request_id: str) -> None:
        raise ZeroDivisionError("deaf")


async def test_an_engine_that_does_not_let_go_does_not_hold_up_the_drain() -> None:
    subject, _ = gateway(Deaf())
    generation = await subject.start(request(script(hang_at=2)), CALLER)
    await asyncio.wait_for(subject.drain(within=0.1), 2)
    assert subject.running == 0
    with pytest.raises(InternalServerError):
        await generation.finished()
    assert generation.lease._leases.live == 0


async def test_nothing_begins_once_it_drains() -> None:
    subject, _ = gateway()
    await subject.drain()
    with pytest.raises(ShuttingDownError):
        await subject.start(request(), CALLER)


async def test_ten_thousand_requests_meet_variants_by_their_weights_and_no_key_ever_another_one() -> None:
    weights = {"base": 70, "friendly": 25, "terse": 5}
    variants = {name: Variant(weight=weight) for name, weight in weights.items()}
    subject, _ = gateway(mix=ModelOptions(variants=variants))
    asked = request(model="mix", max_tokens=1)
    met: dict[str, set[str | None]] = {}
    shares: Counter[str | None] = Counter()
    for number in range(10_000):
        # Half of them are from keys that come twice.
        key = f"key-{number % 5_000 if number % 2 else number}"
        generation = await subject.start(asked, Caller(key, f"tenant-{number % 7 if number % 2 == 0 else 0}"))
        await generation.finished()
        shares[generation.observed.variant] += 1
        met.setdefault(f"{generation.lease.account}", set()).add(generation.observed.variant)
    assert all(len(names) == 1 for names in met.values())
    for name, weight in weights.items():
        assert abs(shares[name] / 10_000 - weight / 100) < 0.01
