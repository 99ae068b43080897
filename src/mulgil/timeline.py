"""The order in which an answer grew, so that one number says exactly how much of it a reader has."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mulgil.engine.snapshot import ChoiceSnapshot, Snapshot
from mulgil.pacing import EVERY_TOKEN, Pacing
from mulgil.slices import CallSlice, Position, Slice, logprobs_before

Part = Literal["text", "reasoning"] | int
"""Of a choice; a number is the index of a tool call."""


@dataclass(slots=True)
class _Run:
    """A stretch of growth of one part. The beginning of a call counts as one character."""

    choice: int
    part: Part
    start: int
    length: int


class Timeline:
    """Notes how an answer grows. An offset counts the characters of all parts, in the order in which they came.

    For an answer that is nothing but text the offset is that of the text.
    """

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self.length = 0

    def note(self, before: Snapshot, after: Snapshot) -> None:
        """The answer has grown from *before* to *after*."""
        for index, (old, new) in enumerate(zip(before.choices, after.choices, strict=True)):
            if new is not old:
                for part, length in _growth(old, new):
                    self._add(index, part, length)

    def positions(self, offset: int, choices: int) -> list[Position]:
        """What a reader who has *offset* characters knows of each of the *choices*."""
        known = [Position()] * choices
        for run in self._runs:
            if run.start >= offset:
                break
            taken = min(run.length, offset - run.start)
            known[run.choice] = _moved(known[run.choice], run.part, taken)
        return known

    def slices(
        self,
        snapshot: Snapshot,
        positions: Sequence[Position],
        offset: int,
        *,
        last: bool,
        pacing: Pacing = EVERY_TOKEN,
    ) -> Iterator[Slice]:
        """What *snapshot* has beyond *offset*, in the order in which it grew; each with the offset behind it.

        Args:
            snapshot: how far the answer is; noted.
            positions: what is known of each choice at *offset*.
            offset: how much is known.
            last: nothing will follow.
            pacing: how much of a text that still grows may be told.
        """
        known = list(positions)
        for number in range(max(0, bisect_right(self._runs, offset, key=lambda run: run.start) - 1), len(self._runs)):
            run = self._runs[number]
            left = run.start + run.length - offset
            if left <= 0:
                continue
            choice, position = snapshot.choices[run.choice], known[run.choice]
            # Only what comes last can still grow; what something else follows is as whole as it gets.
            if run.part == "text" and number == len(self._runs) - 1 and not last and choice.finish_reason is None:
                left = min(left, pacing.end(choice.text, position.text) - position.text)
                if not left:
                    return
            offset += left
            piece = replace(_piece(run, choice, position, left), offset=offset)
            known[run.choice] = piece.end
            yield piece

    def _add(self, choice: int, part: Part, length: int) -> None:
        previous = self._runs[-1] if self._runs else None
        if previous is not None and (previous.choice, previous.part) == (choice, part):
            previous.length += length
        else:
            self._runs.append(_Run(choice, part, self.length, length))
        self.length += length


def _growth(old: ChoiceSnapshot, new: ChoiceSnapshot) -> Iterator[tuple[Part, int]]:
    """What grew and by how much; a model thinks before it speaks, and speaks before it calls."""
    if grown := len(new.reasoning) - len(old.reasoning):
        yield "reasoning", grown
    if grown := len(new.text) - len(old.text):
        yield "text", grown
    for index, call in enumerate(new.tool_calls):
        begun = index < len(old.tool_calls)
        if grown := len(call.arguments) - (len(old.tool_calls[index].arguments) if begun else -1):
            yield index, grown


def _moved(position: Position, part: Part, length: int) -> Position:
    if part == "text":
        return replace(position, text=position.text + length)
    if part == "reasoning":
        return replace(position, reasoning=position.reasoning + length)
    arguments = list(position.arguments)
    if part == len(arguments):
        arguments.append(-1)
    arguments[part] += length
    return replace(position, arguments=tuple(arguments))


def _piece(run: _Run, choice: ChoiceSnapshot, position: Position, length: int) -> Slice:
    end = _moved(position, run.part, length)
    if run.part == "text":
        known = logprobs_before(choice, position.text) if position.text else 0
        until = logprobs_before(choice, end.text)
        return Slice(run.choice, end, text=choice.text[position.text : end.text], logprobs=choice.logprobs[known:until])
    if run.part == "reasoning":
        return Slice(run.choice, end, reasoning=choice.reasoning[position.reasoning : end.reasoning])
    call = choice.tool_calls[run.part]
    begun = run.part == len(position.arguments)
    known = 0 if begun else position.arguments[run.part]
    grown = CallSlice(run.part, call.arguments[known : end.arguments[run.part]], call if begun else None)
    return Slice(run.choice, end, calls=(grown,))
