"""The OpenAI SDKs do what their users do: Python, both majors and strict about every field, and Node."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from clientruns import CLIENTS, KEYS, NODE_MODULES, PYTHON_2, PYTHON_3, Findings, Grounds, grounds, need, node
from embeddings import EMBEDDER
from harness import MODEL

CITY = {"city": "Seoul"}
PROGRAMS: dict[str, tuple[str | Path, Path, str]] = {
    "python 3": (PYTHON_3, CLIENTS / "python/openai_program.py", "3."),
    "python 2": (PYTHON_2, CLIENTS / "python/openai_program.py", "2."),
    "node": (node(), CLIENTS / "node/openai_program.mjs", "7."),
}


@pytest.fixture(scope="module")
async def places(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Grounds]:
    async with grounds(tmp_path_factory.mktemp("grounds")) as running:
        yield running


@pytest.fixture(scope="module", params=list(PROGRAMS))
async def met(request: pytest.FixtureRequest, places: Grounds) -> tuple[Findings, dict[str, list[int]]]:
    """What this client found, and what the requests of each key were answered with."""
    interpreter, program, version = PROGRAMS[request.param]
    need(NODE_MODULES / "installed" if request.param == "node" else Path(interpreter))
    before = {name: len(places.requests.statuses(key)) for name, key in KEYS.items()}
    findings = await places.findings(interpreter, program)
    assert findings["version"].startswith(version)
    return findings, {name: places.requests.statuses(key)[before[name] :] for name, key in KEYS.items()}


@pytest.fixture
def found(met: tuple[Findings, dict[str, list[int]]]) -> Findings:
    return met[0]


@pytest.fixture
def statuses(met: tuple[Findings, dict[str, list[int]]]) -> dict[str, list[int]]:
    return met[1]


def content(completion: dict[str, Any], index: int = 0) -> str:
    text: str = completion["choices"][index]["message"]["content"]
    return text


def streamed(chunks: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def test_an_answer_is_the_same_plain_streamed_and_by_the_helper(found: Findings) -> None:
    answer = found["chat"]
    assert len(content(answer)) > 20
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert streamed(found["stream"]) == content(answer)
    assert found["stream"][-1]["usage"] == answer["usage"]
    assert found["stream"][-1]["choices"] == []
    assert content(found["helper"]["final"]) == content(answer)


def test_all_chunks_of_a_stream_share_id_created_and_model(found: Findings) -> None:
    assert {(chunk["created"], chunk["model"]) for chunk in found["stream"]} == {(found["stream"][0]["created"], MODEL)}
    assert len({chunk["id"] for chunk in found["stream"]}) == 1


def test_two_choices_are_two_texts_plain_and_streamed(found: Findings) -> None:
    plain = found["two choices"]
    assert [choice["index"] for choice in plain["choices"]] == [0, 1]
    assert content(plain, 0) != content(plain, 1)
    for index in (0, 1):
        assert content(found["two choices streamed"]["final"], index) == content(plain, index)


def test_headers_tell_the_request_id_the_time_and_what_is_left(found: Findings) -> None:
    headers = found["raw"]["headers"]
    assert headers["x-request-id"] == found["raw"]["request_id"]
    assert headers["x-request-id"].startswith("req_")
    assert int(headers["openai-processing-ms"]) >= 0
    assert found["raw"]["id"].startswith("chatcmpl-")


def test_a_page_of_answers_that_is_cut_says_so(found: Findings) -> None:
    assert found["cut"]["choices"][0]["finish_reason"] == "length"
    assert found["cut"]["usage"]["completion_tokens"] == 3


def test_the_asynchronous_client_reads_the_same(found: Findings) -> None:
    assert found["asynchronous"]["plain"] == found["asynchronous"]["stream"] == content(found["chat"])


def test_a_tool_is_called_and_its_result_is_answered(found: Findings) -> None:
    asked = found["tool round trip"]["asked"]
    (call,) = asked["message"]["tool_calls"]
    assert asked["finish_reason"] == "tool_calls"
    assert (call["type"], call["function"]["name"]) == ("function", "get_weather")
    assert content(found["tool round trip"]["answer"])


def test_calls_are_the_same_plain_streamed_and_put_together(found: Findings) -> None:
    for completion in (found["tools"], found["tools streamed"]["final"], found["tools accumulated"]):
        choice = completion["choices"][0]
        (call,) = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls"
        assert call["id"]
        assert call["function"]["name"] == "get_weather"
        assert call["function"]["arguments"].replace(" ", "") == '{"city":"Seoul"}'


def test_a_structured_answer_is_an_object_of_the_callers_class(found: Findings) -> None:
    for way in ("parsed", "parsed stream"):
        assert set(found[way]) == {"name", "population"}
        assert isinstance(found[way]["population"], int)


def test_a_structured_answer_that_is_cut_is_raised_and_never_half_an_object(found: Findings) -> None:
    assert found.raised("parsed although cut")["raised"] == "LengthFinishReasonError"


def test_json_mode_gives_json(found: Findings) -> None:
    assert found["json mode"].lstrip().startswith("{")


def test_the_models_reasoning_is_beside_its_answer(found: Findings) -> None:
    message = found["reasoning"]["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("It is wet.", "A river.")
    deltas = [choice["delta"] for chunk in found["reasoning streamed"] for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "It is wet."
    assert streamed(found["reasoning streamed"]) == "A river."


def test_log_probabilities_are_of_the_tokens_that_make_the_text(found: Findings) -> None:
    whole = found["logprobs"]["choices"][0]
    tokens = whole["logprobs"]["content"]
    assert b"".join(bytes(one["bytes"]) for one in tokens).decode() == whole["message"]["content"]
    for one in tokens:
        assert one["logprob"] <= 0
        assert len(one["top_logprobs"]) == 2
    parts = [
        one
        for chunk in found["logprobs streamed"]
        for choice in chunk["choices"]
        for one in (choice["logprobs"] or {}).get("content") or []
    ]
    assert parts == tokens


def test_prompts_are_completed_one_choice_for_each(found: Findings) -> None:
    plain = found["completions"]["prompts"]
    assert plain["object"] == "text_completion"
    assert [choice["index"] for choice in plain["choices"]] == [0, 1]
    assert plain["usage"]["completion_tokens"] <= 10
    stream = found["completions"]["stream"]
    text = "".join(choice["text"] for chunk in stream for choice in chunk["choices"])
    assert text == plain["choices"][0]["text"]


def test_embeddings_are_the_same_packed_and_as_numbers(found: Findings) -> None:
    read = found["embeddings"]
    assert read["index"] == [0, 1]
    assert read["usage"]["prompt_tokens"] == read["usage"]["total_tokens"] > 0
    for packed, plain in zip(read["packed"], read["plain"], strict=True):
        assert packed == pytest.approx(plain, abs=1e-6)
    assert read["packed"][0] != read["packed"][1]


def test_models_are_listed_and_retrieved(found: Findings) -> None:
    assert found["models"] == {"list": [MODEL, EMBEDDER], "one": MODEL}


@pytest.mark.parametrize(
    ("check", "fields"),
    [
        ("no such model", ("NotFoundError", 404, "model_not_found", "model")),
        ("out of range", ("UnprocessableEntityError", 422, "decimal_above_max_value", "temperature")),
        ("wrong key", ("AuthenticationError", 401, "invalid_api_key", None)),
        ("too long", ("BadRequestError", 400, "context_length_exceeded", "messages")),
        ("rate limited", ("RateLimitError", 429, "rate_limit_exceeded", None)),
        ("never fits", ("RateLimitError", 429, "request_exceeds_limit", None)),
        ("unavailable", ("InternalServerError", 503, "limiter_unavailable", None)),
    ],
)
def test_what_is_refused_is_raised_as_the_right_type_with_its_fields(
    found: Findings, check: str, fields: tuple[str, int, str, str | None]
) -> None:
    error = found.raised(check)
    assert (error["raised"], error["status"], error["code"], error["param"]) == fields
    assert error["request_id"].startswith("req_")


def test_an_engine_that_fails_in_the_middle_is_raised_and_not_tried_again(
    found: Findings, statuses: dict[str, list[int]]
) -> None:
    for check in ("failing", "failing helper"):
        error = found.raised(check)
        assert (error["raised"], error["status"], error["code"]) == ("APIError", None, "engine_error")
        assert error["type"] == "server_error"
    assert statuses["failing_key"] == [200]


def test_hanging_up_stops_the_engine_while_the_client_lives_on(found: Findings) -> None:
    assert found["hanging up"] == {"before": 1, "after": 0}


def test_what_is_worth_another_try_is_tried_three_times_and_what_never_fits_once(
    statuses: dict[str, list[int]],
) -> None:
    assert statuses["limited_key"] == [429, 429, 429]
    assert statuses["unavailable_key"] == [503, 503, 503]
    assert statuses["never_key"] == [429]
