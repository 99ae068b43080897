"""More than the server can do: honest refusals, fair turns, exact budgets."""

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from harness import KEY, Server, chat_body, events, eventually, hanging_up, raw_request, script, serving, settings
from keyrecords import made

from mulgil.admission.policy import Balance
from mulgil.admission.store import Account
from mulgil.auth.file import KeyFile

FOREVER = script(hang_at=1)


@asynccontextmanager
async def busy(*, running: int = 1, **changes: Any) -> AsyncGenerator[Server]:
    """A gateway whose only turns are taken by answers that never end."""
    chosen = settings(max_concurrent_requests=running, **changes)
    async with serving(chosen) as server, contextlib.AsyncExitStack() as open_ones:
        for _ in range(running):
            reader = await open_ones.enter_async_context(hanging_up(server, chat(FOREVER)))
            await reader.readuntil(b"\r\n\r\n")
        yield server


def chat(content: str, *, key: str = KEY, stream: bool = True, **fields: Any) -> bytes:
    body = orjson.dumps(chat_body(content, stream=stream, **fields))
    return raw_request(body, authorization=f"Bearer {key}")


async def balance(server: Server) -> Balance:
    """What the suite's tenant has used."""
    caller = await server.mulgil.keys.find(KEY.encode())
    assert caller is not None
    return (await server.mulgil.store.balances(Account(caller.tenant, caller.key_id))).tenant


async def used(server: Server) -> tuple[int, ...]:
    """Its requests, input tokens, output tokens, tokens on hold, and requests under way."""
    found = await balance(server)
    return found.requests, found.input_tokens, found.output_tokens, found.held_tokens, found.concurrency


def is_overloaded(reply: httpx2.Response) -> bool:
    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["code"], error["param"]) == (
        503,
        "server_error",
        "overloaded",
        None,
    )
    seconds, milliseconds = int(reply.headers["retry-after"]), int(reply.headers["retry-after-ms"])
    return 1 <= seconds <= 60 and 0 <= seconds * 1000 - milliseconds < 1000


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.usefixtures("no_errors_logged")
async def test_a_full_room_is_said_at_once_with_a_moment_to_come_back(stream: bool) -> None:
    async with busy(max_queued_requests=0) as server:
        before = await used(server)
        took = []
        for _ in range(9):
            begun = time.perf_counter()
            reply = await server.chat(stream=stream)
            took.append(time.perf_counter() - begun)
            assert is_overloaded(reply)
            assert "text/event-stream" not in reply.headers["content-type"]
        assert statistics.median(took) < 0.05
        assert await used(server) == before


@pytest.mark.parametrize("stream", [False, True])
async def test_who_waits_too_long_is_told_so_and_pays_nothing(stream: bool) -> None:
    async with busy(queue_timeout=0.2) as server:
        before = await used(server)
        begun = time.perf_counter()
        reply = await server.chat(stream=stream)
        assert is_overloaded(reply)
        assert "within 0.2 s" in reply.json()["error"]["message"]
        assert 0.2 <= time.perf_counter() - begun < 2
        assert await used(server) == before
        assert server.mulgil.leases.live == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.usefixtures("no_errors_logged")
async def test_hanging_up_while_waiting_frees_the_place_and_costs_nothing(stream: bool) -> None:
    async with busy() as server:
        before = await used(server)
        async with hanging_up(server, chat("hello", stream=stream)):
            await eventually(lambda: server.mulgil.gateway.queue.waiting == 1)
            assert (await balance(server)).concurrency == 2, "waiting holds the lease"
        await eventually(lambda: server.mulgil.gateway.queue.waiting == 0, within=0.25)
        await eventually(lambda: server.mulgil.leases.live == 1)
        await eventually(lambda: not server.mulgil.leases._tasks)
        assert await used(server) == before
        assert server.engine.load().unfinished == 1


async def test_a_stream_that_waits_still_gets_a_real_status() -> None:
    async with serving(settings(max_concurrent_requests=1)) as server:
        async with hanging_up(server, chat(FOREVER)) as reader:
            await reader.readuntil(b"\r\n\r\n")
            good = asyncio.create_task(server.chat("hello", stream=True))
            bad = asyncio.create_task(server.chat(script(fail_at=0), stream=True))
            await eventually(lambda: server.mulgil.gateway.queue.waiting == 2)
            assert not good.done()
        assert (await good).status_code == 200
        assert events((await good).text)[-1] == "[DONE]"
        assert (await bad).status_code == 500
        assert (await bad).json()["error"]["code"] == "engine_error"


async def test_choices_are_counted_one_by_one() -> None:
    async with serving(settings(max_concurrent_requests=4)) as server:
        wide = [asyncio.create_task(server.chat(script(tokens=5, gap=0.01), n=3)) for _ in range(6)]
        widest = asyncio.create_task(server.chat(script(tokens=5, gap=0.01), n=16))
        most = 0
        while not all(task.done() for task in [*wide, widest]):
            most = max(most, server.engine.load().unfinished)
            assert server.mulgil.gateway.queue.turns_in_use <= 4
            await asyncio.sleep(0.002)
        assert [task.result().status_code for task in [*wide, widest]] == [200] * 7
        assert len(widest.result().json()["choices"]) == 16
        assert most == 1


async def test_the_engine_is_not_given_more_than_its_cache_holds() -> None:
    # Each asks for 8 tokens of prompt or so and half of 100: three fit into 200, and four do not.
    chosen = settings(simulated_kv_tokens=200, kv_worst_case_share=0.5)
    async with serving(chosen) as server:
        body = script(tokens=10, gap=0.005)
        prompt = len((await server.client.post("/v1/tokenize", json=chat_body(body))).json()["tokens"])
        fit = 200 // (prompt + 50)
        tasks = [asyncio.create_task(server.chat(body, max_tokens=100)) for _ in range(12)]
        most = 0
        while not all(task.done() for task in tasks):
            most = max(most, server.engine.load().unfinished)
            await asyncio.sleep(0.002)
        assert [task.result().status_code for task in tasks] == [200] * 12
        assert most == max(fit, 1)


async def test_a_request_larger_than_the_cache_is_served_alone() -> None:
    async with serving(settings(simulated_kv_tokens=10, max_num_seqs=1)) as server:
        replies = await asyncio.gather(*(server.chat(script(tokens=20), n=2) for _ in range(3)))
        assert [reply.status_code for reply in replies] == [200] * 3
        assert server.engine.load().kv_usage == 0


async def test_a_shutdown_refuses_those_who_wait_and_charges_them_nothing() -> None:
    async with serving(settings(max_concurrent_requests=1, drain_delay=0, shutdown_grace=0)) as server:
        running = asyncio.create_task(server.chat(FOREVER))
        await eventually(lambda: server.engine.load().unfinished == 1)
        waiting = [asyncio.create_task(server.chat("hello", stream=bool(number % 2))) for number in range(6)]
        await eventually(lambda: server.mulgil.gateway.queue.waiting == 6)
        await server.mulgil.drain()
        for reply in await asyncio.gather(*waiting):
            assert reply.status_code == 503
            assert reply.json()["error"]["code"] == "server_shutting_down"
            assert int(reply.headers["retry-after"]) >= 1
        assert (await running).status_code in (500, 503)
        found = await balance(server)
        assert (found.requests, found.concurrency, found.held_tokens) == (1, 0, 0)


async def test_an_engine_that_dies_under_a_queue_leaves_nobody_waiting() -> None:
    async with serving(settings(max_concurrent_requests=1, engine_rebuilds=1)) as server:
        async with hanging_up(server, chat(script(ttft=0.3, die_at=1))) as reader:
            await reader.readuntil(b"\r\n\r\n")
            waiting = [asyncio.create_task(server.chat("hello")) for _ in range(20)]
            await eventually(lambda: server.mulgil.gateway.queue.waiting == 20)
            replies = await asyncio.wait_for(asyncio.gather(*waiting), 10)
        assert {reply.status_code for reply in replies} <= {200, 503}
        assert server.mulgil.gateway.queue.turns_in_use == 0
        await eventually(lambda: server.mulgil.leases.live == 0)


async def test_five_times_too_much_is_served_or_refused_and_charged_to_the_token() -> None:
    chosen = settings(max_concurrent_requests=4, max_queued_requests=8, queue_timeout=0.5)
    async with serving(chosen) as server:
        replies = await asyncio.gather(
            *(server.chat(script(tokens=1 + number % 9, gap=0.002), stream=bool(number % 2)) for number in range(60))
        )
        whole = [reply for reply in replies if reply.status_code == 200]
        assert all(is_overloaded(reply) for reply in replies if reply.status_code != 200)
        assert 12 <= len(whole) < 60
        found = await balance(server)
        assert (found.requests, found.concurrency, found.held_tokens) == (len(whole), 0, 0)
        made_of = [1 + number % 9 for number, reply in enumerate(replies) if reply.status_code == 200]
        assert found.output_tokens == sum(made_of)
        assert server.mulgil.gateway.queue.turns_in_use == 0
        assert server.mulgil.gateway.queue._waiting.remembered == 0


async def waits(server: Server, small: list[str], greedy: str, *, times: int) -> float:
    """95th percentile of the seconds that small tenants wait for a status, beside a tenant with so many clients."""
    seconds: list[float] = []
    sent = script(ttft=0.02, tokens=1)

    async def ask(key: str) -> None:
        async with hanging_up(server, chat(sent, key=key)) as reader:
            begun = time.perf_counter()
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            took = time.perf_counter() - begun
            await reader.readuntil(b"[DONE]\n\n")
        if key != greedy:
            seconds.append(took)

    async def again_and_again(key: str) -> None:
        while True:
            await ask(key)

    crowd = [asyncio.create_task(again_and_again(greedy)) for _ in range(times)]
    try:
        await asyncio.sleep(0.2)

        async def client(key: str) -> None:
            for _ in range(8):
                await ask(key)

        await asyncio.gather(*(client(key) for key in small))
    finally:
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)
    return statistics.quantiles(seconds, n=20)[-1]


@pytest.mark.timeout(120)
async def test_a_tenant_with_a_hundred_times_the_load_does_not_keep_ten_others_waiting(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.toml")
    keys = []
    for number in range(11):
        key, record = made(tenant=f"tenant-{number}")
        await file.add(record)
        keys.append(key)
    async with serving(settings(keys_file=file.path, max_concurrent_requests=2)) as server:
        equal, beside = [], []
        for _ in range(3):
            equal.append(await waits(server, keys[:10], keys[10], times=1))
            beside.append(await waits(server, keys[:10], keys[10], times=100))
        ratio = statistics.median(beside) / statistics.median(equal)
        assert ratio <= 2, (equal, beside)
