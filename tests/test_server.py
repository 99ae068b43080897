"""What uvicorn is told."""

import asyncio
import signal

import httpx2
import orjson
import pytest
from harness import KEY, Server, chat_body, events, eventually, raw_request, script, serving, settings

from mulgil.admission.store import Account


@pytest.mark.parametrize(
    "nonsense",
    [
        b"HELLO\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03",
    ],
)
async def test_what_is_no_http_gets_the_envelope_and_the_connection_is_closed(shared: Server, nonsense: bytes) -> None:
    reader, writer = await shared.open_socket()
    writer.write(nonsense)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head
    assert b"x-request-id: req_" in head
    assert orjson.loads(body)["error"].keys() == {"message", "type", "param", "code"}


async def test_headers_without_end_are_cut_off(shared: Server) -> None:
    reader, writer = await shared.open_socket()
    writer.write(b"GET /health HTTP/1.1\r\nhost: test\r\n")
    for number in range(17):
        writer.write(b"x-%d: " % number + b"a" * 4000 + b"\r\n")
        await writer.drain()
        await asyncio.sleep(0.002)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 431 ")
    assert orjson.loads(body)["error"]["code"] == "request_head_too_large"


async def test_a_large_body_behind_a_small_head_is_no_large_head(shared: Server) -> None:
    reader, writer = await shared.open_socket()
    writer.write(raw_request(orjson.dumps(chat_body("word " * 40_000))))
    assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")  # it does not fit the context
    writer.close()


async def test_what_still_runs_after_the_grace_period_gets_an_error_that_it_can_read() -> None:
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {KEY}"}) as client:
        async with serving(settings(shutdown_grace=0)) as server:

            async def ask(**fields: bool) -> httpx2.Response:
                body = chat_body(script(hang_at=2), **fields)
                return await client.post(f"{server.url}/v1/chat/completions", json=body)

            asked = asyncio.gather(ask(), ask(stream=True))
            await eventually(lambda: server.engine.load().unfinished == 2)
            caller = await server.mulgil.keys.find(KEY.encode())
        plain, stream = await asked
    assert plain.status_code == 503
    assert plain.json()["error"]["code"] == "server_shutting_down"
    *_, last = events(stream.text)
    assert last["error"]["code"] == "server_shutting_down"
    assert server.mulgil.leases.live == 0
    assert caller is not None
    left = (await server.mulgil.store.balances(Account(caller.tenant, caller.key_id))).key
    assert (left.requests, left.output_tokens, left.held_tokens, left.concurrency) == (2, 4, 0, 0)


async def test_before_it_ends_it_is_not_ready_and_still_serves_so_that_balancers_notice() -> None:
    async with serving(settings(drain_delay=0.6)) as server:
        server.uvicorn.should_exit = True
        await eventually(lambda: server.mulgil.gateway.leaving)
        assert (await server.client.get("/health/ready")).status_code == 503
        assert (await server.client.get("/health/live")).status_code == 200
        assert (await server.chat()).status_code == 200


async def test_what_outlives_the_grace_ends_with_an_error_that_says_so_and_what_does_not_is_whole() -> None:
    async with serving(settings(shutdown_grace=1)) as server:
        short = asyncio.create_task(server.chat(script(tokens=20, gap=0.02), stream=True))
        long = asyncio.create_task(server.chat(script(tokens=5_000, gap=0.02), stream=True))
        await eventually(lambda: server.engine.load().unfinished == 2)
        server.uvicorn.should_exit = True
        assert events((await short).text)[-1] == "[DONE]"
        assert events((await long).text)[-1]["error"]["code"] == "server_shutting_down"
        assert server.mulgil.leases.live == 0


async def test_a_second_signal_hurries() -> None:
    async with serving(settings(drain_delay=30, shutdown_grace=30)) as server:
        running = asyncio.create_task(server.chat(script(tokens=5_000, gap=0.02), stream=True))
        await eventually(lambda: server.engine.load().unfinished == 1)
        server.uvicorn.should_exit = True
        server.uvicorn.handle_exit(signal.SIGTERM, None)
        answer = await asyncio.wait_for(running, 5)
        assert events(answer.text)[-1]["error"]["code"] == "server_shutting_down"
