"""LlamaIndex does what its users do."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from clientruns import CLIENTS, KEYS, PYTHON_2, Findings, Grounds, grounds, need


@pytest.fixture(scope="module")
async def places(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Grounds]:
    async with grounds(tmp_path_factory.mktemp("grounds")) as running:
        yield running


@pytest.fixture(scope="module")
async def found(places: Grounds) -> Findings:
    need(PYTHON_2)
    findings = await places.findings(PYTHON_2, Path(CLIENTS / "python/llamaindex_program.py"))
    assert findings["version"].startswith("2.")
    return findings


def test_a_chat_is_the_same_whole_streamed_completed_and_awaited(found: Findings) -> None:
    text = found["chatted"]["text"]
    assert len(text) > 20
    assert found["chatted"]["usage"]["completion_tokens"] > 0
    assert found["streamed"]["text"] == text
    assert found["streamed"]["pieces"] > 3
    assert found["completed"] == text
    assert found["asynchronous"] == {"plain": text, "stream": text}


def test_prompts_are_completed_where_it_is_not_told_that_the_model_chats(found: Findings) -> None:
    read = found["plain completions"]
    assert read["whole"] == read["stream"] != ""
    assert read["chat"]


def test_a_tool_is_called_with_its_arguments(found: Findings) -> None:
    assert found["tools"] == [{"name": "get_weather", "arguments": {"city": "Seoul"}}]


def test_a_structured_answer_is_of_the_callers_class(found: Findings) -> None:
    assert set(found["structured"]) == {"name", "population"}


def test_what_is_searched_for_is_found_by_its_embedding(found: Findings) -> None:
    assert found["embedded"]["nearest"] == "rivers carry water"
    assert len(found["embedded"]["one"]) > 8


def test_an_engine_that_fails_in_the_middle_is_raised_and_not_tried_again(found: Findings, places: Grounds) -> None:
    error = found.raised("failing")
    assert (error["raised"], error["code"]) == ("APIError", "engine_error")
    assert places.requests.statuses(KEYS["failing_key"]) == [200]


def test_an_unknown_model_is_raised_as_such(found: Findings) -> None:
    error = found.raised("no such model")
    assert (error["raised"], error["status"], error["code"]) == ("NotFoundError", 404, "model_not_found")
