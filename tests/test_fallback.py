"""What answers instead of a model that cannot: once, before anything is sent, and paid for once."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from harness import KEY, MODEL, UNLIMITED, Server, chat_body, events, eventually, script, serving, settings, text_of
from pydantic import SecretStr
from sockets import connected, turn
from test_budgets import balance

from mulgil.engine.base import Engine
from mulgil.engine.simulated import SimulatedEngine

HEADER = "x-mulgil-fallback"


@asynccontextmanager
async def falling_back(folder: Path, models: str, **changes: Any) -> AsyncGenerator[Server]:
    path = folder / "mulgil.toml"
    path.write_text(UNLIMITED.read_text() + models)
    async with serving(settings(config=path, **{"max_model_len": 512} | changes)) as server:
        yield server


async def chat(server: Server, body: dict[str, Any], **headers: str) -> httpx2.Response:
    return await server.client.post("/v1/chat/completions", json=body, headers=headers)


def conversation(**fields: Any) -> dict[str, Any]:
    """One that is longer than the context."""
    said = {"role": "user", "content": "water " * 100}, {"role": "assistant", "content": "stone " * 100}
    return chat_body(messages=[*said * 5, {"role": "user", "content": "hello"}], **fields)


SHORT = f"""
[models.{MODEL}]
fallbacks = ["short"]
[models.short]
alias = true
truncation = "auto"
"""


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_too_long_for_a_model_goes_to_the_alias_that_shortens_it(tmp_path: Path, stream: bool) -> None:
    async with falling_back(tmp_path, SHORT) as server:
        answer = await chat(server, conversation(max_tokens=20, stream=stream))
        assert answer.status_code == 200, answer.text
        assert answer.headers[HEADER] == "short"
        assert int(answer.headers["x-mulgil-truncated-messages"]) > 0
        assert f'"model":"{MODEL}"' in answer.text
        used = await balance(server)
        assert (used.requests, used.held_tokens, used.concurrency) == (1, 0, 0)
        assert HEADER not in (await server.chat()).headers


async def test_a_request_that_was_passed_on_is_not_passed_on_again(tmp_path: Path) -> None:
    async with falling_back(tmp_path, SHORT) as server:
        refused = await chat(server, conversation(), **{HEADER: "1"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert HEADER not in refused.headers


async def test_each_fallback_is_tried_once_and_its_own_are_not(tmp_path: Path) -> None:
    models = f"""
[models.{MODEL}]
fallbacks = ["second", "third"]
[models.second]
alias = true
fallbacks = ["fourth", "{MODEL}"]
[models.third]
alias = true
[models.fourth]
alias = true
truncation = "auto"
"""
    async with falling_back(tmp_path, models) as server:
        refused = await chat(server, conversation())
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert (await balance(server)).requests == 0


async def test_what_is_wrong_with_the_request_itself_is_told_and_nobody_else_is_asked(tmp_path: Path) -> None:
    async with falling_back(tmp_path, SHORT) as server:
        for fields, status in (
            ({"max_tokens": 0}, 422),
            ({"model": "none"}, 404),
            ({"logit_bias": {"99999999": 1}}, 422),
        ):
            refused = await chat(server, chat_body(**fields))
            assert refused.status_code == status
            assert HEADER not in refused.headers


async def test_a_hundred_at_once_fall_back_each_for_itself_and_pay_once(tmp_path: Path) -> None:
    async with falling_back(tmp_path, SHORT) as server:
        answers = await asyncio.gather(*(chat(server, conversation(max_tokens=5)) for _ in range(100)))
        assert {answer.status_code for answer in answers} == {200}
        used = await balance(server)
        tokens = [answer.json()["usage"] for answer in answers]
        assert used.requests == 100
        assert used.input_tokens == sum(one["prompt_tokens"] for one in tokens)
        assert used.output_tokens == sum(one["completion_tokens"] for one in tokens)


class Killable:
    """Makes engines, the next one not before it is told to."""

    def __init__(self) -> None:
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.engine = SimulatedEngine()

    async def build(self) -> Engine:
        await self.may_start.wait()
        self.engine = SimulatedEngine()
        return self.engine

    async def kill(self) -> None:
        self.may_start.clear()
        await self.engine.stop()


@asynccontextmanager
async def two_gateways(folder: Path, more: str = "", **changes: Any) -> AsyncGenerator[tuple[Server, Server, Killable]]:
    """One whose engine can be killed, and the one that answers in its place."""
    engines = Killable()
    async with serving(settings(model="elsewhere")) as second:
        models = f"""
[upstreams.second]
url = "{second.url}/v1"
key = "{KEY}"
model = "elsewhere"
[models.{MODEL}]
fallbacks = ["second"]
cache = true
{more}
"""
        (folder / "mulgil.toml").write_text(UNLIMITED.read_text() + models)
        given = settings(config=folder / "mulgil.toml", engine_rebuilds=5, **changes)
        async with serving(given, engine=engines.build) as first:
            yield first, second, engines


async def test_while_the_engine_is_rebuilt_the_other_gateway_answers_and_then_the_own_one_again(tmp_path: Path) -> None:
    async with two_gateways(tmp_path) as (first, second, engines):
        own = await first.chat(max_tokens=20)
        assert HEADER not in own.headers
        await engines.kill()
        await eventually(lambda: first.mulgil.health.state == "rebuilding")
        for stream in (False, True):
            answer = await first.chat(
                max_tokens=20, stream=stream, stream_options={"include_usage": True} if stream else None
            )
            assert answer.status_code == 200, answer.text
            assert answer.headers[HEADER] == "second"
            assert f'"model":"{MODEL}"' in answer.text
            assert "elsewhere" not in answer.text
        usage = events(answer.text)[-2]["usage"]
        there = await balance(second)
        assert (there.requests, there.output_tokens) == (2, 2 * usage["completion_tokens"])
        engines.may_start.set()
        await first.mulgil.supervisor.until_ready()
        again = await first.chat(max_tokens=20)
        assert HEADER not in again.headers
        assert again.json()["choices"] == own.json()["choices"]
        assert (await balance(second)).requests == 2
        spent = await balance(first)
        assert (spent.requests, spent.held_tokens, spent.concurrency) == (4, 0, 0)
        tokens = [one.json()["usage"]["completion_tokens"] for one in (own, again)]
        assert spent.output_tokens == sum(tokens) + 2 * usage["completion_tokens"]


async def test_a_death_in_mid_stream_is_told_and_nobody_else_finishes_the_answer(tmp_path: Path) -> None:
    async with two_gateways(tmp_path) as (first, second, _):
        stream = await first.chat(script(tokens=50, die_at=10), stream=True)
        told = events(stream.text)
        assert told[-1]["error"]["type"] == "server_error"
        assert "[DONE]" not in told
        assert (await balance(second)).requests == 0
        assert (await balance(first)).output_tokens == 10
        await eventually(lambda: first.mulgil.health.state == "ready")
        plain = await first.chat(script(tokens=50, die_at=10))
        assert plain.status_code in (500, 503)
        assert (await balance(second)).requests == 0


async def test_who_waits_too_long_for_a_turn_is_answered_elsewhere(tmp_path: Path) -> None:
    async with two_gateways(tmp_path, max_concurrent_requests=1, queue_timeout=0.1) as (first, second, _):
        holding = asyncio.create_task(first.chat(script(tokens=60, gap=0.02), max_tokens=60))
        await eventually(lambda: first.mulgil.gateway.running == 1)
        answer = await first.chat(max_tokens=5)
        assert (answer.status_code, answer.headers[HEADER]) == (200, "second")
        assert HEADER not in (await holding).headers
        assert (await balance(second)).requests == 1
        assert (await balance(first)).requests == 2


async def test_what_a_fallback_has_answered_is_not_kept_as_the_models_own(tmp_path: Path) -> None:
    async with two_gateways(tmp_path) as (first, _, engines):
        await engines.kill()
        answers = [await first.chat(temperature=0, max_tokens=9) for _ in range(2)]
        assert [one.headers["x-mulgil-cache"] for one in answers] == ["miss", "miss"]
        together = await asyncio.gather(*(first.chat("x", temperature=0, max_tokens=9) for _ in range(10)))
        assert {one.headers[HEADER] for one in together} == {"second"}
        engines.may_start.set()
        await first.mulgil.supervisor.until_ready()
        own = await first.chat(temperature=0, max_tokens=9)
        assert own.headers["x-mulgil-cache"] == "miss"
        assert HEADER not in own.headers


async def test_what_another_gateway_passes_on_neither_shares_an_answer_nor_waits_for_one(tmp_path: Path) -> None:
    async with two_gateways(tmp_path) as (first, _, _engines):
        kept = [await first.chat(temperature=0, max_tokens=9) for _ in range(2)]
        body = chat_body(temperature=0, max_tokens=9)
        passed_on = await chat(first, body, **{HEADER: "1"})
        assert [one.headers["x-mulgil-cache"] for one in (*kept, passed_on)] == ["miss", "hit", "bypass"]


async def test_when_nobody_can_answer_the_first_reason_is_told_and_nothing_is_paid(tmp_path: Path) -> None:
    models = f"""
[upstreams.nowhere]
url = "http://127.0.0.1:9/v1"
[models.{MODEL}]
fallbacks = ["nowhere"]
"""
    async with falling_back(tmp_path, models, max_model_len=None) as server:
        await server.engine.stop()
        refused = await server.chat()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
        assert "127.0.0.1:9" not in refused.text
        assert HEADER not in refused.headers
        assert (await balance(server)).requests == 0


async def test_hanging_up_on_a_fallback_ends_it_there_too(tmp_path: Path) -> None:
    async with two_gateways(tmp_path) as (first, second, engines):
        await engines.kill()
        body = chat_body(script(tokens=4_000, gap=0.01), max_tokens=4_000, stream=True)
        async with first.client.stream("POST", "/v1/chat/completions", json=body) as stream:
            assert stream.headers[HEADER] == "second"
            await anext(stream.aiter_raw())
        await eventually(lambda: second.mulgil.gateway.running == 0)
        await eventually(lambda: first.mulgil.gateway.running == 0)
        assert (await balance(second)).held_tokens == 0
        assert (await balance(first)).held_tokens == 0


async def test_kept_streams_and_turns_on_a_socket_fall_back_too(tmp_path: Path) -> None:
    async with two_gateways(tmp_path) as (first, _, engines):
        await engines.kill()
        content = script(text="물길은 막지 않고 이끈다. 🌊", gap=0.005)
        created = await first.client.post("/v1/streams", json=chat_body(content))
        assert (created.status_code, created.headers[HEADER]) == (201, "second")
        for known in (0, 4):
            read = await first.client.get(created.json()["url"], headers={"last-event-id": str(known)})
            chunks = [event for event in events(read.text) if "choices" in event]
            assert text_of(chunks) == "물길은 막지 않고 이끈다. 🌊"[known:]
        async with connected(first) as connection:
            done = (await turn(connection, content=content))[-1]
        assert (done["type"], done["content"], done["fallback"]) == ("done", "물길은 막지 않고 이끈다. 🌊", "second")


async def test_the_ledger_has_one_row_that_says_who_answered(tmp_path: Path) -> None:
    database = tmp_path / "usage.db"
    async with two_gateways(tmp_path, usage_url=SecretStr(f"sqlite:///{database}")) as (first, _, engines):
        own = await first.chat(max_tokens=8)
        await engines.kill()
        answer = await first.chat(max_tokens=8)
    assert answer.json()["system_fingerprint"] != own.json()["system_fingerprint"]
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute("SELECT model, fallback, completion_tokens FROM mulgil_usage ORDER BY at").fetchall()
    tokens = [one.json()["usage"]["completion_tokens"] for one in (own, answer)]
    assert rows == [(MODEL, None, tokens[0]), (MODEL, "second", tokens[1])]
