"""Folds the chunks of a streamed answer into snapshots, and counts its tokens."""

from typing import Any

from mulgil.engine.base import Prepared, TextRequest
from mulgil.engine.snapshot import ChoiceSnapshot, Snapshot, StopCause
from mulgil.engine.upstream.choice import Choice, UnreadableError
from mulgil.errors import EngineError
from mulgil.schemas.completions import CompletionRequest


class Fold:
    """One answer as far as it has been told.

    While it grows its tokens are a lower bound, unless the upstream tells them with every chunk; in the end they are
    what its usage says. Where it tells none, or less than was surely made, each piece that it sent counts as a token.

    Args:
        request: what is answered.
        prepared: the same, counted.

    Attributes:
        prompt_tokens: as the upstream has told them; None where it has not.
    """

    def __init__(self, request: TextRequest, prepared: Prepared) -> None:
        self._chat = not isinstance(request, CompletionRequest)
        self._most = prepared.prompts[0].max_tokens
        self._prompt_tokens = prepared.prompt_tokens
        echoes = isinstance(request, CompletionRequest) and bool(request.echo)
        self._choices = [Choice(top=request.asked_logprobs, echoes=echoes) for _ in range(prepared.width)]
        self._completion_tokens: int | None = None
        self._reasoning_tokens = self._cached_tokens = 0
        self.prompt_tokens: int | None = None

    def take(self, chunks: list[dict[str, Any]]) -> Snapshot:
        """The answer with these chunks.

        Raises:
            EngineError: one of them is none.
        """
        try:
            for chunk in chunks:
                for told in chunk.get("choices") or ():
                    choice = self._choices[_count(told["index"])]
                    if self._chat:
                        choice.take_delta(told)
                    else:
                        choice.take_text(told)
                if chunk.get("usage") is not None:
                    self._note(chunk["usage"])
        except (UnreadableError, LookupError, TypeError, ValueError, AttributeError):
            raise EngineError("The server that answers in place of the engine sent what cannot be read.") from None
        least = self._least()
        return self._told([None] * len(least), least, [0] * len(least))

    def aborted(self) -> Snapshot:
        """The answer as it is when nobody wants the rest."""
        least = self._least()
        return self._told([choice.finish_reason or "abort" for choice in self._choices], least, [0] * len(least))

    def ended(self) -> Snapshot:
        """The whole answer.

        Raises:
            EngineError: it is not whole.
        """
        reasons = [choice.finish_reason for choice in self._choices]
        if None in reasons or "abort" in reasons:
            raise EngineError("The server that answers in place of the engine stopped before the answer was complete.")
        least, sizes = self._least(), [choice.size for choice in self._choices]
        if self._completion_tokens is not None and self._completion_tokens >= sum(least):
            tokens = spread(self._completion_tokens, least, sizes, [self._most] * len(least))
        else:
            tokens = [
                self._most if choice.finish_reason == "length" and not choice.echoes else min(choice.pieces, self._most)
                for choice in self._choices
            ]
        thought = spread(self._reasoning_tokens, [0] * len(tokens), [one.thought for one in self._choices], tokens)
        return self._told(reasons, tokens, thought)

    def _told(self, reasons: list[StopCause | None], tokens: list[int], thought: list[int]) -> Snapshot:
        choices = tuple(
            ChoiceSnapshot(
                choice.text, made, reason, choice.reasoning, of_thought, choice.told_calls(), choice.told_logprobs()
            )
            for choice, reason, made, of_thought in zip(self._choices, reasons, tokens, thought, strict=True)
        )
        return Snapshot(choices, min(self._cached_tokens, self._prompt_tokens))

    def _least(self) -> list[int]:
        """Tokens of each choice that have surely been made."""
        if len(self._choices) == 1 and self._completion_tokens is not None:
            return [min(max(self._completion_tokens, self._choices[0].least), self._most)]
        return [min(choice.least, self._most) for choice in self._choices]

    def _note(self, usage: dict[str, Any]) -> None:
        self.prompt_tokens = _count(usage.get("prompt_tokens") or 0) or None
        # Of a choice that has ended some servers tell nothing more, so no count becomes smaller.
        self._completion_tokens = max(_count(usage.get("completion_tokens") or 0), self._completion_tokens or 0)
        self._cached_tokens = _count((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        details = usage.get("completion_tokens_details") or {}
        self._reasoning_tokens = _count(details.get("reasoning_tokens") or usage.get("reasoning_tokens") or 0)


def spread(total: int, least: list[int], weights: list[int], most: list[int]) -> list[int]:
    """*total*, as far as it goes, shared out by *weights*: to each not less than *least* and not more than *most*."""
    shares = [min(one, limit) for one, limit in zip(least, most, strict=True)]
    left = min(total, sum(most)) - sum(shares)
    weight = sum(weights)
    if weight and left > 0:
        by_weight = [
            min(left * own // weight, limit - share) for own, limit, share in zip(weights, most, shares, strict=True)
        ]
        shares = [share + more for share, more in zip(shares, by_weight, strict=True)]
        left -= sum(by_weight)
    for index, limit in enumerate(most):
        more = min(max(left, 0), limit - shares[index])
        shares[index] += more
        left -= more
    return shares


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UnreadableError
    return value
