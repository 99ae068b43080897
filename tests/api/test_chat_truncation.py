"""A conversation that does not fit: refused, or without its oldest turns, and then everybody is told."""

import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from harness import KEY, MODEL, UNLIMITED, Server, events, script, serving, settings

CONTEXT = 512
HEADER = "x-mulgil-truncated-messages"
SYSTEM = {"role": "system", "content": "be brief"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def history(turns: int, words: int = 20) -> list[dict[str, Any]]:
    """A system's message and so many turns, of twice as many tokens as words for each of two messages."""
    said = [{"role": "user", "content": "water " * words}, {"role": "assistant", "content": "stone " * words}]
    return [SYSTEM, *said * turns]


def conversation(turns: int = 20, ask: str = "hello", **fields: Any) -> dict[str, Any]:
    """Its body; 20 turns are more than three times as long as the context."""
    return {"model": MODEL, "messages": [*history(turns), {"role": "user", "content": ask}], **fields}


@pytest.fixture(scope="module")
async def small() -> AsyncGenerator[Server]:
    """A gateway whose model has a small context."""
    async with serving(settings(max_model_len=CONTEXT, metrics_port=0)) as running:
        yield running


async def chat(server: Server, body: dict[str, Any]) -> httpx2.Response:
    return await server.client.post("/v1/chat/completions", json=body)


async def count(server: Server, messages: list[dict[str, Any]]) -> int:
    answer = await server.client.post("/v1/tokenize", json={"model": MODEL, "messages": messages})
    tokens: int = answer.json()["count"]
    return tokens


async def test_the_oldest_turns_go_until_the_prompt_and_its_answer_fit(small: Server) -> None:
    body = conversation(truncation="auto", max_tokens=30)
    answer = await chat(small, body)
    assert answer.status_code == 200, answer.text
    dropped = int(answer.headers[HEADER])
    assert dropped % 2 == 0
    used = answer.json()["usage"]["prompt_tokens"]
    assert used == await count(small, [SYSTEM, *body["messages"][1 + dropped :]])
    assert used + 30 <= CONTEXT
    assert await count(small, [SYSTEM, *body["messages"][dropped - 1 :]]) + 30 > CONTEXT


async def test_a_stream_and_a_kept_stream_say_it_too(small: Server) -> None:
    body = conversation(truncation="auto", max_tokens=30)
    plain = await chat(small, body)
    asked = body | {"stream": True, "stream_options": {"include_usage": True, "resumable": True}}
    kept = await chat(small, asked)
    created = await small.client.post("/v1/streams", json=body)
    read = await small.client.get(created.json()["url"])
    del asked["stream_options"]["resumable"]
    stream = await chat(small, asked)
    for answer in (stream, kept, created, read):
        assert answer.headers[HEADER] == plain.headers[HEADER]
    for told in (stream, kept):
        assert events(told.text)[-2]["usage"] == plain.json()["usage"]


@pytest.mark.parametrize("fields", [{}, {"truncation": None}, {"truncation": "disabled"}])
@pytest.mark.parametrize("stream", [False, True])
async def test_unless_it_is_asked_for_one_that_does_not_fit_is_refused(
    small: Server, fields: dict[str, Any], stream: bool
) -> None:
    answer = await chat(small, conversation(stream=stream, **fields))
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert HEADER not in answer.headers


async def test_one_that_fits_loses_nothing_and_nothing_is_said(small: Server) -> None:
    body = conversation(3)
    plain, same = await chat(small, body), await chat(small, body | {"truncation": "auto"})
    assert HEADER not in same.headers
    assert same.json()["choices"] == plain.json()["choices"]
    assert same.json()["usage"] == plain.json()["usage"]


async def test_max_tokens_is_clamped_to_the_context_and_with_truncation_it_is_room_that_is_made(small: Server) -> None:
    body = conversation(4, script(tokens=1_000), max_tokens=300)
    clamped, made = await chat(small, body), await chat(small, body | {"truncation": "auto"})
    assert clamped.json()["usage"]["total_tokens"] == CONTEXT
    assert clamped.json()["choices"][0]["finish_reason"] == "length"
    assert made.json()["usage"]["completion_tokens"] == 300
    assert int(made.headers[HEADER]) > 0
    refused = await chat(small, body | {"truncation": "auto", "max_completion_tokens": 500, "max_tokens": None})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "'max_tokens' asks for 500" in refused.json()["error"]["message"]


async def test_without_max_tokens_a_quarter_of_the_context_is_kept_free(small: Server) -> None:
    answer = await chat(small, conversation(ask=script(tokens=1_000), truncation="auto"))
    used = answer.json()["usage"]
    assert CONTEXT * 3 // 4 - 100 < used["prompt_tokens"] <= CONTEXT * 3 // 4
    assert used["total_tokens"] == CONTEXT


async def test_a_last_turn_that_does_not_fit_alone_is_refused(small: Server) -> None:
    answer = await chat(small, conversation(ask="water " * 300, truncation="auto"))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert "without the turns that may be dropped" in error["message"]


async def test_the_work_of_the_last_turn_stays_with_its_calls_and_results(small: Server) -> None:
    body = conversation(20, "look it up", truncation="auto", max_tokens=30)
    work = [
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL | {"id": "d"}]},
        {"role": "tool", "tool_call_id": "d", "content": "stone " * 60},
        {"role": "tool", "tool_call_id": "c", "content": "stone " * 60},
    ]
    answer = await chat(small, body | {"messages": body["messages"] + work})
    dropped = int(answer.headers[HEADER])
    rest = [SYSTEM, *body["messages"][1 + dropped :], *work]
    assert answer.json()["usage"]["prompt_tokens"] == await count(small, rest)


async def test_tokenize_counts_what_it_is_given(small: Server) -> None:
    messages = conversation()["messages"]
    asked = {"model": MODEL, "messages": messages}
    plain = await small.client.post("/v1/tokenize", json=asked)
    assert (await small.client.post("/v1/tokenize", json=asked | {"truncation": "auto"})).json() == plain.json()
    assert plain.json()["count"] > CONTEXT


@pytest.mark.parametrize("value", ["always", "", 1, True, {}])
async def test_anything_else_is_a_422_that_names_the_field(small: Server, value: Any) -> None:
    answer = await chat(small, conversation(1, truncation=value))
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "truncation")


async def test_a_model_may_have_it_by_default_and_a_request_may_do_without(tmp_path: Path) -> None:
    config = tmp_path / "mulgil.toml"
    limits = UNLIMITED.read_text().replace('input_tokens_per_minute = "unlimited"', "input_tokens_per_minute = 1_000")
    config.write_text(f'{limits}\n[models.{MODEL}]\ntruncation = "auto"\n')
    async with serving(settings(max_model_len=CONTEXT, config=config)) as server:
        answer = await chat(server, conversation(max_tokens=30))
        assert int(answer.headers[HEADER]) > 0
        # Budgets are of the prompt that the model was given.
        left = int(answer.headers["x-ratelimit-remaining-input-tokens"])
        assert left == 1_000 - answer.json()["usage"]["prompt_tokens"]
        assert (await chat(server, conversation(truncation="disabled"))).status_code == 400


async def test_operators_are_told(small: Server, caplog: pytest.LogCaptureFixture) -> None:
    async def told(name: str) -> float:
        assert small.mulgil.metrics_port is not None
        async with httpx2.AsyncClient() as prometheus:
            text = (await prometheus.get(f"http://127.0.0.1:{small.mulgil.metrics_port.port}/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith(f'{name}{{model="{MODEL}",tier="default"}}')]
        return sum(float(line.split()[-1]) for line in lines)

    names = ("mulgil_truncated_conversations_total", "mulgil_truncated_messages_total")
    before = [await told(name) for name in names]
    caplog.set_level(logging.INFO, "mulgil.telemetry.access")
    answer = await chat(small, conversation(truncation="auto", max_tokens=30))
    await chat(small, conversation(1, truncation="auto"))
    dropped = int(answer.headers[HEADER])
    assert [await told(name) for name in names] == [before[0] + 1, before[1] + dropped]
    first, second = [fields for record in caplog.records if (fields := getattr(record, "fields", None))]
    assert first["truncated_messages"] == dropped
    assert "truncated_messages" not in second
    assert KEY not in str(first)
