"""A generation that is whole from the beginning: an answer that was kept, or a part in another's."""

import re
import secrets
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field, replace

from mulgil.engine.snapshot import Snapshot
from mulgil.generation import Generation
from mulgil.slices import Position, Slice, slices

_WORDS = re.compile(r"\s*\S+")


@dataclass(frozen=True, slots=True)
class Told:
    """Work that is done elsewhere, or was.

    Attributes:
        prompt_tokens: length of its prompts.
        width: number of its choices.
        dropped_messages: how many of the conversation were left out, so that it fitted.
        id: random; of this telling alone.
    """

    prompt_tokens: int
    width: int
    dropped_messages: int = 0
    id: str = field(default_factory=lambda: f"told-{secrets.token_hex(12)}")


class ToldAgain(Generation):
    """An answer that was kept. It is closed by who made it; then it is told as any, at the pace that was asked for."""

    async def follow(self, offset: int = 0) -> AsyncGenerator[list[Slice]]:
        """The whole of it: word by word, or sentence by sentence, where that is asked for; else at once."""
        known = [Position()] * len(self.snapshot.choices)
        for snapshot, last in self._growing():
            news = slices(snapshot, known, last=last, pacing=self.pacing)
            for piece in news:
                known[piece.index] = piece.end
            if news:
                yield news

    def _growing(self) -> Iterator[tuple[Snapshot, bool]]:
        """It as an engine would make it that writes a word at a time; whether it is the last."""
        if self.pacing.unit != "token":
            choices = self.snapshot.choices
            for index, choice in enumerate(choices):
                ends = [found.end() for found in _WORDS.finditer(choice.text)]
                for end in ends:
                    unfinished = replace(choice, text=choice.text[:end], tool_calls=(), finish_reason=None)
                    # Those before it are whole, those after it have not begun.
                    after = (
                        replace(one, text="", reasoning="", tool_calls=(), finish_reason=None, logprobs=())
                        for one in choices[index + 1 :]
                    )
                    yield replace(self.snapshot, choices=(*choices[:index], unfinished, *after)), False
        yield self.snapshot, True
