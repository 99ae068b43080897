"""Two thousand requests, a third of them hung up at random moments, with a store that answers late."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import orjson
import pytest
from harness import MODEL, Server, chat_body, eventually, hanging_up, raw_request, script, serving, settings
from pydantic import SecretStr
from storeservers import StoreServer, proxied

from mulgil.admission.store import Account, Balances, BudgetStore, Decision, Report, Reservation, Settlement
from mulgil.engine.base import Prepared, Snapshot, TextRequest
from mulgil.engine.simulated import SimulatedEngine
from mulgil.stores.memory import MemoryStore
from mulgil.stores.redis import RedisStore

LATENCY = 0.02

T = TypeVar("T")


class LateStore:
    """A `BudgetStore` that takes its time before and after each step, as a network does."""

    def __init__(self, store: BudgetStore) -> None:
        self._store = store

    async def _late(self, step: Awaitable[T]) -> T:
        await asyncio.sleep(LATENCY / 2)
        result = await step
        await asyncio.sleep(LATENCY / 2)
        return result

    async def reserve(self, reservation: Reservation) -> Decision:
        return await self._late(self._store.reserve(reservation))

    async def renew(self, reports: Sequence[Report]) -> list[bool]:
        return await self._late(self._store.renew(reports))

    async def settle(self, settlement: Settlement) -> Balances:
        return await self._late(self._store.settle(settlement))

    async def balances(self, account: Account) -> Balances:
        return await self._store.balances(account)

    async def reset(self, account: Account, *, tenant_too: bool = False) -> None:
        await self._store.reset(account, tenant_too=tenant_too)

    async def ping(self) -> None:
        await self._store.ping()

    async def close(self) -> None:
        await self._store.close()


@dataclass
class Counts:
    """What the engine did, by the key that asked (told by `user`)."""

    accepted: Counter[str] = field(default_factory=Counter)
    prompt: Counter[str] = field(default_factory=Counter)
    output: Counter[str] = field(default_factory=Counter)


class CountingEngine(SimulatedEngine):
    """Keeps its own books."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()
        self._who: dict[str, str] = {}

    async def prepare(self, request: TextRequest, *, tenant: str, default_max_tokens: int | None = None) -> Prepared:
        prepared = await super().prepare(request, tenant=tenant, default_max_tokens=default_max_tokens)
        self._who[prepared.id] = request.user or ""
        return prepared

    async def generate(self, prepared: Prepared) -> AsyncGenerator[Snapshot]:
        who, last = self._who[prepared.id], None
        async for snapshot in super().generate(prepared):
            if last is None:
                self.counts.accepted[who] += 1
                self.counts.prompt[who] += prepared.prompt_tokens
            last = snapshot
            yield snapshot
        self.counts.output[who] += last.completion_tokens if last else 0


def request(chance: random.Random, who: str, key: str) -> bytes:
    """A request of some length and pace, streamed or plain."""
    directives = script(tokens=chance.randrange(1, 40), gap=chance.choice([0, 0, 0.001]))
    body = chat_body(directives, stream=chance.random() < 0.5, user=who, max_tokens=chance.choice([20, 40]))
    return raw_request(orjson.dumps(body), authorization=f"Bearer {key}")


async def whole(server: Server, sent: bytes) -> None:
    async with hanging_up(server, sent) as reader:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 429")), head
        await reader.readuntil(b"data: [DONE]\n\n" if b"event-stream" in head else b"}")


async def cut(server: Server, sent: bytes, chance: random.Random) -> None:
    """Before the first byte, in the middle, after the last token, during reserve or settle: all by chance."""
    async with hanging_up(server, sent) as reader:
        if chance.random() < 0.3:
            await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(chance.random() * 3 * LATENCY)


async def balances(server: Server, key: str) -> Balances:
    """Of a key and its tenant."""
    caller = await server.mulgil.keys.find(key.encode())
    assert caller is not None
    return await server.mulgil.store.balances(Account(caller.tenant, caller.key_id))


def generous(folder: Path) -> Path:
    """Limits that are counted and not met, but for concurrency, which is met now and then."""
    config = folder / "mulgil.toml"
    config.write_text(
        "[tiers.default]\nrequests_per_minute = 100000\ninput_tokens_per_minute = 10000000\n"
        "output_tokens_per_minute = 10000000\nconcurrent_requests = 150\n"
    )
    return config


@pytest.fixture(params=["memory", "valkey"])
async def late_store(request: pytest.FixtureRequest, store_server: StoreServer) -> AsyncGenerator[BudgetStore]:
    """A store that answers 20 ms late."""
    if request.param == "memory":
        yield LateStore(MemoryStore())
        return
    async with proxied(store_server) as proxy:
        proxy.delay = LATENCY / 2
        store = RedisStore(proxy.url, timeout=5)
        yield store
        await store.close()


@pytest.mark.timeout(180)
async def test_a_storm_of_hang_ups_is_charged_to_the_token_and_leaks_nothing(
    tmp_path: Path, late_store: BudgetStore
) -> None:
    keys = {who: f"sk-mg-key-of-the-storm-{who}" for who in "AB"}
    accepted = tuple(SecretStr(key) for key in keys.values())
    chosen = settings(config=generous(tmp_path), api_keys=accepted, lease_renew_interval=0.5)
    engine = CountingEngine()
    chance = random.Random(20261129)
    gate = asyncio.Semaphore(200)

    async def build() -> CountingEngine:
        return engine

    async with serving(chosen, engine=build, store=late_store) as server:

        async def one(number: int) -> None:
            who = "AB"[number % 2]
            async with gate:
                sent = request(chance, who, keys[who])
                await (cut(server, sent, chance) if chance.random() < 1 / 3 else whole(server, sent))

        await asyncio.gather(*(one(number) for number in range(2_000)))
        await eventually(lambda: server.mulgil.gateway.running == 0, within=10)
        await eventually(lambda: not server.mulgil.leases._tasks, within=10)
        assert engine.load().unfinished == 0
        assert server.mulgil.leases.live == 0

        for who, key in keys.items():
            found = await balances(server, key)
            charged = found.key.requests, found.key.input_tokens, found.key.output_tokens
            assert charged == (engine.counts.accepted[who], engine.counts.prompt[who], engine.counts.output[who])
            assert (found.key.held_tokens, found.key.concurrency) == (0, 0)
        assert (found.tenant.held_tokens, found.tenant.concurrency) == (0, 0)
        assert found.tenant.requests == engine.counts.accepted.total() > 1_000
        assert found.tenant.output_tokens == engine.counts.output.total()
        told = server.mulgil.registry.get_sample_value
        for name, charged in (("prompt", found.tenant.input_tokens), ("completion", found.tenant.output_tokens)):
            assert told(f"mulgil_{name}_tokens_total", {"model": MODEL, "tier": "default"}) == charged
        assert told("mulgil_open_streams") == 0
