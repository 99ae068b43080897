"""From vLLM's outputs to snapshots."""

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from mulgil.engine.snapshot import ChoiceSnapshot, StopCause, TokenLogprob, ToolCallSnapshot
from mulgil.errors import EngineError

_VLLMS_OWN = "chatcmpl-tool-"


class LogprobsFold:
    """Turns vLLM's logprobs of one choice into ours, as they come.

    Args:
        special: ids of tokens that have no place in a text.
        top: how many of the likeliest tokens are wanted for each.
    """

    def __init__(self, special: frozenset[int], top: int) -> None:
        self._special = special
        self._top = top
        self._seen = 0
        self._offset = 0
        self._tokens: tuple[TokenLogprob, ...] = ()

    def __call__(self, token_ids: Sequence[int], logprobs: Sequence[Any]) -> tuple[TokenLogprob, ...]:
        """Those of all tokens so far, given all ids and entries so far; an entry is None where none is known."""
        known = min(len(token_ids), len(logprobs))
        if known > self._seen:
            new = zip(token_ids[self._seen : known], logprobs[self._seen : known], strict=True)
            self._tokens += tuple(self._told(token, entry) for token, entry in new if token not in self._special)
            self._seen = known
        return self._tokens

    @property
    def empty(self) -> bool:
        """Nothing has been told yet."""
        return not self._tokens

    def begin_with(self, token_ids: Sequence[int], logprobs: Sequence[Any], text: str) -> None:
        """Begin with the tokens of an echoed prompt, which make up *text*. The first has no probability."""
        known = [entry[token].decoded_token or "" for token, entry in zip(token_ids, logprobs, strict=True) if entry]
        first = text[: max(0, len(text) - sum(map(len, known)))]
        told = []
        for token, entry, piece in zip(token_ids, logprobs, (first, *known), strict=True):
            logprob, top = (entry[token].logprob, self._likeliest(entry)) if entry else (None, ())
            told.append(TokenLogprob(piece, logprob, self._offset, top))
            self._offset += len(piece)
        self._tokens = tuple(told)

    def _told(self, token: int, entry: Any) -> TokenLogprob:
        text = entry[token].decoded_token or ""
        told = TokenLogprob(text, entry[token].logprob, self._offset, self._likeliest(entry))
        self._offset += len(text)
        return told

    def _likeliest(self, entry: Any) -> tuple[tuple[str, float], ...]:
        # vLLM puts the token that was made first, whatever its rank.
        ranked = sorted(entry.values(), key=lambda one: one.rank)[: self._top]
        return tuple((one.decoded_token or "", one.logprob) for one in ranked)


class ParserFold:
    """Takes the text of one choice apart into reasoning, answer and tool calls, as it comes.

    Plain and streamed replies are told from the same fold, so that both say the same of a call that
    was cut off.

    Args:
        parser: a vLLM parser of this choice alone.
        request: vLLM's request, as the parser changed it.
        prompt_token_ids: of the prompt.
        one_call: drop all calls but the first.
        count_reasoning: counts the tokens of reasoning among all; None where the model has none.
    """

    def __init__(
        self,
        parser: Any,
        request: Any,
        prompt_token_ids: list[int],
        *,
        one_call: bool,
        count_reasoning: Callable[[list[int]], int] | None,
    ) -> None:
        self._parser = parser
        self._request = request
        self._prompt_token_ids = prompt_token_ids
        self._one_call = one_call
        self._count_reasoning = count_reasoning
        self._text = 0
        self._tokens = 0
        self._last = ChoiceSnapshot()

    def __call__(self, choice: ChoiceSnapshot, token_ids: Sequence[int]) -> ChoiceSnapshot:
        """*choice* with its text taken apart; *token_ids* are all its tokens so far."""
        if self._last.finish_reason is not None:
            return self._last
        delta = self._parser.parse_delta(
            choice.text[self._text :],
            list(token_ids[self._tokens :]),
            self._request,
            prompt_token_ids=self._prompt_token_ids,
            finished=choice.finish_reason is not None,
        )
        self._text, self._tokens = len(choice.text), len(token_ids)
        last = self._last
        calls = _grown(last.tool_calls, delta.tool_calls or ()) if delta is not None else last.tool_calls
        self._last = replace(
            choice,
            text=last.text + ((delta.content or "") if delta is not None else ""),
            reasoning=last.reasoning + ((delta.reasoning or "") if delta is not None else ""),
            tool_calls=calls[:1] if self._one_call else calls,
            reasoning_tokens=self._reasoning_tokens(choice, token_ids),
        )
        if calls and choice.finish_reason == "stop" and isinstance(self._request.tool_choice, str):
            # OpenAI's rule: a function that was named beforehand ends with "stop".
            self._last = replace(self._last, finish_reason="tool_calls")
        return self._last

    def _reasoning_tokens(self, choice: ChoiceSnapshot, token_ids: Sequence[int]) -> int:
        # All tokens are looked at, so not for every snapshot.
        if self._count_reasoning is None or choice.finish_reason is None:
            return 0
        return self._count_reasoning(list(token_ids))


def _grown(calls: tuple[ToolCallSnapshot, ...], deltas: Iterable[Any]) -> tuple[ToolCallSnapshot, ...]:
    grown = list(calls)
    for delta in deltas:
        name, arguments = delta.function.name, delta.function.arguments or ""
        if delta.index < len(grown):
            call = grown[delta.index]
            grown[delta.index] = replace(call, arguments=call.arguments + arguments)
        elif name:
            grown.append(ToolCallSnapshot(_call_id(delta.id), name, arguments))
    return tuple(grown)


def _call_id(given: str | None) -> str:
    # Some templates need the ids that their model knows; all others get one of OpenAI's form.
    return given if given and not given.startswith(_VLLMS_OWN) else f"call_{secrets.token_hex(12)}"


Fold = Callable[[ChoiceSnapshot, Sequence[int]], ChoiceSnapshot]


def stop_cause(reason: str | None) -> StopCause | None:
    """vLLM's finish reason as one of ours.

    Raises:
        EngineError: it says that the engine failed.
    """
    if reason == "error":
        raise EngineError("The engine failed this request.")
    if reason == "repetition":
        return "stop"
    return reason  # type: ignore[return-value]  # what is left of vLLM's FinishReason is ours too
