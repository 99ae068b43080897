"""What the model says, taken apart: the same however it arrives, and wherever it is cut."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import orjson
import pytest
from harness import Server, chat_body
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mulgil.engine.snapshot import ChoiceSnapshot, StopCause
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.settings import EngineSettings

pytestmark = pytest.mark.model

TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
    for name in ("weather", "time")
]
THOUGHT = "<think>The user wants the weather.\nAnd 물길 🌊.</think>"
CALLS = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "서울 🌊"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {"city": "Busan"}}\n</tool_call>'
)
SAID = THOUGHT + "Let me look." + CALLS


class Parsed:
    """The parsers of the running engine's tokenizer, with settings of their own."""

    def __init__(self, server: Server, reasoning_parser: str | None) -> None:
        from mulgil.engine.vllm.parsing import AnswerParsers  # noqa: PLC0415 - imports vLLM

        llm: Any = server.engine._llm  # type: ignore[attr-defined]  # no second engine for this
        settings = EngineSettings(tool_call_parser="hermes", reasoning_parser=reasoning_parser)
        self.parsers = AnswerParsers(llm, settings)
        self.tokenizer = llm.renderer.tokenizer

    def folded(
        self, text: str, ends: list[int], *, finish: StopCause = "stop", **fields: Any
    ) -> Iterator[ChoiceSnapshot]:
        """The snapshots of *text* when it arrives in steps that end at these tokens."""
        body = {"tools": TOOLS, "tool_choice": "auto"} | fields
        request = ChatCompletionRequest.model_validate(chat_body("?", **body))
        adjusted = self.parsers._adjusted(request, strict=True)  # what adjusted() does aside
        folds = self.parsers.folds(request, adjusted, [1, 2, 3])
        assert folds is not None
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        for end in [*sorted({end for end in ends if 0 < end < len(ids)}), len(ids)]:
            said = self.tokenizer.decode(ids[:end]).rstrip("\ufffd")
            snapshot = ChoiceSnapshot(said, end, finish if end == len(ids) else None)
            yield folds[0](snapshot, ids[:end])


@pytest.fixture(scope="module")
def parsed(vllm_server: Server) -> Parsed:
    return Parsed(vllm_server, "qwen3")


def told(snapshot: ChoiceSnapshot) -> ChoiceSnapshot:
    """A snapshot without what is random in it."""
    return replace(snapshot, tool_calls=tuple(replace(call, id="") for call in snapshot.tool_calls))


def test_reasoning_text_and_calls_are_told_apart(parsed: Parsed) -> None:
    *_, last = parsed.folded(SAID, list(range(200)))
    assert last.reasoning.strip() == "The user wants the weather.\nAnd 물길 🌊."
    assert last.text.strip() == "Let me look."
    assert [(call.name, orjson.loads(call.arguments)) for call in last.tool_calls] == [
        ("weather", {"city": "서울 🌊"}),
        ("time", {"city": "Busan"}),
    ]
    assert len({call.id for call in last.tool_calls}) == 2
    assert all(call.id.startswith("call_") for call in last.tool_calls)
    assert last.finish_reason == "tool_calls"
    assert 0 < last.reasoning_tokens < last.tokens


@hypothesis_settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 200)))
def test_it_only_grows_and_ends_the_same_in_whatever_steps_it_arrives(parsed: Parsed, ends: list[int]) -> None:
    whole = told(list(parsed.folded(SAID, list(range(200))))[-1])
    snapshots = list(parsed.folded(SAID, ends))
    assert told(snapshots[-1]) == whole
    for earlier, later in pairwise(snapshots):
        assert later.text.startswith(earlier.text)
        assert later.reasoning.startswith(earlier.reasoning)
        for before, after in zip(earlier.tool_calls, later.tool_calls, strict=False):
            assert (before.id, before.name) == (after.id, after.name)
            assert after.arguments.startswith(before.arguments)


@pytest.mark.parametrize("length", range(5, len(SAID), 7))
def test_an_answer_that_is_cut_anywhere_shows_no_markup_and_says_so(parsed: Parsed, length: int) -> None:
    *_, last = parsed.folded(SAID[:length], list(range(200)), finish="length")
    assert last.finish_reason == "length"
    assert "<tool_call>" not in last.text
    assert "<think>" not in last.text + last.reasoning
    for call in last.tool_calls:
        assert call.name in ("weather", "time")


def test_parallel_tool_calls_false_leaves_one_call(parsed: Parsed) -> None:
    *_, last = parsed.folded(SAID, list(range(200)), parallel_tool_calls=False)
    assert [call.name for call in last.tool_calls] == ["weather"]


def test_a_text_without_calls_stays_as_it_is(parsed: Parsed) -> None:
    text = "<think></think>Just 1 < 2, and {json: no} <tool box>"
    *_, last = parsed.folded(text, list(range(200)))
    assert last.text.strip() == "Just 1 < 2, and {json: no} <tool box>"
    assert last.finish_reason == "stop"
    assert last.tool_calls == ()


def test_a_parser_that_cannot_work_with_the_model_is_said_at_the_start(vllm_server: Server) -> None:
    with pytest.raises(TypeError, match="ernie45"):
        Parsed(vllm_server, "ernie45")
