"""Two thousand requests, a third of them hung up at random moments, with a store that answers late: the store's books,
the ledger's and the engine's own must say the same."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest
from harness import MODEL, Server, chat_body, eventually, hanging_up, raw_request, script, serving, settings
from postgresserver import PostgresServer, database
from pydantic import SecretStr
from storeservers import StoreServer, proxied
from usagerows import EVER, kept_rows

from mulgil.admission.store import Account, Balances, BudgetStore, Decision, Report, Reservation, Settlement
from mulgil.engine.base import Prepared, TextRequest
from mulgil.engine.simulated import SimulatedEngine
from mulgil.engine.snapshot import Snapshot
from mulgil.ledger.database import UsageDatabase
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

    async def prepare(self, request: TextRequest, **options: Any) -> Prepared:
        prepared = await super().prepare(request, **options)
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


async def key_id(server: Server, key: str) -> str:
    caller = await server.mulgil.keys.find(key.encode())
    assert caller is not None
    return caller.key_id


async def in_the_ledger(url: str, key: str) -> tuple[int, int, int]:
    """Requests that were charged, their prompt tokens and their completion tokens, in the rows of a key."""
    usage = UsageDatabase(url)
    try:
        rows = [row for row in await kept_rows(usage) if row.key_id == key]
        (summed,) = await usage.sums([], replace(EVER, having=(("key_id", key),)))
        days = await usage.spent({"default"}, {key}, EVER.since.date())
    finally:
        await usage.close()
    prompt, output = sum(row.prompt_tokens for row in rows), sum(row.completion_tokens for row in rows)
    assert (summed.prompt_tokens, summed.completion_tokens) == (prompt, output)
    assert sum(day.prompt_tokens + day.completion_tokens for day in days) == prompt + output
    return sum(row.prompt_tokens > 0 for row in rows), prompt, output


def generous(folder: Path) -> Path:
    """Limits that are counted and not met, but for concurrency, which is met now and then."""
    config = folder / "mulgil.toml"
    config.write_text(
        "[tiers.default]\nrequests_per_minute = 100000\ninput_tokens_per_minute = 10000000\n"
        "output_tokens_per_minute = 10000000\nconcurrent_requests = 150\n"
    )
    return config


@asynccontextmanager
async def late_store(server: StoreServer | None) -> AsyncGenerator[BudgetStore]:
    """A store that answers 20 ms late: that of the *server*, or one of this process."""
    if server is None:
        yield LateStore(MemoryStore())
        return
    async with proxied(server) as proxy:
        proxy.delay = LATENCY / 2
        store = RedisStore(proxy.url, timeout=5)
        yield store
        await store.close()


@dataclass
class Books:
    """Where it is written down.

    Attributes:
        store: a late one.
        usage: URL of the ledger's database.
        postgres: its server, if it has one.
    """

    store: BudgetStore
    usage: str
    postgres: PostgresServer | None = None

    async def break_down(self) -> None:
        """In the middle of the storm the database is killed, and comes back."""
        if self.postgres is not None:
            await asyncio.sleep(0.5)
            self.postgres.kill()
            await asyncio.sleep(0.5)
            await asyncio.to_thread(self.postgres.start)


@pytest.fixture(params=["memory and SQLite", "Valkey and PostgreSQL"])
async def books(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Books]:
    if request.param == "memory and SQLite":
        async with late_store(None) as store:
            yield Books(store, f"sqlite:///{tmp_path / 'usage.db'}")
        return
    postgres: PostgresServer = request.getfixturevalue("postgres_server")
    async with late_store(request.getfixturevalue("store_server")) as store, database(postgres, "storm") as url:
        yield Books(store, url, postgres)


def in_the_metrics(server: Server) -> tuple[float | None, ...]:
    """Prompt tokens and completion tokens, and streams that are open."""
    told, labels = server.mulgil.registry.get_sample_value, {"model": MODEL, "tier": "default"}
    prompt = told("mulgil_prompt_tokens_total", labels)
    completion = told("mulgil_completion_tokens_total", labels | {"variant": "none"})
    return prompt, completion, told("mulgil_open_streams")


@pytest.mark.timeout(180)
async def test_a_storm_of_hang_ups_is_charged_to_the_token_and_leaks_nothing(tmp_path: Path, books: Books) -> None:
    keys = {who: f"sk-mg-key-of-the-storm-{who}" for who in "AB"}
    accepted = tuple(SecretStr(key) for key in keys.values())
    chosen = settings(
        config=generous(tmp_path),
        api_keys=accepted,
        lease_renew_interval=0.5,
        usage_url=SecretStr(books.usage),
        state_folder=tmp_path,
    )
    engine = CountingEngine()
    chance = random.Random(20261129)
    gate = asyncio.Semaphore(200)

    async def build() -> CountingEngine:
        return engine

    async with serving(chosen, engine=build, store=books.store) as server:

        async def one(number: int) -> None:
            who = "AB"[number % 2]
            async with gate:
                sent = request(chance, who, keys[who])
                await (cut(server, sent, chance) if chance.random() < 1 / 3 else whole(server, sent))

        await asyncio.gather(books.break_down(), *(one(number) for number in range(2_000)))
        key_ids = {who: await key_id(server, key) for who, key in keys.items()}
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
        assert in_the_metrics(server) == (found.tenant.input_tokens, found.tenant.output_tokens, 0)

    for who, name in key_ids.items():
        charged = await in_the_ledger(books.usage, name)
        assert charged == (engine.counts.accepted[who], engine.counts.prompt[who], engine.counts.output[who])
