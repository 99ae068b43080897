"""vLLM's `AsyncLLM` behind the engine port. With `vllm_errors` the only file that imports vLLM, pinned to 0.32.

What is not obvious here was found by running 0.32.0: see "Engine" in docs/architecture.md.
"""

import asyncio
import dataclasses
import hashlib
import logging
import os
import secrets
from collections.abc import AsyncGenerator
from typing import Any

os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")  # fork would copy our sockets and threads
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

from vllm import AsyncEngineArgs, SamplingParams
from vllm.config import StructuredOutputsConfig
from vllm.exceptions import VLLMValidationError
from vllm.platforms import current_platform
from vllm.renderers import ChatParams, TokenizeParams
from vllm.renderers.chat_utils import load_chat_template
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM

from mulgil.engine.base import ChoiceSnapshot, Load, Prepared, Snapshot, StopCause
from mulgil.engine.vllm_errors import translated, unavailable
from mulgil.errors import ContextLengthError, EngineError, EngineUnavailableError
from mulgil.schemas.chat import ChatCompletionRequest, ChatMessage
from mulgil.settings import EngineSettings

log = logging.getLogger(__name__)

_TEMPLATE_OPTIONS = {"tokenize": False, "add_generation_prompt": True, "continue_final_message": False}
_SAME = (
    "temperature", "top_p", "frequency_penalty", "presence_penalty", "top_k", "min_p", "repetition_penalty",
    "ignore_eos", "stop_token_ids",
)  # fmt: skip
_SMALLEST_TOP_P = 1e-6  # vLLM refuses 0, which means: only the likeliest token
_SHUTDOWN_TIMEOUT = 10
_CHECK_TIMEOUT = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Work:
    engine_input: dict[str, Any]
    params: SamplingParams


class VLLMEngine:
    """Implements `Engine` on an `AsyncLLM` of this process.

    Raises:
        ValueError: `engine_args` names something that `AsyncEngineArgs` does not have.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._args = _engine_args(settings)
        self._salt = secrets.token_bytes(16)
        self._running: set[str] = set()
        self._building: asyncio.Task[Any] | None = None
        self._llm: Any = None
        self._template: str | None = None
        self._sampling_defaults: dict[str, Any] = {}

    @property
    def max_model_len(self) -> int:
        return int(self._llm.model_config.max_model_len)

    @property
    def dead(self) -> bool:
        return self._llm is not None and bool(self._llm.errored)

    async def start(self) -> None:
        self._building = asyncio.create_task(asyncio.to_thread(self._build))
        try:
            # Shielded: a thread cannot be cancelled, and what it builds must be found by stop().
            self._llm = await asyncio.shield(self._building)
        except Exception as error:
            log.exception("vLLM could not start")
            raise EngineUnavailableError(f"vLLM could not start: {error}") from error
        # It starts with the first request otherwise, and until then a dead core goes unnoticed.
        self._llm._run_output_handler()  # noqa: SLF001 - there is no public way

    def _build(self) -> Any:
        self._template = load_chat_template(self._settings.chat_template)
        llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**self._args), usage_context=UsageContext.OPENAI_API_SERVER)
        self._sampling_defaults = llm.model_config.get_diff_sampling_param()
        self._sampling_defaults.pop("max_tokens", None)  # always set by prepare()
        return llm

    async def stop(self) -> None:
        if self._building is None:
            return
        building, self._building, self._llm = self._building, None, None
        await asyncio.wait([building])
        if building.cancelled() or building.exception() is not None:
            return
        llm = building.result()
        if not llm.errored:
            # shutdown() leaves whoever still waits for output waiting for ever.
            await llm.abort(list(self._running))
        await asyncio.to_thread(llm.shutdown, _SHUTDOWN_TIMEOUT)

    async def prepare(
        self, request: ChatCompletionRequest, *, tenant: str, default_max_tokens: int | None = None
    ) -> Prepared:
        llm, limit = self._living(), self.max_model_len
        with translated():
            try:
                _, (engine_input,) = await llm.renderer.render_chat_async(
                    [[self._for_template(message) for message in request.messages]],
                    ChatParams(chat_template=self._template, chat_template_kwargs=dict(_TEMPLATE_OPTIONS)),
                    TokenizeParams(max_total_tokens=limit, add_special_tokens=False),
                    prompt_extras={"cache_salt": self._cache_salt(tenant)},
                )
            except VLLMValidationError as error:
                if error.parameter not in ("input_tokens", "input_text"):
                    raise
                # vLLM stops counting there.
                raise ContextLengthError(limit=limit, prompt_tokens=limit + 1, at_least=True) from error
            ids = engine_input["prompt_token_ids"]
            if len(ids) >= limit:
                raise ContextLengthError(limit=limit, prompt_tokens=len(ids))
            wanted = request.output_tokens or default_max_tokens or self._settings.default_max_tokens
            params = self._sampling_params(request, max_tokens=min(wanted, limit - len(ids)))
            configs = llm.vllm_config.speculative_config, llm.vllm_config.structured_outputs_config
            params.verify(llm.model_config, *configs, llm.renderer.tokenizer)
        return Prepared(
            id=f"mg-{secrets.token_hex(12)}",
            prompt_token_ids=ids,
            max_tokens=params.max_tokens,
            choices=request.choices,
            payload=_Work(engine_input, params),
        )

    async def generate(self, prepared: Prepared) -> AsyncGenerator[Snapshot]:
        work = prepared.payload
        assert isinstance(work, _Work), "prepared by another engine"
        llm, collector, finished = self._living(), None, False
        choices = [ChoiceSnapshot()] * prepared.choices
        self._running.add(prepared.id)
        try:
            with translated():
                # Not llm.generate(): that tells nothing between "accepted" and the first token.
                collector = await llm.add_request(prepared.id, work.engine_input, work.params)
            yield Snapshot(tuple(choices))
            while not finished:
                with translated():
                    output = collector.get_nowait() or await collector.get()
                for choice in output.outputs:
                    choices[choice.index] = ChoiceSnapshot(
                        choice.text, len(choice.token_ids), _stop_cause(choice.finish_reason)
                    )
                finished = output.finished
                yield Snapshot(tuple(choices), output.num_cached_tokens or 0)
        finally:
            self._running.discard(prepared.id)
            if collector is not None:
                collector.close()
            if not finished and not llm.errored:
                await llm.abort(prepared.id)

    async def abort(self, request_id: str) -> None:
        if self._llm is not None and not self._llm.errored:
            await self._llm.abort(request_id)

    async def check(self) -> None:
        llm = self._living()
        try:
            # The flag alone cannot see a hung core, and the future of a dead one never resolves.
            await asyncio.wait_for(llm.is_paused(), _CHECK_TIMEOUT)
        except TimeoutError:
            raise EngineUnavailableError(f"The engine did not answer for {_CHECK_TIMEOUT:.0f} s.") from None
        except Exception as error:
            raise unavailable(error) from error

    def load(self) -> Load:
        return Load(unfinished=self._llm.get_num_unfinished_requests() if self._llm is not None else 0)

    def _living(self) -> Any:
        if self._llm is None or self._llm.errored:
            raise EngineUnavailableError("The engine is not running.", retry_after=5.0)
        return self._llm

    def _cache_salt(self, tenant: str) -> str:
        """Keeps prefix-cache timing from telling one tenant about another's prompts."""
        return hashlib.blake2b(tenant.encode(), key=self._salt, digest_size=16).hexdigest()

    def _for_template(self, message: ChatMessage) -> dict[str, Any]:
        role = "system" if message.role == "developer" else message.role
        rendered: dict[str, Any] = {"role": role, "content": message.text}
        if message.name is not None:
            rendered["name"] = message.name
        if message.tool_calls:
            rendered["tool_calls"] = [call.model_dump() for call in message.tool_calls]
        if message.tool_call_id is not None:
            rendered["tool_call_id"] = message.tool_call_id
        return rendered

    def _sampling_params(self, request: ChatCompletionRequest, *, max_tokens: int) -> SamplingParams:
        asked = {name: value for name in _SAME if (value := getattr(request, name)) is not None}
        if request.top_p is not None:
            asked["top_p"] = max(request.top_p, _SMALLEST_TOP_P)
        return SamplingParams(
            **self._sampling_defaults | asked,
            n=request.choices,
            seed=request.seed,
            stop=request.stop or [],
            logit_bias={int(token): bias for token, bias in (request.logit_bias or {}).items()} or None,
            min_tokens=min(request.min_tokens or 0, max_tokens),
            max_tokens=max_tokens,
            output_kind=RequestOutputKind.CUMULATIVE,
            skip_clone=True,
        )


def _engine_args(settings: EngineSettings) -> dict[str, Any]:
    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    if unknown := sorted(settings.engine_args.keys() - known):
        raise ValueError(f"engine_args: vLLM has no engine argument named {', '.join(unknown)}")
    args: dict[str, Any] = {
        "scheduling_policy": "priority",
        # With "auto" the first structured request of the engine's life picks the backend for all.
        "structured_outputs_config": StructuredOutputsConfig(backend="xgrammar"),
        "shutdown_timeout": _SHUTDOWN_TIMEOUT,
        **settings.for_vllm(),
    }
    if current_platform.is_cpu():
        # A seeded request whose prefill is split kills the core: a CPU generator cannot be rewound.
        args["enable_chunked_prefill"] = False
        # Compiled, 0.32's CPU build answers fluently and wrongly; eager, it answers as transformers does.
        args["enforce_eager"] = True
    return args | settings.engine_args


def _stop_cause(reason: str | None) -> StopCause | None:
    if reason == "error":
        raise EngineError("The engine failed this request.")
    if reason == "repetition":
        return "stop"
    return reason  # type: ignore[return-value]  # what is left of vLLM's FinishReason is ours too
