"""The response cache as a client meets it."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from cached import cached, generations
from harness import KEY, MODEL, Server, chat_body, events, eventually, hanging_up, raw_request, script
from keyrecords import record_of
from pydantic import SecretStr
from streams import chat_choices, completion_choices

from mulgil.admission.store import Account
from mulgil.auth.file import KeyFile

OTHER = "sk-mg-other-key-of-the-cache"
STRANGER = "sk-mg-key-of-another-tenant"
HEADER = "x-mulgil-cache"
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[Server]:
    """With two keys of one tenant, and one of another."""
    keys = KeyFile(tmp_path / "keys.toml")
    (tmp_path / "keys.toml").touch()
    await keys.add(record_of(STRANGER, tenant="strangers", created=datetime.now(UTC)))
    given: dict[str, Any] = {
        "api_keys": (SecretStr(KEY), SecretStr(OTHER)),
        "keys_file": tmp_path / "keys.toml",
        "metrics_port": 0,
    }
    async with cached(tmp_path, **given) as running:
        yield running


async def ask(
    server: Server, content: str = "hello", *, key: str = KEY, control: str = "", **fields: Any
) -> httpx2.Response:
    headers = {"authorization": f"Bearer {key}"} | ({"cache-control": control} if control else {})
    body = chat_body(content, **{"temperature": 0} | fields)
    reply = await server.client.post("/v1/chat/completions", json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply


async def complete(server: Server, **fields: Any) -> httpx2.Response:
    reply = await server.client.post("/v1/completions", json={"model": MODEL, "temperature": 0} | fields)
    assert reply.status_code == 200, reply.text
    return reply


def content_of(reply: httpx2.Response) -> Any:
    return reply.json()["choices"]


async def test_the_second_answer_is_the_first_one_and_costs_no_tokens(server: Server) -> None:
    first, second = [await ask(server) for _ in range(2)]
    assert (first.headers[HEADER], second.headers[HEADER]) == ("miss", "hit")
    assert content_of(first) == content_of(second)
    assert first.json()["id"] != second.json()["id"]
    made, told = first.json()["usage"], second.json()["usage"]
    assert made["prompt_tokens_details"]["cached_tokens"] == 0
    assert told == made | {"prompt_tokens_details": {"cached_tokens": made["prompt_tokens"]}}
    assert generations(server) == 1


async def test_a_hundred_at_once_are_one_generation_and_a_hundred_right_answers(server: Server) -> None:
    keys = [KEY, OTHER]
    replies = await asyncio.gather(
        *(ask(server, script(tokens=20, gap=0.002), key=keys[i % 2], stream=i % 4 < 2) for i in range(100))
    )
    assert generations(server) == 1
    texts = set()
    for reply in replies:
        if reply.headers["content-type"].startswith("text/event-stream"):
            stream = events(reply.text)
            assert stream.pop() == "[DONE]"
            texts.add(chat_choices(stream)[0]["message"]["content"])
        else:
            texts.add(content_of(reply)[0]["message"]["content"])
    assert len(texts) == 1
    assert sorted(reply.headers[HEADER] for reply in replies) == ["hit"] * 99 + ["miss"]
    balances = [await balance(server, key) for key in keys]
    assert [one.requests for one in balances] == [50, 50]
    assert sum(one.output_tokens for one in balances) == 20
    assert sum(one.input_tokens for one in balances) == content_of_usage(replies)["prompt_tokens"]


def content_of_usage(replies: list[httpx2.Response]) -> dict[str, int]:
    usage: dict[str, int] = replies[-1].json()["usage"]
    return usage


async def balance(server: Server, key: str) -> Any:
    caller = await server.mulgil.keys.find(key.encode())
    assert caller is not None
    return (await server.mulgil.store.balances(Account(caller.tenant, caller.key_id))).key


async def test_a_first_client_that_hangs_up_does_not_hurt_the_next(server: Server) -> None:
    question = script(tokens=100, gap=0.003)
    body = orjson.dumps(chat_body(question, temperature=0, stream=True))
    async with hanging_up(server, raw_request(body)) as reader:
        await reader.readuntil(b'"content":"')
        second = asyncio.create_task(ask(server, question, key=OTHER))
        await eventually(lambda: len(server.mulgil.answers._leaving) == 2)
    reply = await second
    assert len(content_of(reply)[0]["message"]["content"].split()) == 100
    assert reply.headers[HEADER] == "hit"
    assert generations(server) == 1
    await eventually(lambda: not server.mulgil.leases.live)
    assert (await balance(server, KEY)).output_tokens == 100
    assert (await balance(server, OTHER)).output_tokens == 0


async def test_no_tenant_meets_an_answer_of_another(server: Server) -> None:
    for key in (KEY, OTHER, STRANGER, STRANGER):
        await ask(server, key=key)
    assert generations(server) == 2
    found = await asyncio.gather(*(ask(server, "once more", key=key) for key in (KEY, STRANGER)))
    assert [reply.headers[HEADER] for reply in found] == ["miss", "miss"]


@pytest.mark.parametrize(
    ("control", "told", "after"),
    [
        ("no-store", "bypass", "miss"),
        ("no-cache", "miss", "hit"),
        ("max-age=0", "miss", "hit"),
        ("max-age=60", "miss", "hit"),
    ],
)
async def test_what_the_client_asks_of_the_cache_is_done(server: Server, control: str, told: str, after: str) -> None:
    assert (await ask(server, control=control)).headers[HEADER] == told
    assert (await ask(server)).headers[HEADER] == after


@pytest.mark.parametrize(
    ("control", "told"), [("no-store", "bypass"), ("no-cache", "miss"), ("max-age=0", "miss"), ("max-age=60", "hit")]
)
async def test_an_answer_that_is_there_is_told_to_those_alone_who_want_it(
    server: Server, control: str, told: str
) -> None:
    await ask(server)
    assert (await ask(server, control=control)).headers[HEADER] == told
    assert generations(server) == (1 if told == "hit" else 2)


async def test_what_cannot_be_repeated_is_not_kept(server: Server) -> None:
    for _ in range(2):
        assert (await ask(server, temperature=1)).headers[HEADER] == "bypass"
    for expected in ("miss", "hit"):
        assert (await ask(server, temperature=1, seed=7)).headers[HEADER] == expected
    assert generations(server) == 3


async def test_a_model_that_is_not_to_be_cached_says_nothing_of_it(shared: Server) -> None:
    replies = [await shared.chat("never kept", temperature=0) for _ in range(2)]
    assert all(HEADER not in reply.headers for reply in replies)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"content": script(text="Some words. And  more\n\nof 한국어 and 🌊! ", split_characters=True)},
        {"logprobs": True, "top_logprobs": 2},
        {"content": script(tool_calls=[{"name": "get_weather", "arguments": {"city": "Oslo"}}]), "tools": [WEATHER]},
        {"content": script(reasoning="First I think.", text="Then I say.")},
        {"temperature": 1, "seed": 5, "n": 3},
        {"max_tokens": 2},
        {"response_format": {"type": "json_object"}},
    ],
)
@pytest.mark.parametrize("chunking", ["token", "word", "sentence", {"interval_ms": 1}])
async def test_a_stream_of_a_kept_answer_says_the_same_byte_for_byte(
    server: Server, fields: dict[str, Any], chunking: Any
) -> None:
    asked: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True, "chunking": chunking}}
    made, told = [await ask(server, **fields, **asked) for _ in range(2)]
    plain = await ask(server, **fields)
    assert (made.headers[HEADER], told.headers[HEADER], plain.headers[HEADER]) == ("miss", "hit", "hit")
    streams = [events(reply.text) for reply in (made, told)]
    assert [stream.pop() for stream in streams] == ["[DONE]"] * 2
    usages = [stream.pop()["usage"] for stream in streams]
    assert (
        usages[0]["completion_tokens"] == usages[1]["completion_tokens"] == plain.json()["usage"]["completion_tokens"]
    )
    assert chat_choices(streams[0]) == chat_choices(streams[1]) == content_of(plain)
    assert generations(server) == 1


async def test_words_of_a_kept_answer_come_as_whole_words(server: Server) -> None:
    asked: dict[str, Any] = {
        "content": script(text="one two three four"),
        "stream": True,
        "stream_options": {"chunking": "word"},
    }
    await ask(server, **asked)
    told = await ask(server, **asked)
    assert told.headers[HEADER] == "hit"
    pieces = [chunk["choices"][0]["delta"].get("content") for chunk in events(told.text)[1:-2]]
    assert pieces == ["one", " two ", "three ", "four"]


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "hello"},
        {"prompt": ["one", "two"], "logprobs": 2, "echo": True},
        {"prompt": "hello", "best_of": 3, "n": 2, "temperature": 1, "seed": 1},
    ],
)
async def test_completions_are_kept_too(server: Server, fields: dict[str, Any]) -> None:
    made, told = [await complete(server, **fields) for _ in range(2)]
    assert (made.headers[HEADER], told.headers[HEADER]) == ("miss", "hit")
    assert content_of(made) == content_of(told)
    if "best_of" not in fields:
        stream = events((await complete(server, **fields, stream=True)).text)
        assert completion_choices(stream[:-1]) == content_of(told)
    assert generations(server) == 1


async def test_a_failure_or_a_half_answer_is_never_kept(server: Server) -> None:
    failing = chat_body(script(fail_at=3), temperature=0)
    for _ in range(2):
        assert (await server.client.post("/v1/chat/completions", json=failing)).status_code == 500
    body = orjson.dumps(chat_body(script(tokens=500, gap=0.01), temperature=0, stream=True))
    async with hanging_up(server, raw_request(body)) as reader:
        await reader.readuntil(b'"content":"')
    await eventually(lambda: not server.mulgil.leases.live)
    await ask(server, script(finish="content_filter"))
    assert server.mulgil.answers._cache.store.held == (0, 0)


async def test_a_body_that_names_a_field_twice_is_one_request_to_all(server: Server) -> None:
    twice = raw_body(b'"a question of the cache"', b'"a question of the engine"')
    reply = await server.client.post(
        "/v1/chat/completions", content=twice, headers={"content-type": "application/json"}
    )
    assert reply.headers[HEADER] == "miss"
    assert (await ask(server, "a question of the engine")).headers[HEADER] == "hit"
    assert (await ask(server, "a question of the cache")).headers[HEADER] == "miss"


def raw_body(first: bytes, second: bytes) -> bytes:
    return (
        b'{"model": "demo", "temperature": 0, "messages": [{"role": "user", "content": ' + first + b"}], "
        b'"messages": [{"role": "user", "content": ' + second + b"}]}"
    )


async def test_what_is_kept_is_told_while_there_is_no_engine(server: Server) -> None:
    made = await ask(server)
    await server.engine.stop()
    assert content_of(await ask(server)) == content_of(made)
    other = await server.client.post("/v1/chat/completions", json=chat_body("another question", temperature=0))
    assert other.status_code == 503


async def test_a_hit_is_told_apart_in_the_log_and_in_metrics(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mulgil.telemetry.access")
    await ask(server)
    await ask(server)
    await ask(server, temperature=1)
    await eventually(lambda: len(lines(caplog)) == 3)
    made, told, passed = lines(caplog)
    assert [line["cache"] for line in (made, told, passed)] == ["miss", "hit", "bypass"]
    assert made["completion_tokens"] > 0
    assert [told[name] for name in ("prompt_tokens", "cached_tokens", "completion_tokens")] == [0, 0, 0]
    assert told["finish"] == made["finish"]
    assert server.mulgil.metrics_port is not None
    async with httpx2.AsyncClient() as prometheus:
        page = (await prometheus.get(f"http://127.0.0.1:{server.mulgil.metrics_port.port}/metrics")).text
    for result in ("hit", "miss", "bypass"):
        assert f'mulgil_response_cache_total{{model="demo",result="{result}",tier="default"}} 1.0' in page
    assert "mulgil_response_cache_entries 1.0" in page
    assert 'mulgil_response_cache_failures_total{reason="ignored"} 0.0' in page


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [fields for record in caplog.records if (fields := getattr(record, "fields", None))]


async def test_the_header_is_described_and_pages_of_other_origins_may_read_it(tmp_path: Path) -> None:
    async with cached(tmp_path, cors_origins=("https://pages.example",)) as server:
        headers = {"origin": "https://pages.example"}
        reply = await server.client.post("/v1/completions", json={"model": MODEL, "prompt": "a"}, headers=headers)
        assert HEADER in reply.headers["access-control-expose-headers"]
        paths = (await server.client.get("/openapi.json")).json()["paths"]
    for path in ("/v1/chat/completions", "/v1/completions"):
        assert HEADER in paths[path]["post"]["responses"]["200"]["headers"]
