"""Streams that outlive the line to their reader: exact resume, tickets, owners, and an end."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from harness import Server, chat_body, eventually, hanging_up, raw_request, script, serving, settings
from keyrecords import made
from streamreader import Read

from mulgil.auth.file import KeyFile


async def start(server: Server, prompt: str, **fields: Any) -> Any:
    reply = await server.client.post("/v1/streams", json=chat_body(prompt, **fields))
    assert reply.status_code == 201, reply.text
    return reply.json()


async def read(server: Server, url: str, **headers: str) -> Read:
    reply = await server.client.get(url, headers=headers)
    assert reply.status_code == 200, reply.text
    reader = Read()
    reader.feed(reply.text)
    return reader


@pytest.fixture
async def short() -> AsyncGenerator[Server]:
    """A server that keeps little, and not for long."""
    chosen = settings(resume_grace=0.2, resume_retention=0.3, max_kept_streams=2, ticket_ttl=0.3)
    async with serving(chosen) as running:
        yield running


async def test_a_stream_is_read_from_the_beginning_as_often_as_wanted(shared: Server) -> None:
    told = await start(shared, script(text="물길 flows on."))
    assert told["object"] == "stream"
    assert told["status"] == "running"
    for _ in range(2):
        whole = await read(shared, told["url"])
        assert whole.text == "물길 flows on."
        assert (whole.status, whole.finish) == ("completed", ["stop"])
        assert whole.last_id == len("물길 flows on.") + 2
    ended = await shared.client.get(told["url"], headers={"last-event-id": str(whole.last_id)})
    assert (ended.status_code, ended.content) == (204, b"")


@pytest.mark.parametrize("chunking", ["token", "word", "sentence", {"interval_ms": 5}])
async def test_cut_at_any_byte_and_resumed_the_text_is_whole(shared: Server, chunking: Any) -> None:
    chance = random.Random(5)
    text = "물길은 막지 않고 🌊 이끈다. " * 6
    prompt = script(text=text, gap=0.001, split_characters=True)
    told = await start(shared, prompt, stream_options={"chunking": chunking, "include_usage": True})
    reader, cuts = Read(), 0
    while reader.status is None:
        body = b""
        headers = {"last-event-id": str(reader.last_id)} if reader.last_id else {}
        async with shared.client.stream("GET", told["url"], headers=headers) as reply:
            left = chance.randrange(1, 900)
            async for piece in reply.aiter_raw():
                body += piece[:left]
                left -= len(piece)
                if left <= 0:
                    break
        # What is not a whole event is as good as not received.
        reader.feed(body.decode(errors="ignore"))
        cuts += 1
    assert reader.text == text
    assert reader.finish == ["stop"]
    assert reader.usage["completion_tokens"] == len(text.encode())
    assert cuts > 3


async def test_calls_and_several_choices_are_resumed_exactly_too(shared: Server) -> None:
    calls = [{"name": "f", "arguments": {"city": "서울"}}, {"name": "g", "arguments": "{}"}]
    prompt = script(reasoning="Let me think.", text="I look.", tool_calls=calls)
    tools = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
    told = await start(shared, prompt, tools=tools, n=2)
    whole = (await shared.client.get(told["url"])).text.split("\n\n")
    ids = [int(one.split("\n")[-2].removeprefix("id: ")) for one in whole if "id: " in one and "done" not in one]
    for known in ids:
        rest = (await shared.client.get(told["url"], headers={"last-event-id": str(known)})).text.split("\n\n")
        behind = next(index for index, one in enumerate(whole) if f"id: {known}\n" in one)
        assert [one.removeprefix("retry: 2000\n") for one in rest] == whole[behind + 1 :]


async def test_a_chat_stream_that_is_resumable_goes_on_when_its_line_breaks(shared: Server) -> None:
    text = "water " * 60
    body = chat_body(script(text=text, gap=0.005), stream=True, stream_options={"resumable": True})
    request = raw_request(json.dumps(body).encode(), accept="text/event-stream")
    async with hanging_up(shared, request) as reader:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        await reader.readuntil(b"id: 11\n")
    stream_id = next(line.split(": ")[1] for line in head.split("\r\n") if line.startswith("x-mulgil-stream"))
    rest = await read(shared, f"/v1/streams/{stream_id}?offset=11")
    assert "water water" + rest.text == text


async def test_sdk_readers_of_a_resumable_stream_get_no_ids(shared: Server) -> None:
    reply = await shared.chat(script(tokens=3), stream=True, stream_options={"resumable": True})
    assert "id: " not in reply.text
    assert reply.text.endswith("data: [DONE]\n\n")
    assert reply.headers["x-mulgil-stream"].startswith("stream_")


async def test_several_readers_follow_one_answer_and_it_is_charged_once(shared: Server) -> None:
    told = await start(shared, script(tokens=40, gap=0.005))
    readers = await asyncio.gather(*(read(shared, told["url"]) for _ in range(5)))
    assert len({reader.text for reader in readers}) == 1
    assert shared.mulgil.gateway.running == 0


async def test_without_readers_it_is_stopped_after_its_grace_and_with_one_it_is_not(short: Server) -> None:
    lonely = await start(short, script(tokens=10_000, gap=0.01))
    await eventually(lambda: short.engine.load().unfinished == 0)
    assert (await read(short, lonely["url"])).status == "cancelled"
    short.mulgil.streams.delete(next(iter(short.mulgil.streams._streams.values())))
    read_one = await start(short, script(tokens=60, gap=0.01))
    assert (await read(short, read_one["url"])).status == "completed"


async def test_it_is_forgotten_after_its_retention(short: Server) -> None:
    told = await start(short, script(tokens=1))
    await read(short, told["url"])
    await eventually(lambda: len(short.mulgil.streams) == 0)
    gone = await short.client.get(told["url"], headers={"last-event-id": "3"})
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "stream_not_found")


async def test_no_more_are_kept_than_may_be_and_the_oldest_finished_makes_room(short: Server) -> None:
    first = await start(short, script(tokens=1))
    await read(short, first["url"])
    await start(short, script(tokens=500, gap=0.01))
    await start(short, script(tokens=500, gap=0.01))
    assert (await short.client.get(first["url"])).status_code == 404
    refused = await short.client.post("/v1/streams", json=chat_body())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
    assert refused.headers["retry-after"]


async def test_another_tenant_finds_nothing_and_can_stop_nothing(tmp_path: Path) -> None:
    file, (key, record) = KeyFile(tmp_path / "keys.toml"), made(tenant="somebody-else")
    await file.add(record)
    async with serving(settings(keys_file=file.path)) as server:
        told = await start(server, script(tokens=1_000, gap=0.01))
        for method in ("GET", "DELETE"):
            theirs = await server.client.request(method, told["url"], headers={"authorization": f"Bearer {key}"})
            assert (theirs.status_code, theirs.json()["error"]["code"]) == (404, "stream_not_found")
        assert server.engine.load().unfinished == 1


async def test_delete_stops_it_at_once(shared: Server) -> None:
    told = await start(shared, script(tokens=10_000, gap=0.01))
    deleted = await shared.client.delete(told["url"])
    assert deleted.json() == {"id": told["id"], "object": "stream.deleted", "deleted": True}
    await eventually(lambda: shared.engine.load().unfinished == 0, within=1)
    assert (await shared.client.get(told["url"])).status_code == 404


async def test_a_failure_is_told_and_then_the_end(shared: Server) -> None:
    told = await start(shared, script(tokens=20, fail_at=5, gap=0.001))
    whole = await read(shared, told["url"])
    assert whole.status == "failed"
    assert whole.errors[0]["code"] == "engine_error"
    again = await shared.client.get(told["url"], headers={"last-event-id": str(whole.last_id)})
    assert again.status_code == 204


@pytest.mark.parametrize("sent", ["-1", "x", "9" * 13, "²", "999999"])
async def test_an_offset_that_is_none_is_refused(shared: Server, sent: str) -> None:
    told = await start(shared, script(tokens=300, gap=0.01))
    refused = await shared.client.get(told["url"], params={"offset": sent})
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "Last-Event-ID")
    await shared.client.delete(told["url"])


def keyless(server: Server) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=server.url, timeout=10)


async def test_a_ticket_opens_its_own_stream_and_nothing_else(shared: Server) -> None:
    told, other = await start(shared, script(tokens=3)), await start(shared, script(tokens=3))
    async with keyless(shared) as page:
        opened = await page.get(told["url"], params={"ticket": told["ticket"]})
        assert opened.status_code == 200
        assert opened.headers["referrer-policy"] == "no-referrer"
        assert "no-store" in opened.headers["cache-control"]
        assert (await page.get(told["url"], params={"ticket": told["ticket"]})).status_code == 200, "reconnect"
        for method, url in (("GET", other["url"]), ("DELETE", told["url"]), ("GET", "/openapi.json")):
            assert (await page.request(method, url, params={"ticket": told["ticket"]})).status_code == 401
        assert (await page.post("/v1/tickets", params={"ticket": told["ticket"]})).status_code == 401
        assert (await page.get(told["url"], params={"ticket": "tk-wrong"})).status_code == 404
        assert (await page.get(told["url"])).status_code == 401


async def test_a_ticket_that_is_first_used_too_late_opens_nothing(short: Server) -> None:
    told = await start(short, script(tokens=100, gap=0.02))
    async with keyless(short) as page:
        elsewhere = await page.get("/v1/streams/another", params={"ticket": told["ticket"]})
        assert elsewhere.status_code == 401, "and that is no use of it"
        await asyncio.sleep(0.4)
        late = await page.get(told["url"], params={"ticket": told["ticket"]})
    assert (late.status_code, late.json()["error"]["code"]) == (404, "ticket_not_found")


async def test_an_event_source_asks_in_one_line_and_comes_back_to_the_same_answer(
    shared: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    ticket = (await shared.client.post("/v1/tickets")).json()["ticket"]
    question = {"q": script(text="Only once.", gap=0.01), "ticket": ticket}
    async with keyless(shared) as page:
        first, second = await asyncio.gather(*(page.get("/stream", params=question) for _ in range(2)))
        back = await page.get("/stream", params=question, headers={"last-event-id": "5"})
        done = await page.get("/stream", params=question, headers={"last-event-id": "13"})
    for reply, text in ((first, "Only once."), (second, "Only once."), (back, "once.")):
        reader = Read()
        reader.feed(reply.text)
        assert (reader.text, reader.status) == (text, "completed")
        assert reply.text.startswith("retry: 2000\n")
    assert done.status_code == 204
    assert ticket not in "".join(line.getMessage() for line in caplog.records if line.name.startswith("mulgil"))
    missing = await shared.client.get("/stream")
    assert (missing.status_code, missing.json()["error"]["param"]) == (422, "q")


async def test_a_restarted_gateway_knows_no_old_stream() -> None:
    async with serving() as before:
        told = await start(before, script(tokens=2))
    async with serving() as after:
        lost = await after.client.get(told["url"], headers={"last-event-id": "2"})
        assert (lost.status_code, lost.json()["error"]["code"]) == (404, "stream_not_found")


async def test_completions_are_not_resumable_and_say_so(shared: Server) -> None:
    body = {"model": "demo", "prompt": "a", "stream": True, "stream_options": {"resumable": True}}
    refused = await shared.client.post("/v1/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream_options.resumable")
