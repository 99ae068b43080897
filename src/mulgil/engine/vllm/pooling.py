"""An embedding model on a vLLM engine of its own, beside the one that chats. Written against vLLM 0.32.

What is not obvious here was found by running 0.32.0:

- `encode()` aborts when its task is cancelled, not when its iterator is closed.
- `PoolingParams` without a task gives one vector for each token.
- An aborted request ends as a finished one, with an empty vector.
"""

import dataclasses
import secrets
from array import array
from contextlib import aclosing
from pathlib import Path
from typing import Any

from vllm import AsyncEngineArgs, PoolingParams
from vllm.exceptions import VLLMValidationError
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM

from mulgil.engine.embedding import PreparedInputs, Vector, check_token_ids, in_order
from mulgil.engine.leftovers import RunFile
from mulgil.engine.load import Load
from mulgil.engine.vllm.arguments import SHUTDOWN_TIMEOUT
from mulgil.engine.vllm.errors import translated
from mulgil.engine.vllm.hosting import HostedLLM
from mulgil.errors import (
    ContextLengthError,
    EngineUnavailableError,
    UnsupportedParameterError,
    UnsupportedValueError,
)
from mulgil.schemas.embedding import EmbeddingRequest
from mulgil.settings import EmbeddingSettings

_AT_ONCE = 64
_CPU_CACHE = 2**30


@dataclasses.dataclass(frozen=True, slots=True)
class _Work:
    engine_inputs: list[dict[str, Any]]
    dimensions: int | None


class VLLMEmbedder:
    """Implements `Embedder` on an `AsyncLLM` of this process.

    Args:
        settings: of the model.
        run_folder: where its processes are noted.

    Raises:
        ValueError: `embeddings_engine_args` names something that `AsyncEngineArgs` does not have.
    """

    def __init__(self, settings: EmbeddingSettings, run_folder: Path) -> None:
        self._args = _engine_args(settings)
        self._running: set[str] = set()
        self._hosted = HostedLLM(self._build, RunFile(run_folder), what="the embedding engine")

    @property
    def max_model_len(self) -> int:
        return int(self._hosted.living().model_config.max_model_len)

    @property
    def dead(self) -> bool:
        return self._hosted.dead

    @property
    def progress(self) -> int | None:
        return None  # a request is too short to stall

    async def start(self) -> None:
        await self._hosted.start()

    def _build(self) -> Any:
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**self._args), usage_context=UsageContext.OPENAI_API_SERVER)

    async def stop(self) -> None:
        await self._hosted.stop(self._running)

    async def prepare(self, request: EmbeddingRequest) -> PreparedInputs:
        llm = self._hosted.living()
        check_token_ids(request, llm.model_config.get_vocab_size())
        _check_dimensions(request, llm.model_config)

        async def rendered(index: int, entry: str | list[int]) -> dict[str, Any]:
            return await _rendered(llm, entry, request.path(index))

        engine_inputs = await in_order(rendered, request.inputs, at_once=_AT_ONCE)
        counts = tuple(len(one["prompt_token_ids"]) for one in engine_inputs)
        return PreparedInputs(counts, _Work(engine_inputs, request.dimensions))

    async def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        renderer = self._hosted.living().renderer
        usual = renderer.default_cmpl_tok_params
        params = dataclasses.replace(usual, max_total_tokens=None, add_special_tokens=special)
        with translated():
            (engine_input,) = await renderer.render_cmpl_async([{"prompt": text}], params)
        return list(engine_input["prompt_token_ids"])

    async def embed(self, prepared: PreparedInputs) -> list[Vector]:
        work, llm = prepared.payload, self._hosted.living()
        assert isinstance(work, _Work), "prepared by another embedder"

        async def encoded(_: int, engine_input: dict[str, Any]) -> Vector:
            return await self._encoded(llm, engine_input, PoolingParams(task="embed", dimensions=work.dimensions))

        return await in_order(encoded, work.engine_inputs, at_once=_AT_ONCE)

    async def _encoded(self, llm: Any, engine_input: dict[str, Any], params: PoolingParams) -> Vector:
        request_id = f"mg-{secrets.token_hex(12)}"
        self._running.add(request_id)
        vector: Vector = array("f")
        try:
            with translated():
                async with aclosing(llm.encode(engine_input, params, request_id)) as outputs:
                    async for output in outputs:
                        vector = array("f", output.outputs.data.float().cpu().numpy().tobytes())
        finally:
            self._running.discard(request_id)
        if not vector:
            raise EngineUnavailableError("The server is shutting down.")  # only stop() aborts
        return vector

    async def check(self) -> None:
        await self._hosted.check()

    def load(self) -> Load:
        llm = self._hosted.llm
        return Load(unfinished=llm.get_num_unfinished_requests() if llm is not None else 0)


async def _rendered(llm: Any, entry: str | list[int], path: str) -> dict[str, Any]:
    """What the engine is given for *entry*, tokenised in a thread of vLLM's."""
    limit = int(llm.model_config.max_model_len)
    if not isinstance(entry, str) and len(entry) > limit:
        raise ContextLengthError(limit=limit, prompt_tokens=len(entry), param=path)
    prompt = {"prompt": entry} if isinstance(entry, str) else {"prompt_token_ids": entry}
    with translated():
        try:
            (engine_input,) = await llm.renderer.render_cmpl_async([prompt])
        except VLLMValidationError as error:
            if error.parameter not in ("input_tokens", "input_text"):
                raise
            # vLLM stops counting there.
            raise ContextLengthError(limit=limit, prompt_tokens=limit + 1, at_least=True, param=path) from error
    return dict(engine_input)


def _check_dimensions(request: EmbeddingRequest, model_config: Any) -> None:
    if request.dimensions is None:
        return
    if not model_config.is_matryoshka:
        raise UnsupportedParameterError(
            "Unsupported parameter: 'dimensions' is not supported by this model, whose vectors have one length only.",
            param="dimensions",
        )
    try:
        PoolingParams(task="embed", dimensions=request.dimensions).verify(model_config)
    except VLLMValidationError as error:
        raise UnsupportedValueError(str(error.args[0]), param="dimensions") from error


def _engine_args(settings: EmbeddingSettings) -> dict[str, Any]:
    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    if unknown := sorted(settings.embeddings_engine_args.keys() - known):
        raise ValueError(f"embeddings_engine_args: vLLM has no engine argument named {', '.join(unknown)}")
    args: dict[str, Any] = {
        "model": settings.embeddings_model,
        "served_model_name": list(settings.embedding_names),
        "runner": "pooling",
        "max_num_seqs": _AT_ONCE,
        # With statistics it would take the chat engine's metrics out of the registry.
        "disable_log_stats": True,
        # How fast a text is embedded must not tell whether another tenant has sent it before.
        "enable_prefix_caching": False,
        "shutdown_timeout": SHUTDOWN_TIMEOUT,
    }
    if current_platform.is_cpu():
        args["enforce_eager"] = True  # as for the chat engine: compiled, 0.32's CPU build computes wrongly
        # "auto" makes float16 of most of these models, which took 3.5 times as long for the same vectors.
        args["dtype"] = "float32"
        # By default it takes what the chat engine has already taken. Encoders need no cache at all.
        args["kv_cache_memory_bytes"] = _CPU_CACHE
    else:
        # The chat engine has taken nearly all there is; a model that needs more than this has to be told so.
        args["gpu_memory_utilization"] = 0.05
    return args | settings.embeddings_engine_args
