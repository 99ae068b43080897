"""One prompt of a request on its way through vLLM."""

import asyncio
import re
from dataclasses import replace
from functools import partial
from typing import Any

from vllm.exceptions import VLLMValidationError

from mulgil.engine.base import Prepared, TextRequest
from mulgil.engine.snapshot import ChoiceSnapshot
from mulgil.engine.vllm.outputs import Fold, LogprobsFold, stop_cause
from mulgil.engine.vllm.parsing import AnswerParsers
from mulgil.engine.vllm.sampling import sampling_params
from mulgil.errors import InvalidSchemaError
from mulgil.schemas.completions import CompletionRequest

_LONGEST_REASON = 300
_PLACE_IN_SOURCE = re.compile(r"\[[\d:]+\] \S+:\d+: ")


class Strand:
    """One prompt: what vLLM is given for it, and how its outputs become snapshots.

    Args:
        id: ours, for vLLM.
        engine_input: what the renderer made of the prompt.
        max_tokens: most tokens for one choice.
        request: what the client asked for.
    """

    def __init__(self, id: str, engine_input: dict[str, Any], max_tokens: int, request: TextRequest) -> None:
        self.id = id
        self.max_tokens = max_tokens
        self._input = engine_input
        self._request = request
        self._params: Any = None
        self._folds: list[Fold] | None = None
        self._logprobs: list[LogprobsFold] | None = None
        self._echo = ""
        self._scores_only = request.output_tokens == 0
        self.streamed = bool(request.stream)

    @property
    def taken_apart(self) -> bool:
        """Its text is parsed, token by token: parsers are not to be trusted with more at a time."""
        return self._folds is not None

    @property
    def prompt_token_ids(self) -> list[int]:
        """Exactly what the engine is given."""
        ids: list[int] = self._input["prompt_token_ids"]
        return ids

    async def settle_on(self, llm: Any, parsers: AnswerParsers, defaults: dict[str, Any]) -> None:
        """Validate everything that *llm* would object to, before anybody waits or pays for it.

        Raises:
            VLLMValidationError: vLLM would refuse the request.
        """
        adjusted = await parsers.adjusted(self._request, strict=True)
        try:
            await self._verify(llm, adjusted, defaults)
        except InvalidSchemaError:
            if not parsers.may_be_lenient(self._request):
                raise
            adjusted = await parsers.adjusted(self._request, strict=False)
            await self._verify(llm, adjusted, defaults)
        self._folds = parsers.folds(self._request, adjusted, self.prompt_token_ids)
        if self._request.asked_logprobs is not None:
            special = frozenset(llm.renderer.tokenizer.all_special_ids)
            top = self._request.asked_logprobs
            self._logprobs = [LogprobsFold(special, top) for _ in range(self._request.choices)]
        if isinstance(self._request, CompletionRequest) and self._request.echo:
            self._echo = self._input.get("prompt") or llm.renderer.tokenizer.decode(self.prompt_token_ids)

    async def _verify(self, llm: Any, parser_request: Any, defaults: dict[str, Any]) -> None:
        self._params = params = sampling_params(
            self._request, max_tokens=self.max_tokens, defaults=defaults, parser_request=parser_request
        )
        configs = llm.vllm_config.speculative_config, llm.vllm_config.structured_outputs_config
        verify = partial(params.verify, llm.model_config, *configs, llm.renderer.tokenizer)
        if params.structured_outputs is None:
            verify()
            return
        try:
            await asyncio.to_thread(verify)  # takes long for a large schema
        except (VLLMValidationError, ValueError) as error:
            if getattr(error, "parameter", None):
                raise
            param = "structured_outputs"
            if self._request.structured_outputs is None:
                param = "response_format" if getattr(self._request, "response_format", None) else "tools"
            reason = _PLACE_IN_SOURCE.sub("", str(error)).strip()[:_LONGEST_REASON]
            raise InvalidSchemaError(reason, param=param) from error

    async def submit(self, llm: Any, prepared: Prepared, lora: Any) -> Any:
        """Hand it to vLLM as a part of *prepared*, for the adapter *lora* or for None; the collector of its outputs."""
        # It is verified. vLLM would do it once more, on the event loop: for many large tools that takes seconds.
        self._params.verify = _verified
        # Not generate(): that tells nothing between "accepted" and the first token.
        return await llm.add_request(
            self.id,
            self._input,
            self._params,
            priority=prepared.priority,
            trace_headers=prepared.trace_headers,
            lora_request=lora,
        )

    def told(self, choice: Any, output: Any) -> ChoiceSnapshot:
        """The snapshot of one choice after an output of vLLM's."""
        token_ids = choice.token_ids
        snapshot = ChoiceSnapshot(
            self._echo + ("" if self._scores_only else choice.text),
            len(token_ids),
            stop_cause(choice.finish_reason),
            logprobs=() if self._logprobs is None else self._told_logprobs(choice, output),
        )
        if self._folds is not None:
            told: ChoiceSnapshot = self._folds[choice.index](snapshot, token_ids)
            return told
        if snapshot.finish_reason is not None and snapshot.logprobs:
            return _without_the_cut_off(snapshot)
        return snapshot

    def _told_logprobs(self, choice: Any, output: Any) -> Any:
        assert self._logprobs is not None
        fold = self._logprobs[choice.index]
        if self._echo and fold.empty and output.prompt_logprobs:
            fold.begin_with(self.prompt_token_ids, output.prompt_logprobs, self._echo)
        return fold(() if self._scores_only else choice.token_ids, choice.logprobs or ())


def _verified(*_: Any) -> None:
    """What `SamplingParams.verify` is for parameters that have passed it."""


def _without_the_cut_off(snapshot: ChoiceSnapshot) -> ChoiceSnapshot:
    """A stop sequence is not part of the text, so its tokens are not told either."""
    end = len(snapshot.text)
    return replace(snapshot, logprobs=tuple(token for token in snapshot.logprobs if token.start < end))
