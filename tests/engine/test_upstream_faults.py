"""What an upstream can get wrong, and which error of ours that is."""

import asyncio
import gzip
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from checks import checked_chat, checked_completion
from elsewhere import elsewhere
from harness import chat_body, eventually, script, serving, settings
from pydantic import SecretStr
from scriptedserver import DONE, STREAM, Scene, ScriptedServer, answers, delta, event, scripted, streams, usage

from mulgil.engine.base import TextRequest
from mulgil.engine.snapshot import Snapshot
from mulgil.engine.upstream import Upstream
from mulgil.errors import ContextLengthError, EngineError, EngineUnavailableError, MulgilError
from mulgil.upstreams import UpstreamOptions

SECRET = "sk-nobody-may-see-this"
CHAT = checked_chat(chat_body("hi"))


@asynccontextmanager
async def upstream_of(scene: Scene, **options: Any) -> AsyncGenerator[tuple[Upstream, ScriptedServer]]:
    """An upstream that plays *scene*."""
    async with scripted(scene) as server:
        given: dict[str, Any] = {"url": server.url, "key": SecretStr(SECRET)} | options
        upstream = Upstream("there", UpstreamOptions(**given))
        yield upstream, server
        await upstream.close()
        await eventually(lambda: server.open == 0)


async def fate(upstream: Upstream, request: TextRequest = CHAT) -> tuple[list[Snapshot], MulgilError | None]:
    """All snapshots, and how it failed."""
    snapshots: list[Snapshot] = []
    try:
        async for snapshot in upstream.generate(await upstream.prepare(request, tenant="t")):
            snapshots.append(snapshot)
    except MulgilError as error:
        return snapshots, error
    return snapshots, None


def error_body(code: object = None, message: str = "No.", param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


async def hangs(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


UNAVAILABLE: dict[str, Scene] = {
    **{
        f"status {status}": answers(status, error_body())
        for status in (201, 204, 401, 402, 403, 404, 405, 408, 409, 418, 429, 451, 500, 501, 502, 503, 504)
    },
    "the model is unknown": answers(404, error_body("model_not_found")),
    "a redirect": answers(307, b"", location="http://127.0.0.1:9/elsewhere"),
    "a redirect to itself": answers(302, b"", location="/v1/chat/completions"),
    "nothing": lambda writer: asyncio.sleep(0),
    "no stream": answers(200, {"id": "x", "choices": []}),
    "a page": answers(200, b"<html>Sorry</html>", content_type="text/html"),
    "packed": answers(200, gzip.compress(b"data: {}"), content_type="text/event-stream", content_encoding="gzip"),
    "a packed refusal": answers(500, gzip.compress(b"{}" * 9), content_encoding="gzip"),
    "hangs before its headers": hangs,
}


async def says_no_http(writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9.9\r\n")
    await writer.drain()


UNAVAILABLE["not HTTP"] = says_no_http


@pytest.mark.parametrize("name", UNAVAILABLE)
async def test_what_the_operator_must_mend_is_a_503_that_tells_nothing_of_the_server(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with upstream_of(UNAVAILABLE[name], timeout=0.3) as (upstream, server):
        snapshots, error = await fate(upstream)
        assert snapshots == []
        assert type(error) is EngineUnavailableError
        assert "127.0.0.1" not in error.message
        assert SECRET not in error.message
        assert len(server.asked) == 1
        assert upstream.running == 0
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("mulgil")]
    assert line.startswith("the upstream there cannot answer: ")
    assert "127.0.0.1" not in caplog.text
    assert SECRET not in caplog.text


async def test_a_server_that_refuses_connections_is_a_503() -> None:
    async with scripted(hangs) as server:
        url = server.url
    upstream = Upstream("there", UpstreamOptions(url=url))
    with pytest.raises(EngineUnavailableError):
        await upstream.prepare(CHAT, tenant="t")
    await upstream.close()


async def test_a_busy_server_says_when_to_come_again() -> None:
    for status in (429, 503):
        async with upstream_of(answers(status, error_body(), retry_after="7")) as (upstream, _):
            _, error = await fate(upstream)
            assert isinstance(error, EngineUnavailableError)
            assert error.retry_after == 7


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_what_the_client_can_mend_is_its_own_refusal(status: int) -> None:
    refusal = error_body("some_code", "temperature is too hot", "temperature")
    async with upstream_of(answers(status, refusal)) as (upstream, _):
        snapshots, error = await fate(upstream)
        assert snapshots == []
        assert error is not None
        assert error.status == status
        assert "refuses the request: temperature is too hot" in error.message
        if status != 413:
            assert (error.param, error.code) == ("temperature", "some_code")


@pytest.mark.parametrize(
    "body",
    [b"", b"no JSON", [], {"error": 7}, error_body(message=f"the key {SECRET}"), error_body(message="at 127.0.0.1")],
)
async def test_a_refusal_without_a_reason_that_may_be_told_has_one_of_ours(body: object) -> None:
    async with upstream_of(answers(400, body)) as (upstream, _):
        _, error = await fate(upstream)
        assert error is not None
        assert error.message.endswith("it does not say why.")


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (error_body("context_length_exceeded", "resulted in 99 tokens, with a limit of 50 tokens"), ("50", "99")),
        (error_body("context_length_exceeded", "too long"), ()),
        (
            error_body(400, "This model's maximum context length is 50 tokens. However, you requested 99 tokens"),
            ("50", "99"),
        ),
    ],
)
@pytest.mark.parametrize("chat", [True, False])
async def test_a_context_that_is_too_long_is_told_as_ours_is(
    refusal: dict[str, Any], told: tuple[str, ...], chat: bool
) -> None:
    request = CHAT if chat else checked_completion({"model": "m", "prompt": "hi"})
    async with upstream_of(answers(400, refusal)) as (upstream, _):
        _, error = await fate(upstream, request)
        assert isinstance(error, ContextLengthError)
        assert error.param == ("messages" if chat else "prompt")
        assert "Input tokens exceed the configured limit" in error.message
        assert all(number in error.message for number in told)


HI, END = delta("Hi"), delta(finish="stop")
BROKEN: dict[str, Scene] = {
    "it closes": streams(HI),
    "it closes within an event": streams(HI, event(HI)[:20]),
    "it closes behind the finish reason": streams(HI, END),
    "it closes behind the usage": streams(HI, END, usage(1, 1)),
    "an end without a finish reason": streams(HI, usage(1, 1), DONE),
    "an end with an abort": streams(HI, delta(finish="abort"), DONE),
    "it is silent": streams(HI, 30.0),
    "garbage": streams(HI, b"data: {no JSON\n\n"),
    "a list": streams(HI, b"data: []\n\n"),
    "no object": streams(HI, b"data: 7\n\n"),
    "a lone surrogate": streams(HI, b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}\n\n'),
    "an error": streams(HI, error_body("engine_error")),
    "an error without an object": streams(HI, {"error": "bad"}),
    "another choice": streams(HI, delta("Hi", index=1)),
    "a negative choice": streams(HI, delta("Hi", index=-1)),
    "a choice without an index": streams(HI, {"choices": [{"delta": {"content": "x"}}]}),
    "no text": streams(HI, delta(**{"content": ["x"]})),  # type: ignore[arg-type]  # that is what is wrong
    "a call without a name": streams(HI, delta(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}])),
    "a call that is none": streams(HI, delta(tool_calls=[7])),
    "arguments that are no text": streams(
        HI, delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": {}}}])
    ),
    "usage that is none": streams(HI, {"choices": [], "usage": {"prompt_tokens": "many"}}),
    "less than no tokens": streams(HI, usage(1, -1)),
    "an endless line": streams(HI, *[b"data: " + b"x" * 65_536] * 40),
    "endless events": streams(HI, *[event(delta(""))] * 90_000),
}


async def breaks_off(writer: asyncio.StreamWriter) -> None:
    chunk = event(HI)
    writer.write(STREAM.replace(b"connection: close", b"transfer-encoding: chunked"))
    writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
    await writer.drain()


async def resets(writer: asyncio.StreamWriter) -> None:
    writer.write(STREAM + event(HI))
    await writer.drain()
    await asyncio.sleep(0.05)
    writer.transport.abort()


BROKEN |= {"chunked without an end": breaks_off, "a reset": resets}


@pytest.mark.parametrize("name", BROKEN)
async def test_an_answer_that_breaks_off_is_an_error_and_never_a_short_answer(name: str) -> None:
    request = checked_chat(chat_body("hi", max_tokens=100))
    async with upstream_of(BROKEN[name], timeout=0.3) as (upstream, server):
        snapshots, error = await fate(upstream, request)
        assert type(error) is EngineError
        assert "127.0.0.1" not in error.message
        assert snapshots[0].completion_tokens == 0
        assert all(choice.finish_reason is None for snapshot in snapshots for choice in snapshot.choices)
        assert upstream.running == 0
        await eventually(lambda: server.open == 0)


async def test_what_was_told_before_it_broke_off_is_told() -> None:
    async with upstream_of(streams(HI, 0.05, HI)) as (upstream, _):
        snapshots, error = await fate(upstream)
        assert error is not None
        assert snapshots[-1].choices[0].text == "HiHi"


@pytest.mark.parametrize("cut", range(1, 12))
async def test_pieces_of_the_network_make_no_difference(cut: int) -> None:
    body = b": ping\n\n" + event(HI) + b": ping\r\n\r\n" + event(delta("물🌊")) + event(END) + event(usage(1, 9)) + DONE
    pieces = [body[at : at + cut] for at in range(0, len(body), cut)]

    async def scene(writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    async with upstream_of(scene) as (upstream, _):
        snapshots, error = await fate(upstream)
        assert error is None
        (last,) = snapshots[-1].choices
        assert (last.text, last.tokens, last.finish_reason) == ("Hi물🌊", 9, "stop")


async def test_a_ping_breaks_a_silence() -> None:
    pings: list[Any] = [b": ping\n\n", 0.15] * 5
    scene = streams(HI, *pings, END, usage(1, 2), DONE)
    async with upstream_of(scene, timeout=0.4) as (upstream, _):
        assert (await fate(upstream))[1] is None


USAGES: dict[str, tuple[list[Any], int]] = {
    "told": ([usage(1, 40)], 40),
    "beside the finish reason": ([{"choices": [], "usage": {"completion_tokens": 40}}], 40),
    "none": ([], 3),
    "null": ([{"choices": [], "usage": None}], 3),
    "zeros, which cannot be": ([usage(0, 0)], 3),
    "more than was reserved": ([usage(1, 10**9)], 100),
}


@pytest.mark.parametrize("name", USAGES)
async def test_tokens_are_counted_by_the_usage_or_by_the_pieces(name: str) -> None:
    told, counted = USAGES[name]
    words = [delta("Water "), delta(" flows  "), delta("downhill.")]
    async with upstream_of(streams(*words, END, *told, DONE)) as (upstream, _):
        snapshots, error = await fate(upstream, checked_chat(chat_body("hi", max_tokens=100)))
        assert error is None
        assert snapshots[-1].completion_tokens == counted
        counts = [snapshot.completion_tokens for snapshot in snapshots]
        assert counts == sorted(counts)


async def test_an_answer_that_was_cut_off_has_all_that_it_may_have_where_no_usage_is_told() -> None:
    async with upstream_of(streams(delta("Water flows"), delta(finish="length"), DONE)) as (upstream, _):
        snapshots, _ = await fate(upstream, checked_chat(chat_body("hi", max_tokens=7)))
        assert snapshots[-1].completion_tokens == 7


async def test_dialects_are_understood() -> None:
    call = {"id": "c1", "function": {"name": "f", "arguments": '{"a"'}}
    pieces = [
        delta(None, reasoning="Hm", role="assistant"),
        delta("So", reasoning_content=None, tool_calls=None),
        delta(refusal="."),
        delta(tool_calls=[call]),  # without an index
        delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "f", "arguments": ":1}"}}]),
        delta(tool_calls=[{"index": 4, "function": {"name": "g"}}]),
        delta(finish="function_call"),
    ]
    async with upstream_of(streams(*pieces, usage(1, 9), DONE)) as (upstream, _):
        snapshots, error = await fate(upstream)
        assert error is None
        (last,) = snapshots[-1].choices
        assert (last.text, last.reasoning, last.finish_reason) == ("So.", "Hm", "tool_calls")
        assert [(one.name, one.arguments) for one in last.tool_calls] == [("f", '{"a":1}'), ("g", "")]
        assert last.tool_calls[0].id == "c1"
        assert last.tool_calls[1].id.startswith("call_")


async def test_an_unknown_finish_reason_is_a_stop() -> None:
    async with upstream_of(streams(HI, delta(finish="eos_token"), DONE)) as (upstream, _):
        assert (await fate(upstream))[0][-1].choices[0].finish_reason == "stop"


async def test_an_abort_does_not_wait_for_headers() -> None:
    async with upstream_of(hangs) as (upstream, server):
        prepared = await upstream.prepare(CHAT, tenant="t")
        running = asyncio.create_task(anext(upstream.generate(prepared)))
        await eventually(lambda: len(server.asked) == 1)
        await upstream.abort(prepared.id)
        assert (await asyncio.wait_for(running, 1)).choices[0].finish_reason == "abort"
        await eventually(lambda: server.open == 0)


@pytest.mark.parametrize("scene", [hangs, streams(HI, 30.0)], ids=["before headers", "within the stream"])
async def test_a_reader_that_is_cancelled_closes_the_connection(scene: Scene) -> None:
    async with upstream_of(scene) as (upstream, server):
        running = asyncio.create_task(fate(upstream))
        await eventually(lambda: len(server.asked) == 1 and server.open == 1)
        await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.wait([running])
        await eventually(lambda: server.open == upstream.running == 0)


async def test_an_iterator_that_is_closed_closes_the_connection() -> None:
    async with upstream_of(streams(HI, 30.0)) as (upstream, server):
        async with aclosing(upstream.generate(await upstream.prepare(CHAT, tenant="t"))) as snapshots:
            await anext(snapshots)
            assert server.open == 1
        await eventually(lambda: server.open == upstream.running == 0)


async def test_a_tokenize_endpoint_that_hangs_is_given_up() -> None:
    async with scripted(hangs) as server:
        server.tokenizes = hangs
        upstream = Upstream("there", UpstreamOptions(url=server.url, timeout=0.2))
        with pytest.raises(EngineUnavailableError):
            await upstream.prepare(CHAT, tenant="t")
        await upstream.close()
        await eventually(lambda: server.open == 0)


async def test_an_engine_that_dies_in_the_other_gateway_is_an_error_and_then_a_503() -> None:
    async with serving(settings()) as server, elsewhere(server) as upstream:
        request = checked_chat(chat_body(script(tokens=50, die_at=5)))
        snapshots, error = await fate(upstream, request)
        assert isinstance(error, EngineError)
        assert snapshots[-1].completion_tokens == 5
        with pytest.raises(EngineUnavailableError):
            await upstream.prepare(CHAT, tenant="t")


async def test_a_wrong_key_is_a_503() -> None:
    async with serving(settings()) as server, elsewhere(server, key=SecretStr("wrong")) as upstream:
        with pytest.raises(EngineUnavailableError):
            await upstream.prepare(CHAT, tenant="t")
