"""What stands in the ledger for each way in which work ends: what its lease was charged, and how it ended."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import orjson
import pytest
from embeddings import EMBEDDER, embed, embedding_server, raw_embedding
from harness import KEY, Server, chat_body, eventually, hanging_up, raw_request, script
from usagerows import kept_rows
from websockets.asyncio.client import connect

from mulgil.accounting import row_of_generation
from mulgil.admission.lease import Leases
from mulgil.admission.policy import Balance, Limits
from mulgil.admission.store import Account
from mulgil.engine.base import Prepared, Prompt
from mulgil.generation import Generation
from mulgil.ledger.base import UsageRow
from mulgil.ledger.keeping import UsageLedger
from mulgil.stores.memory import MemoryStore


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[Server]:
    async with embedding_server(usage_url=None, state_folder=tmp_path) as running:
        yield running


async def rows_of(server: Server, number: int = 1) -> list[UsageRow]:
    """The rows in the database, once there are so many."""
    ledger = server.mulgil.usage.ledger
    assert isinstance(ledger, UsageLedger)
    async with asyncio.timeout(5):
        while True:
            ledger._wake.set()  # not in a second, but now
            rows = await kept_rows(ledger.database)
            if len(rows) >= number:
                assert len(rows) == number
                return rows
            await asyncio.sleep(0.005)


async def row_of(server: Server) -> UsageRow:
    (row,) = await rows_of(server)
    return row


async def charged(server: Server) -> tuple[int, int]:
    caller = await server.mulgil.keys.find(KEY.encode())
    assert caller is not None
    found: Balance = (await server.mulgil.store.balances(Account(caller.tenant, caller.key_id))).key
    return found.input_tokens, found.output_tokens


async def test_a_whole_answer(server: Server) -> None:
    reply = await server.chat(script(tokens=7, ttft=0.05, gap=0.01))
    row, usage = await row_of(server), reply.json()["usage"]
    assert (row.prompt_tokens, row.completion_tokens) == (usage["prompt_tokens"], 7) == await charged(server)
    assert (row.status, row.model, row.tenant) == ("stop", "demo", "default")
    assert reply.json()["id"] == f"chatcmpl-{row.id}"
    assert reply.headers["x-request-id"] == row.request_id
    assert row.ttft is not None
    assert 0.04 < row.ttft < row.duration


async def test_choices_that_end_differently_and_a_prompt_out_of_the_cache(server: Server) -> None:
    await server.chat(script(tokens=3, finish="length"), n=2)
    await server.chat(script(tokens=3, finish="length"), n=2)
    rows = await rows_of(server, 2)
    assert [(row.status, row.completion_tokens) for row in rows] == [("length", 6)] * 2
    assert all(row.cached_tokens <= row.prompt_tokens for row in rows)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_hangs_up(server: Server, stream: bool) -> None:
    body = orjson.dumps(chat_body(script(tokens=1000, gap=0.005), stream=stream))
    async with hanging_up(server, raw_request(body)):
        await eventually(lambda: server.mulgil.gateway.running == 1)
        await asyncio.sleep(0.05)
    row = await row_of(server)
    assert row.status == "aborted"
    assert (row.prompt_tokens, row.completion_tokens) == await charged(server)
    assert row.completion_tokens < 1000


@pytest.mark.parametrize(
    ("directives", "status", "tokens"),
    [({"fail_at": 0}, "engine_error", 0), ({"fail_at": 4, "tokens": 9}, "engine_error", 4)],
)
async def test_a_failure_of_the_engine_costs_what_was_made_before(
    server: Server, directives: dict[str, Any], status: str, tokens: int
) -> None:
    assert (await server.chat(script(**directives))).status_code == 500
    row = await row_of(server)
    assert (row.status, row.completion_tokens) == (status, tokens)
    assert (row.prompt_tokens, row.completion_tokens) == await charged(server)
    assert (row.prompt_tokens > 0) == (tokens > 0)
    assert (row.ttft is not None) == (tokens > 0)


async def test_what_is_refused_before_any_work_is_no_row(server: Server) -> None:
    assert (await server.chat(model="other")).status_code == 404
    assert (await server.chat("word " * 9_000)).status_code == 400
    await server.chat()
    assert (await row_of(server)).status == "stop"


async def test_a_kept_stream_and_the_turns_of_a_websocket(server: Server) -> None:
    made = await server.client.post("/v1/streams", json=chat_body(script(tokens=4)))
    assert (await row_of(server)).request_id == made.headers["x-request-id"]
    headers = {"authorization": f"Bearer {KEY}"}
    async with connect(f"ws://{server.host}:{server.port}/ws/chat", additional_headers=headers, proxy=None) as socket:
        for _ in range(2):
            await socket.send(orjson.dumps({"type": "chat", "content": script(tokens=2)}).decode())
            while orjson.loads(await socket.recv())["type"] != "done":
                pass
    _, *turns = await rows_of(server, 3)
    assert [row.completion_tokens for row in turns] == [2, 2]
    assert [row.request_id.partition(".")[2] for row in turns] == ["1", "2"]
    assert len({row.id for row in turns}) == 2


async def test_what_a_shutdown_cuts_off(server: Server) -> None:
    asked = asyncio.create_task(server.chat(script(tokens=1000, gap=0.01)))
    await eventually(lambda: server.mulgil.gateway.running == 1)
    await asyncio.sleep(0.05)
    await server.mulgil.drain()
    assert (await asked).status_code == 503
    row = await row_of(server)
    assert row.status == "server_shutting_down"
    assert (row.prompt_tokens, row.completion_tokens) == await charged(server)


@pytest.mark.parametrize("cached", [False, True])
def test_which_variant_was_to_answer_and_what_answered_instead(cached: bool) -> None:
    lease = Leases(MemoryStore(), ttl=30, renew_interval=5).open(Account("t", "k"), Limits(), Limits())
    generation = Generation(Prepared("mg-1", (Prompt([1], 9),), 1, None), lease, model="m")
    generation.free = cached
    generation.observed.begin("read")
    row = row_of_generation(generation, None, refunded=False)
    assert (row.variant, row.fallback) == (None, None)
    generation.observed.variant = "terse"
    assert row_of_generation(generation, None, refunded=False).variant == "terse"
    generation.observed.falls_back("other", "overloaded")
    row = row_of_generation(generation, None, refunded=False)
    assert (row.variant, row.fallback) == ("terse", "other")


async def test_embeddings(server: Server) -> None:
    reply = await embed(server, ["a river", "the sea"])
    row = await row_of(server)
    assert (row.model, row.prompt_tokens, row.completion_tokens) == (EMBEDDER, 8, 0)
    assert (row.status, row.ttft, row.request_id) == ("completed", None, reply.headers["x-request-id"])
    assert await charged(server) == (8, 0)


async def test_embeddings_that_nobody_waits_for(server: Server) -> None:
    async with hanging_up(server, raw_embedding('/simulate {"delay": 60}')):
        await eventually(lambda: server.mulgil.running == 1)
    row = await row_of(server)
    assert row.status == "aborted"
    assert (row.prompt_tokens, 0) == await charged(server)
    assert row.prompt_tokens > 0


async def test_embeddings_that_fail_cost_nothing(server: Server) -> None:
    assert (await embed(server, '/simulate {"fail": true}')).status_code == 500
    row = await row_of(server)
    assert (row.status, row.prompt_tokens) == ("engine_error", 0)
    assert await charged(server) == (0, 0)
