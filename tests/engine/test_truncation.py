"""Which turns a conversation loses: whole ones, the oldest, the fewest; held against trying all that could go."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from harness import MODEL
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mulgil.engine.simulated import SimulatedEngine
from mulgil.engine.truncation import Room, decided, fitted, kept, possible_drops, room_for_answer
from mulgil.errors import ContextLengthError
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.schemas.completions import CompletionRequest
from mulgil.schemas.messages import ChatMessage, check_messages

IDS = ("a", "b", "c", "d")  # few, so that they come again
STEPS = (
    "user",
    "user",
    "assistant",
    "assistant",
    "calls",
    "calls",
    "result",
    "result",
    "result",
    "system",
    "developer",
)
LIMITED = hypothesis_settings(max_examples=300, deadline=None, database=None)


@st.composite
def conversations(draw: st.DrawFn) -> list[ChatMessage]:
    """Anything that is accepted: parallel calls, late results, calls without one, systems anywhere, no user at all."""
    messages: list[ChatMessage] = []
    called: list[str] = []
    for step in draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=30)):
        text = "x" * draw(st.integers(0, 30))
        if step == "calls":
            ids = draw(st.lists(st.sampled_from(IDS), min_size=1, max_size=3, unique=True))
            called += ids
            calls = [{"id": one, "function": {"name": "f", "arguments": "{}"}} for one in ids]
            messages.append(message("assistant", None, tool_calls=calls))
        elif step == "result":
            if called:
                messages.append(message("tool", text, tool_call_id=draw(st.sampled_from(called))))
        else:
            messages.append(message(step, text))
    return messages or [message("user", "x")]


def message(role: str, content: str | None, **fields: Any) -> ChatMessage:
    return ChatMessage.model_validate({"role": role, "content": content, **fields})


def asked(messages: Sequence[ChatMessage], **fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest(model=MODEL, messages=list(messages), truncation="auto", **fields)


class Template:
    """Renders a conversation as its messages, and counts them as one token each and one for each character.

    Args:
        limit: the context.
        extra: tokens more for a conversation of so many messages.
    """

    def __init__(self, limit: int, extra: Sequence[int] = (0,)) -> None:
        self.limit = limit
        self.asked = 0
        self._extra = extra

    def count(self, messages: Sequence[ChatMessage]) -> int:
        return sum(1 + len(one.text or "") for one in messages) + self._extra[len(messages) % len(self._extra)]

    async def __call__(self, request: ChatCompletionRequest, free: int) -> list[ChatMessage]:
        self.asked += 1
        count = self.count(request.messages)
        if count + free > self.limit:
            raise ContextLengthError(limit=self.limit, prompt_tokens=count)
        return request.messages


def left(messages: Sequence[ChatMessage], dropped: int) -> list[int]:
    """Where those stand that are left without the *dropped* oldest that no system said."""
    may_go = [index for index, one in enumerate(messages) if one.role not in ("system", "developer")]
    return [index for index in range(len(messages)) if index not in may_go[:dropped]]


def is_whole(messages: Sequence[ChatMessage], there: Sequence[int]) -> bool:
    """Whether what is left is made of whole turns, with the last one, and no call without its results."""
    gone = set(range(len(messages))) - set(there)
    users = [index for index, one in enumerate(messages) if one.role == "user"]
    if gone and (not users or max(gone) >= users[-1]):
        return False
    said = [index for index in there if messages[index].role not in ("system", "developer")]
    if gone and messages[said[0]].role != "user":
        return False
    called: dict[str, int] = {}
    for index, one in enumerate(messages):
        called |= {call.id: index for call in one.tool_calls or ()}
        if one.tool_call_id is not None and (called[one.tool_call_id] in gone) != (index in gone):
            return False
    return True


@LIMITED
@given(conversations(), st.integers(1, 400), st.integers(1, 60))
def test_what_is_left_fits_is_whole_and_is_the_most_that_can_be(
    messages: list[ChatMessage], limit: int, free: int
) -> None:
    template = Template(limit)
    choices = [count for count in range(len(messages)) if is_whole(messages, left(messages, count))]
    fits = [
        count
        for count in choices
        if template.count([messages[index] for index in left(messages, count)]) + free <= limit
    ]
    request = asked(messages, max_tokens=free)
    if not fits:
        with pytest.raises(ContextLengthError):
            asyncio.run(fitted(request, Room(free, free), template))
        return
    found, dropped = asyncio.run(fitted(request, Room(free, free), template))
    assert dropped == min(fits)
    assert found == [messages[index] for index in left(messages, dropped)]
    check_messages(found)
    assert found == [one for one, stays in zip(messages, kept(messages, dropped), strict=True) if stays]
    # The whole one, the shortest one, and a search between them.
    assert template.asked <= (2 + math.ceil(math.log2(len(choices))) if dropped else 1)


@LIMITED
@given(conversations(), st.integers(1, 400), st.lists(st.integers(0, 200), min_size=1, max_size=9))
def test_with_a_template_that_makes_less_longer_it_fits_and_with_one_turn_more_it_does_not(
    messages: list[ChatMessage], limit: int, extra: list[int]
) -> None:
    template = Template(limit, extra)

    def fits(dropped: int) -> bool:
        return template.count([messages[index] for index in left(messages, dropped)]) < limit

    drops = [0, *possible_drops(messages)]
    try:
        _, dropped = asyncio.run(fitted(asked(messages), Room(), template))
    except ContextLengthError:
        assert not fits(0)
        assert not fits(drops[-1])
        return
    assert fits(dropped)
    assert dropped == 0 or not fits(drops[drops.index(dropped) - 1])


@LIMITED
@given(conversations(), st.integers(8, 400))
def test_the_simulated_engine_makes_of_it_the_prompt_of_what_is_left(messages: list[ChatMessage], limit: int) -> None:
    engine = SimulatedEngine(max_model_len=limit)
    try:
        prepared = asyncio.run(engine.prepare(asked(messages, max_tokens=5), tenant="t"))
    except ContextLengthError:
        return
    rest = [messages[index] for index in left(messages, prepared.dropped_messages)]
    alone = asyncio.run(engine.prepare(ChatCompletionRequest(model=MODEL, messages=rest), tenant="t"))
    assert prepared.prompts[0].token_ids == alone.prompts[0].token_ids
    assert prepared.prompts[0].max_tokens == 5
    assert prepared.prompt_tokens + 5 <= limit


TURNS = [message("system", "x"), *(message(role, "x" * 9) for _ in range(4) for role in ("user", "assistant"))]
ASKED = [*TURNS, message("user", "x" * 9)]


async def test_one_that_fits_is_rendered_once_and_is_the_request_itself() -> None:
    template, request = Template(93), asked(ASKED)
    assert await fitted(request, Room(), template) == (ASKED, 0)
    assert template.asked == 1


@pytest.mark.parametrize("truncation", [None, "disabled"])
async def test_nothing_is_left_out_unless_it_is_asked_for(truncation: Any) -> None:
    template = Template(92)
    request = ChatCompletionRequest(model=MODEL, messages=ASKED, truncation=truncation)
    with pytest.raises(ContextLengthError) as refusal:
        await fitted(request, room_for_answer(request, 50, 92), template)
    assert template.asked == 1
    assert "may be dropped" not in refusal.value.message


async def test_the_answer_gets_what_it_asks_for_or_the_request_is_refused() -> None:
    template, request = Template(40), asked(ASKED, max_tokens=29)
    with pytest.raises(ContextLengthError, match="exceed the configured limit of 40 tokens") as refusal:
        await fitted(request, room_for_answer(request, 29, 40), template)
    assert "asks for 29" in refusal.value.message
    assert "resulted in 12 tokens, without the turns that may be dropped" in refusal.value.message
    request = asked(ASKED, max_tokens=28)
    assert await fitted(request, room_for_answer(request, 28, 40), template) == ([ASKED[0], ASKED[-1]], 8)


async def test_where_nobody_says_how_long_it_may_be_the_answer_gets_a_quarter_or_what_there_is() -> None:
    request = asked(ASKED)
    assert room_for_answer(request, 4_096, 80) == Room(20, 1)
    assert room_for_answer(request, 10, 80) == Room(10, 1)
    assert room_for_answer(request, 10, 3) == Room(1, 1)
    assert (await fitted(request, Room(20, 1), Template(100)))[1] == 2
    assert (await fitted(request, Room(20, 1), Template(80)))[1] == 4
    assert (await fitted(request, Room(20, 1), Template(32)))[1] == 8
    assert (await fitted(request, Room(20, 1), Template(13)))[1] == 8
    with pytest.raises(ContextLengthError) as refusal:
        await fitted(request, Room(20, 1), Template(12))
    assert "max_tokens" not in refusal.value.message


async def test_a_search_that_nobody_waits_for_any_more_ends() -> None:
    template = Template(500)
    request = asked([message("user", "x" * 9)] * 1_000)
    searching = asyncio.create_task(fitted(request, Room(), template))
    while template.asked < 3:
        await asyncio.sleep(0)
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching
    assert template.asked < 5


def test_what_a_request_says_counts_more_than_what_is_said_of_its_model() -> None:
    def truncation(default: Literal["auto", "disabled"], **fields: Any) -> str | None:
        request = decided(ChatCompletionRequest(**{"model": MODEL, "messages": ASKED} | fields), default)
        assert isinstance(request, ChatCompletionRequest)
        return request.truncation

    assert truncation("auto") == truncation("disabled", truncation="auto") == "auto"
    assert truncation("auto", truncation="disabled") == truncation("disabled", truncation="disabled") == "disabled"
    assert truncation("disabled") is None
    text = CompletionRequest(model=MODEL, prompt="x")
    assert decided(text, "auto") is text
