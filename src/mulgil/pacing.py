"""How much of a growing text is sent at a time: each token, whole words, whole sentences, or now and then."""

from dataclasses import dataclass
from typing import Literal

import regex

Unit = Literal["token", "word", "sentence"]

_CLUSTERS = regex.compile(r"\X")
# Blanks end a word; where a script has none between its words, the boundaries of UAX #29 do.
_WORD_ENDS = regex.compile(
    r"(?<=\S)\s+|(?<=[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}])\b", flags=regex.WORD
)
# A full stop may be part of a number or a name, so it needs what follows; those of Chinese and Japanese do not.
_SENTENCE_ENDS = regex.compile(r"[.!?…]+[\p{Pe}\p{Pf}\"']*\s+|[。！？]+[\p{Pe}\p{Pf}\"']*|\n+")
# Code and tables have no sentences; nobody should wait for one.
_LONGEST_HELD = 400


@dataclass(frozen=True, slots=True)
class Pacing:
    """When new text is sent.

    The first text is sent at once, and the end is never held back. Words and sentences are never split
    inside a character that a reader sees (a grapheme cluster, UAX #29).

    Attributes:
        unit: what is sent whole.
        interval: seconds between two pieces, at least.
    """

    unit: Unit = "token"
    interval: float = 0.0

    def end(self, text: str, start: int) -> int:
        """The offset up to which *text*, which may still grow, can be sent, where *start* is sent already."""
        if self.unit == "token" or start == len(text):
            return len(text)
        fresh = text[start:]
        if start == 0:
            return _last_whole(fresh)
        # What ends with the text may go on with the next token.
        whole = _last_whole(fresh)
        if len(fresh) > _LONGEST_HELD:
            return start + whole
        boundary = _SENTENCE_ENDS if self.unit == "sentence" else _WORD_ENDS
        ends = (found.end() for found in boundary.finditer(fresh))
        clusters = {found.start() for found in _CLUSTERS.finditer(fresh)}
        return start + max((end for end in ends if end <= whole and end in clusters), default=0)


EVERY_TOKEN = Pacing()
"""Nothing is held back."""


def _last_whole(text: str) -> int:
    """Where the last cluster of *text* that nothing can be added to ends."""
    if text[-1].isascii() and text[-1].isalpha():
        return len(text)  # an accent that comes as a token of its own is as good as unknown
    *_, last = _CLUSTERS.finditer(text)
    return int(last.start())
