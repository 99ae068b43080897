"""The Vercel AI SDK does what its users do, with the provider for compatible servers and the one for OpenAI."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from clientruns import CLIENTS, KEYS, NODE_MODULES, Findings, Grounds, grounds, need, node
from harness import MODEL

both_providers = pytest.mark.parametrize("provider", ["compatible", "openai"])


@pytest.fixture(scope="module")
async def places(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Grounds]:
    async with grounds(tmp_path_factory.mktemp("grounds")) as running:
        yield running


@pytest.fixture(scope="module")
async def found(places: Grounds) -> Findings:
    need(NODE_MODULES / "installed")
    findings = await places.findings(node(), Path(CLIENTS / "node/vercel_program.mjs"))
    assert findings["version"].startswith("7.")
    return findings


@both_providers
def test_a_text_is_the_same_generated_and_streamed_with_its_usage(found: Findings, provider: str) -> None:
    whole, stream = found[f"generated ({provider})"], found[f"streamed ({provider})"]
    assert len(whole["text"]) > 20
    assert stream["text"] == whole["text"]
    assert stream["pieces"] > 3
    assert whole["finishReason"] == stream["finishReason"] == "stop"
    assert whole["model"] == MODEL
    assert whole["id"].startswith("chatcmpl-")
    for name in ("inputTokens", "outputTokens", "totalTokens"):
        assert whole["usage"][name] == stream["usage"][name] > 0


@both_providers
def test_a_tool_is_called_and_its_result_is_answered(found: Findings, provider: str) -> None:
    trip = found[f"tool round trip ({provider})"]
    assert trip["inputs"] == [{"city": "Seoul"}]
    assert trip["results"] == ["Rain in Seoul."]
    assert trip["finishReasons"] == ["tool-calls", "stop"]
    assert trip["text"]
    assert found[f"tool streamed ({provider})"] == [{"city": "Seoul"}]


def test_a_structured_answer_is_of_the_schema(found: Findings) -> None:
    assert set(found["object"]) == {"name", "population"}
    assert isinstance(found["object"]["population"], int)


def test_the_models_reasoning_is_beside_its_answer(found: Findings) -> None:
    assert found["reasoned"] == {"text": "A river.", "reasoning": "It is wet.", "streamed": "It is wet."}


def test_texts_are_embedded_one_and_many_alike(found: Findings) -> None:
    read = found["embedded"]
    assert read["one"] == read["many"][0] != read["many"][1]
    assert read["tokens"] > 0


def test_an_unknown_model_is_an_error_plain_and_streamed(found: Findings) -> None:
    plain, stream = found.raised("no such model"), found["no such model streamed"]["error"]
    for error in (plain, stream):
        assert error["status"] == 404
        assert "does not exist" in error["message"]


@both_providers
def test_an_engine_that_fails_in_the_middle_is_an_error_after_the_text_so_far(found: Findings, provider: str) -> None:
    parts = found[f"failing ({provider})"]
    assert parts["text"]
    assert "error" in parts["kinds"]
    assert "as it was told to" in parts["error"]["message"]
    assert parts["finishReason"] == "error"


def test_hanging_up_stops_the_engine_while_the_client_lives_on(found: Findings) -> None:
    assert found["hanging up"] == {"before": 1, "after": 0}


@pytest.mark.parametrize(
    ("check", "key", "answer"),
    [
        ("rate limited", "limited_key", (429, "rate_limit_exceeded")),
        ("unavailable", "unavailable_key", (503, "limiter_unavailable")),
        ("never fits", "never_key", (429, "request_exceeds_limit")),  # it knows nothing of x-should-retry
    ],
)
def test_what_is_refused_is_tried_three_times_and_then_raised(
    found: Findings, places: Grounds, check: str, key: str, answer: tuple[int, str]
) -> None:
    error = found[check]
    assert (error["raised"], error["status"], error["code"]) == ("AI_RetryError", *answer)
    assert error["tries"] == 3
    assert places.requests.statuses(KEYS[key]) == [answer[0]] * 3


def test_a_stream_that_failed_is_not_tried_again(found: Findings, places: Grounds) -> None:
    assert found["failing (compatible)"]["error"]
    assert places.requests.statuses(KEYS["failing_key"]) == [200]
