"""One choice of an upstream's answer, put together from what its chunks say of it."""

import math
import secrets
from typing import Any, get_args

from mulgil.engine.snapshot import StopCause, TokenLogprob, ToolCallSnapshot

# Most texts need one token for three to six bytes. Pieces may be parts of tokens, so both together bound their number
# from below.
_BYTES_OF_A_LONG_TOKEN = 8
_IMPOSSIBLE = -9999.0  # what OpenAI writes, since JSON has no infinity
_KNOWN_REASONS = frozenset(get_args(StopCause))
_OTHER_REASONS: dict[str, StopCause] = {"function_call": "tool_calls", "max_tokens": "length", "error": "abort"}


class UnreadableError(Exception):
    """A chunk is not of OpenAI's form. It never leaves the package."""


class Choice:
    """What has been told of a choice so far.

    Args:
        top: how many likely tokens were asked for; None: no logprobs.
        echoes: its text begins with the prompt, so that not all of it was made.

    Attributes:
        text, reasoning: so far.
        finish_reason: why it has ended.
        pieces: how many chunks it grew by.
        size: its bytes, and among them those of the reasoning in `thought`.
    """

    def __init__(self, *, top: int | None, echoes: bool) -> None:
        self._top = top
        self.echoes = echoes
        self.text = self.reasoning = ""
        self.finish_reason: StopCause | None = None
        self.pieces = self.size = self.thought = 0
        self._calls: list[ToolCallSnapshot] = []
        self._positions: dict[int, int] = {}
        self._logprobs: list[TokenLogprob] = []
        self._start = 0

    @property
    def least(self) -> int:
        """Tokens that it surely has."""
        return 0 if self.echoes else min(self.pieces, -(-self.size // _BYTES_OF_A_LONG_TOKEN))

    def told_calls(self) -> tuple[ToolCallSnapshot, ...]:
        """The function calls so far."""
        return tuple(self._calls)

    def told_logprobs(self) -> tuple[TokenLogprob, ...]:
        """Those of all tokens so far."""
        return tuple(self._logprobs)

    def take_delta(self, told: dict[str, Any]) -> None:
        """Grow by a chunk of a chat.

        Raises:
            UnreadableError: it is none; so are lookups and conversions that fail.
        """
        delta = told.get("delta") or {}
        reasoning = _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
        text = _text(delta.get("content")) + _text(delta.get("refusal"))
        calls = [self._take_call(call) for call in delta.get("tool_calls") or ()]
        self.text += text
        self.reasoning += reasoning
        self.thought += len(reasoning.encode())
        self._grow(text, reasoning, *calls)
        for entry in (told.get("logprobs") or {}).get("content") or () if self._top is not None else ():
            top = [(_text(one["token"]), float(one["logprob"])) for one in entry.get("top_logprobs") or ()]
            self._note(_text(entry["token"]), entry["logprob"], top)
        self._end(told.get("finish_reason"))

    def take_text(self, told: dict[str, Any]) -> None:
        """Grow by a chunk of a completion.

        Raises:
            UnreadableError: as `take_delta`.
        """
        text = _text(told.get("text"))
        self.text += text
        self._grow(text)
        logprobs = told.get("logprobs")
        if logprobs is not None and self._top is not None:
            tokens, own = logprobs["tokens"], logprobs["token_logprobs"]
            tops = logprobs.get("top_logprobs") or [None] * len(tokens)
            for token, logprob, top in zip(tokens, own, tops, strict=True):
                self._note(_text(token), logprob, [(_text(one), float(value)) for one, value in (top or {}).items()])
        self._end(told.get("finish_reason"))

    def _grow(self, *parts: str) -> None:
        if any(parts):
            self.pieces += 1
            self.size += sum(len(part.encode()) for part in parts)

    def _take_call(self, told: dict[str, Any]) -> str:
        """What is new of a call. Its name counts where it begins; some servers repeat it."""
        index = told.get("index", len(self._positions) if told.get("id") else len(self._positions) - 1)
        function = told.get("function") or {}
        arguments = _text(function.get("arguments"))
        if index in self._positions:
            at = self._positions[index]
            call = self._calls[at]
            self._calls[at] = ToolCallSnapshot(call.id, call.name, call.arguments + arguments)
            return arguments
        name = _text(function.get("name"))
        if not isinstance(index, int) or index < 0 or not name:
            raise UnreadableError
        self._positions[index] = len(self._calls)
        self._calls.append(ToolCallSnapshot(_text(told.get("id")) or f"call_{secrets.token_hex(12)}", name, arguments))
        return name + arguments

    def _note(self, token: str, logprob: float | None, top: list[tuple[str, float]]) -> None:
        ranked = sorted(((text, _log(value)) for text, value in top), key=lambda one: one[1], reverse=True)
        own = None if logprob is None else _log(float(logprob))
        # Among the likeliest a completion tells the token itself, too, however unlikely it was.
        self._logprobs.append(TokenLogprob(token, own, self._start, tuple(ranked[: self._top])))
        self._start += len(token)

    def _end(self, reason: Any) -> None:
        if not reason:
            return
        reason = _text(reason)
        self.finish_reason = reason if reason in _KNOWN_REASONS else _OTHER_REASONS.get(reason, "stop")


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UnreadableError
    return value


def _log(value: float) -> float:
    if math.isnan(value):
        raise UnreadableError
    return -math.inf if value <= _IMPOSSIBLE else value
