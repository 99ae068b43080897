"""One choice of the simulated engine while it is made."""

import codecs
import math
from collections.abc import Sequence

from mulgil.engine.base import Prompt, TextRequest
from mulgil.engine.simulated_answers import Answer
from mulgil.engine.simulated_tokens import WORDS, token_bytes
from mulgil.engine.snapshot import ChoiceSnapshot, StopCause, TokenLogprob, ToolCallSnapshot
from mulgil.schemas.completions import CompletionRequest


class Voice:
    """Says an answer, token by token."""

    def __init__(self, said: Answer, request: TextRequest, prompt: Prompt) -> None:
        self._answer = said
        self._most = prompt.max_tokens
        self._top = request.asked_logprobs
        self._scores_only = request.output_tokens == 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._parts: dict[str | int, str] = {"text": "", "reasoning": ""}
        self._logprobs: tuple[TokenLogprob, ...] = ()
        self._tokens = self._reasoning_tokens = 0
        self.finish_reason: StopCause | None = None
        if isinstance(request, CompletionRequest) and request.echo:
            self._echo(prompt.token_ids)

    def speak(self) -> None:
        """Make one token, unless all is said. An empty answer is one end-of-sequence token."""
        if self.finish_reason is not None:
            return
        pieces = self._answer.pieces
        if self._tokens < len(pieces) and not self._scores_only:
            place, piece = pieces[self._tokens]
            new = self._decoder.decode(piece)
            if place == "text":
                self._note(new)
            self._reasoning_tokens += place == "reasoning"
            self._parts[place] = self._parts.get(place, "") + new
        self._tokens += 1
        if self._tokens >= len(pieces) and not self._scores_only:
            self.finish_reason = self._answer.finish
        elif self._tokens >= self._most:
            self.finish_reason = "length"

    def snapshot(self, last: StopCause | None) -> ChoiceSnapshot:
        """What is said so far."""
        begun = [
            ToolCallSnapshot(call, name, self._parts[index])
            for index, (call, name) in enumerate(self._answer.calls)
            if index in self._parts
        ]
        return ChoiceSnapshot(
            self._parts["text"],
            self._tokens,
            self.finish_reason or last,
            self._parts["reasoning"],
            self._reasoning_tokens,
            tuple(begun),
            self._logprobs,
        )

    def _note(self, text: str) -> None:
        """Made-up probabilities: of three tokens each, the third impossible."""
        if self._top is None:
            return
        made = -(len(self._logprobs) % 7 + 1) / 8
        other = WORDS[len(self._logprobs) % len(WORDS)]
        top = ((text, made), (f" {other}", made - 1), ("\N{DROPLET}", -math.inf))[: self._top]
        self._logprobs += (TokenLogprob(text, made, len(self._parts["text"]), top),)

    def _echo(self, ids: Sequence[int]) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for index, token in enumerate(ids):
            text = decoder.decode(token_bytes(token), final=index == len(ids) - 1)
            if index:
                self._note(text)
            elif self._top is not None:
                self._logprobs = (TokenLogprob(text, None, 0),)
            self._parts["text"] += text
