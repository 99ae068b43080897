"""Snapshots: a generation so far, every part of it."""

from dataclasses import dataclass
from typing import Literal

StopCause = Literal["stop", "length", "tool_calls", "content_filter", "abort"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a token was.

    Attributes:
        text: what the token adds to the text; empty while it is only part of a character.
        logprob: natural logarithm of its probability, `-inf` included; None for a prompt's first token.
        start: offset of its text in the choice's text, in characters.
        top: the likeliest tokens in its place, as text and logprob, likeliest first.
    """

    text: str
    logprob: float | None
    start: int
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallSnapshot:
    """One function call so far. The name is whole from the beginning; only the arguments grow.

    Attributes:
        id: unique within the conversation.
        name: of the function.
        arguments: JSON, as far as it is made.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChoiceSnapshot:
    """One choice so far. In a later snapshot every part begins with what it was in this one.

    Attributes:
        text: the answer's text so far, never half a character. With `echo` it begins with the prompt.
        tokens: number of output tokens so far, the end-of-sequence token included.
        finish_reason: why it ended; None while it grows. `abort` only after `Answerer.abort`.
        reasoning: what the model thought before it answered.
        reasoning_tokens: how many of the tokens were spent on that.
        tool_calls: the functions it asks to have called, in order.
        logprobs: of the text's tokens, where asked for; those of special tokens are left out.
    """

    text: str = ""
    tokens: int = 0
    finish_reason: StopCause | None = None
    reasoning: str = ""
    reasoning_tokens: int = 0
    tool_calls: tuple[ToolCallSnapshot, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A generation so far, every choice of it. A newer snapshot makes all older ones superfluous.

    Attributes:
        choices: in index order: all choices of the first prompt, then those of the second, and so on.
        cached_tokens: prompt tokens that came out of the prefix cache.
    """

    choices: tuple[ChoiceSnapshot, ...]
    cached_tokens: int = 0

    @property
    def completion_tokens(self) -> int:
        """Output tokens of all choices together."""
        return sum(choice.tokens for choice in self.choices)

    @property
    def reasoning_tokens(self) -> int:
        """How many of them were spent on reasoning."""
        return sum(choice.reasoning_tokens for choice in self.choices)
