"""Which messages of a conversation are left out, so that the rest fits the context: whole turns, the oldest first.

A turn is a user's message and all that follows it up to the next one, and goes on until each call in it has its
results; what was said before the first user's message is a turn too. Left in for good are what systems and developers
say, wherever it stands, and the last turn.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from mulgil.engine.base import TextRequest
from mulgil.errors import ContextLengthError
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.schemas.messages import ChatMessage

T = TypeVar("T")

_LEFT_IN = ("system", "developer")
_MOST_UNASKED = 4
"""Where nobody says how long the answer may be, a part of the context as small as this is enough for it."""


@dataclass(frozen=True, slots=True)
class Room:
    """Tokens of the context that a prompt leaves free for the answer.

    Attributes:
        wanted: turns are left out for so many.
        least: a prompt that leaves fewer is refused.
    """

    wanted: int = 1
    least: int = 1


def room_for_answer(request: ChatCompletionRequest, longest: int, context: int) -> Room:
    """What the prompt of *request* is to leave free.

    Args:
        request: what the client asked for.
        longest: most tokens to make for one choice of it.
        context: prompt and answer together, in tokens.
    """
    if request.truncation != "auto":
        return Room()
    if request.output_tokens is not None:
        return Room(longest, longest)
    return Room(min(longest, max(context // _MOST_UNASKED, 1)))


def decided(request: TextRequest, default: Literal["auto", "disabled"]) -> TextRequest:
    """*request* with the truncation that is its model's *default*, where it is a chat and says nothing of it.

    To say nothing is to say `disabled`, so such a request is not copied for it.
    """
    if default == "auto" and isinstance(request, ChatCompletionRequest) and request.truncation is None:
        return request.model_copy(update={"truncation": default})
    return request


def possible_drops(messages: Sequence[ChatMessage]) -> list[int]:
    """How many messages can be left out, in growing order: each number is one turn more than the one before."""
    called: dict[str, int] = {}
    needs = []  # for each message the first one that it cannot be without
    for index, message in enumerate(messages):
        for call in message.tool_calls or ():
            called[call.id] = index
        answers = message.role == "tool" and message.tool_call_id is not None
        needs.append(called.get(message.tool_call_id or "", index) if answers else index)
    first_needed = len(messages)
    begins = set()
    for index in reversed(range(len(messages))):
        first_needed = min(first_needed, needs[index])
        if messages[index].role == "user" and first_needed == index:
            begins.add(index)
    drops, before = [], 0
    for index, message in enumerate(messages):
        if index in begins and before:
            drops.append(before)
        before += message.role not in _LEFT_IN
    return drops


def kept(messages: Sequence[ChatMessage], dropped: int) -> list[bool]:
    """Of each message, whether it is still there when the *dropped* oldest of those that may go are gone."""
    stays, left = [], dropped
    for message in messages:
        stays.append(message.role in _LEFT_IN or left == 0)
        left -= not stays[-1]
    return stays


def without_oldest(request: ChatCompletionRequest, dropped: int) -> ChatCompletionRequest:
    """*request* without so many of its messages. Its weight stays that of all: to add it up again may take long."""
    left = [one for one, stays in zip(request.messages, kept(request.messages, dropped), strict=True) if stays]
    return request.model_copy(update={"messages": left})


async def fitted(
    request: ChatCompletionRequest, room: Room, render: Callable[[ChatCompletionRequest, int], Awaitable[T]]
) -> tuple[T, int]:
    """What *render* makes of *request* when it fits, and how many messages were left out for that.

    As few turns as possible, where a turn more never makes a prompt shorter. With a template that does not keep to
    that, what is found still fits, and does not with one turn more left in. A request that fits is rendered once,
    another one a logarithm of its turns times; between two times the event loop goes on, and the call can be cancelled.

    Args:
        request: the conversation; nothing of it is left out unless its `truncation` is `auto`.
        room: what the prompt is to leave free. Where even the shortest leaves less than is wanted, that one is taken.
        render: makes the prompt of a request, or raises `ContextLengthError` if it leaves fewer tokens free than given.

    Raises:
        ContextLengthError: it does not fit, whatever is left out.
    """
    try:
        return await render(request, room.wanted), 0
    except ContextLengthError:
        if request.truncation != "auto":
            raise
    drops = [0, *possible_drops(request.messages)]

    async def attempt(number: int) -> T | None:
        await asyncio.sleep(0)
        try:
            return await render(without_oldest(request, drops[number]), room.wanted)
        except ContextLengthError:
            return None

    too_long, fits = 0, len(drops) - 1
    prompt = await attempt(fits) if fits else None
    if prompt is None:
        return await _shortest(request, drops[-1], room, render)
    while fits - too_long > 1:
        middle = (too_long + fits) // 2
        if (longer := await attempt(middle)) is None:
            too_long = middle
        else:
            fits, prompt = middle, longer
    return prompt, drops[fits]


async def _shortest(
    request: ChatCompletionRequest,
    dropped: int,
    room: Room,
    render: Callable[[ChatCompletionRequest, int], Awaitable[T]],
) -> tuple[T, int]:
    try:
        return await render(without_oldest(request, dropped), room.least), dropped
    except ContextLengthError as error:
        raise error.however_short(room.least) from None
