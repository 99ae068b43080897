"""No silence that a proxy takes for death, and nobody who keeps a connection without using it."""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator

import pytest
from harness import Server, chat_body, events, eventually, hanging_up, raw_request, script, serving, settings, text_of


@pytest.fixture
async def pinging() -> AsyncGenerator[Server]:
    async with serving(settings(ping_interval=0.05, heartbeat_interval=0.2)) as running:
        yield running


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_silence_before_the_first_token_and_between_tokens_is_filled_with_comments(
    pinging: Server, path: str
) -> None:
    asked = script(text="Late but whole.", ttft=0.5, gap=0.15)
    body = chat_body(asked, stream=True) if "chat" in path else {"model": "demo", "prompt": asked, "stream": True}
    reply = await pinging.client.post(path, json=body)
    assert reply.text.count(": ping\n\n") >= 5
    assert re.fullmatch(r"((data: [^\n]*|: ping)\n\n)*", reply.text), "never a byte inside an event"
    told = events(reply.text.replace(": ping\n\n", ""))
    key = "delta" if "chat" in path else "text"
    empty = [
        one
        for one in told[:-1]
        if one["choices"] and not one["choices"][0][key] and not one["choices"][0]["finish_reason"]
    ]
    assert empty, "some clients count only events"
    if "chat" in path:
        assert text_of(told) == "Late but whole."


async def test_a_stream_that_flows_has_no_comments(pinging: Server) -> None:
    reply = await pinging.chat(script(tokens=60, gap=0.005), stream=True)
    assert ": ping" not in reply.text


async def test_comments_between_ids_have_no_blank_line(pinging: Server) -> None:
    told = (await pinging.client.post("/v1/streams", json=chat_body(script(text="a b", gap=0.3)))).json()
    reply = await pinging.client.get(told["url"])
    assert ": ping\n" in reply.text
    assert ": ping\n\n" not in reply.text


async def test_a_reader_that_does_not_read_is_left_and_the_engine_is_free() -> None:
    async with serving(settings(write_timeout=0.3)) as server:
        body = json.dumps(chat_body(script(text="x" * 3_000_000, gap=0.0), stream=True)).encode()
        async with hanging_up(server, raw_request(body)) as reader:
            await reader.readuntil(b"\r\n\r\n")
            reader._transport.pause_reading()  # type: ignore[attr-defined]  # a client that has stopped reading
            await eventually(lambda: server.mulgil.gateway.running == 0)
            assert server.engine.load().unfinished == 0


@pytest.mark.parametrize("sent", [b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n", None])
async def test_a_request_that_never_comes_whole_is_ended_with_a_408(sent: bytes | None) -> None:
    async with serving(settings(request_timeout=0.3)) as server:
        whole = raw_request(json.dumps(chat_body()).encode())
        reader, writer = await server.open_socket()
        begin = time.monotonic()
        writer.write(sent or whole[:-3])
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"request_timeout"' in answer
        assert time.monotonic() - begin >= 0.25


async def test_the_second_request_on_a_connection_has_no_more_time_than_the_first() -> None:
    async with serving(settings(request_timeout=0.3)) as server:
        reader, writer = await server.open_socket()
        writer.write(raw_request(json.dumps(chat_body(script(tokens=1))).encode()))
        await reader.readuntil(b'"cached_tokens":0}}}')
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\n")
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 408 ")


async def test_a_long_answer_is_no_late_request() -> None:
    async with serving(settings(request_timeout=0.2)) as server:
        reply = await server.chat(script(tokens=20, gap=0.03))
        assert reply.status_code == 200
        assert (await server.chat(script(tokens=20, gap=0.03), stream=True)).text.endswith("data: [DONE]\n\n")
