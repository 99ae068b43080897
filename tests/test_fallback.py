"""What answers instead of a model that cannot: once, before anything is sent, and paid for once."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from harness import MODEL, UNLIMITED, Server, chat_body, serving, settings
from test_budgets import balance

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
