"""What a reader of a growing answer does not have yet."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from mulgil.engine.snapshot import ChoiceSnapshot, Snapshot, TokenLogprob, ToolCallSnapshot
from mulgil.pacing import EVERY_TOKEN, Pacing


@dataclass(frozen=True, slots=True)
class Position:
    """How much of one choice a follower has.

    Attributes:
        text: characters of the text.
        reasoning: characters of the reasoning.
        arguments: characters of the arguments of each tool call that it knows of.
        logprobs: entries.
    """

    text: int = 0
    reasoning: int = 0
    arguments: tuple[int, ...] = ()
    logprobs: int = 0


@dataclass(frozen=True, slots=True)
class CallSlice:
    """What one tool call has grown by.

    Attributes:
        index: of the call within the choice.
        arguments: the new part of its arguments.
        begun: the call itself, where the follower did not know of it yet.
    """

    index: int
    arguments: str
    begun: ToolCallSnapshot | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """What one choice has grown by since a position; never nothing.

    Attributes:
        index: of the choice.
        end: the position behind it: where the next slice begins.
        text: the new text.
        reasoning: the new reasoning.
        calls: the tool calls that began or grew.
        logprobs: those of the new text's tokens.
        offset: how much of the whole answer a reader has with this one, where that is counted (`Timeline`).
    """

    index: int
    end: Position
    text: str = ""
    reasoning: str = ""
    calls: tuple[CallSlice, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    offset: int | None = None


def slices(
    snapshot: Snapshot, positions: Sequence[Position], *, last: bool = False, pacing: Pacing = EVERY_TOKEN
) -> list[Slice]:
    """What *snapshot* has beyond *positions* (one for each choice), in index order.

    Args:
        snapshot: how far the generation is.
        positions: what is known already.
        last: nothing will follow: also what belongs to no text, like logprobs of tokens that became none.
        pacing: how much of a text that still grows may be told.
    """
    found = (
        _slice(index, choice, position, last=last, pacing=pacing)
        for index, (choice, position) in enumerate(zip(snapshot.choices, positions, strict=True))
    )
    return [piece for piece in found if piece is not None]


def _slice(index: int, choice: ChoiceSnapshot, position: Position, *, last: bool, pacing: Pacing) -> Slice | None:
    whole = last or choice.finish_reason is not None
    text_end = len(choice.text) if whole else pacing.end(choice.text, position.text)
    text, reasoning = choice.text[position.text : text_end], choice.reasoning[position.reasoning :]
    calls = call_slices(choice.tool_calls, position.arguments) if choice.tool_calls else ()
    logprobs: tuple[TokenLogprob, ...] = ()
    if len(choice.logprobs) > position.logprobs:
        known = len(choice.logprobs) if last else logprobs_before(choice, text_end)
        logprobs = choice.logprobs[position.logprobs : known]
    if not (text or reasoning or calls or (last and logprobs)):
        return None
    end = Position(
        text_end,
        len(choice.reasoning),
        tuple(len(call.arguments) for call in choice.tool_calls),
        position.logprobs + len(logprobs),
    )
    return Slice(index, end, text, reasoning, calls, logprobs)


def logprobs_before(choice: ChoiceSnapshot, text_end: int) -> int:
    """How many logprobs go with the text before *text_end*: a token goes with the text that it begins."""
    return bisect_left(choice.logprobs, text_end, key=lambda token: token.start)


def call_slices(calls: Sequence[ToolCallSnapshot], known: Sequence[int]) -> tuple[CallSlice, ...]:
    """What *calls* have beyond the lengths of the arguments in *known*."""
    grown = [
        CallSlice(index, call.arguments[length:])
        for index, (call, length) in enumerate(zip(calls, known, strict=False))
        if len(call.arguments) > length
    ]
    begun = [CallSlice(index, call.arguments, call) for index, call in enumerate(calls[len(known) :], start=len(known))]
    return (*grown, *begun)
