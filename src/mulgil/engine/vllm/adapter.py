"""vLLM's `AsyncLLM` behind the engine port."""

import os
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vllm import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.renderers.chat_utils import load_chat_template
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM

from mulgil.engine.base import Prepared, Prompt, TextRequest, longest_answer
from mulgil.engine.leftovers import RunFile
from mulgil.engine.load import UNBOUNDED, Capacity, Load
from mulgil.engine.lora import NO_ADAPTERS, Adapter, AdapterRules
from mulgil.engine.snapshot import ChoiceSnapshot, Snapshot
from mulgil.engine.truncation import fitted, room_for_answer
from mulgil.engine.vllm.arguments import SHUTDOWN_TIMEOUT, SPARE_ADAPTERS, engine_args
from mulgil.engine.vllm.errors import translated, unavailable
from mulgil.engine.vllm.hosting import Deadline, HostedLLM
from mulgil.engine.vllm.inbox import Inbox, Pace
from mulgil.engine.vllm.loras import Hold, LoadedAdapters
from mulgil.engine.vllm.parsing import AnswerParsers
from mulgil.engine.vllm.prompts import PromptRenderer
from mulgil.engine.vllm.stats import NoSeries, SchedulerView
from mulgil.engine.vllm.strand import Strand
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.schemas.tokenize import TokenizeRequest
from mulgil.settings import EngineSettings
from mulgil.settings.parallel import peers

_NOBODY_READS_ALONG = 0.25
"""Seconds between two looks at an answer that is sent when it is whole; its lease is to know how far it is."""


@dataclass(frozen=True, slots=True)
class _Work:
    """What a prepared request is made of: its prompts, and the adapter that is to answer."""

    strands: list[Strand]
    hold: Hold | None


class VLLMEngine:
    """Implements `Engine` on an `AsyncLLM` of this process.

    Args:
        settings: the model, and how it is run.
        with_series: have vLLM keep its own series for Prometheus.
        traces_endpoint: where vLLM's processes send their spans; None for no spans at all.
        adapters: which LoRA adapters it can have.

    Raises:
        ValueError: `engine_args` names something that `AsyncEngineArgs` does not have, or this build of vLLM cannot
            spread a model so.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        with_series: bool = True,
        traces_endpoint: str | None = None,
        adapters: AdapterRules = NO_ADAPTERS,
    ) -> None:
        self._settings = settings
        self._args = {"otlp_traces_endpoint": traces_endpoint} | engine_args(settings, adapters)
        self._with_series = with_series
        self._running: dict[str, list[str]] = {}
        self._made = 0
        self._pace = Pace(settings.chunk_interval, settings.stream_events_per_second)
        deadline = Deadline(settings.engine_start_timeout, peers(self._args))
        self._hosted = HostedLLM(self._build, RunFile(settings.engine_run_folder), what="the engine", deadline=deadline)
        self._adapters = LoadedAdapters(self._hosted, adapters.most + SPARE_ADAPTERS)
        self._prompts: PromptRenderer
        self._parsers: AnswerParsers
        self._sampling_defaults: dict[str, Any] = {}
        self._scheduler = SchedulerView()
        self._capacity = UNBOUNDED

    @property
    def _llm(self) -> Any:
        return self._hosted.llm

    @property
    def max_model_len(self) -> int:
        return int(self._llm.model_config.max_model_len)

    @property
    def dead(self) -> bool:
        return self._hosted.dead

    @property
    def progress(self) -> int | None:
        return self._made if self._running else None

    async def start(self) -> None:
        await self._hosted.start()

    def _build(self) -> Any:
        template = load_chat_template(self._settings.chat_template)
        if self._args.get("enforce_eager") and current_platform.is_cpu():
            # Else the first request with logprobs compiles a kernel for 10 s, and all others wait with it.
            os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(**self._args),
            usage_context=UsageContext.OPENAI_API_SERVER,
            stat_loggers=[self._scheduler.logger, *(() if self._with_series else (NoSeries,))],
        )
        try:
            self._prompts = PromptRenderer(llm, template)
            self._prompts.warm_up()
            self._parsers = AnswerParsers(llm, self._settings)
        except Exception:
            llm.shutdown(SHUTDOWN_TIMEOUT)
            raise
        self._sampling_defaults = llm.model_config.get_diff_sampling_param()
        self._sampling_defaults.pop("max_tokens", None)  # always set by prepare()
        self._capacity = _capacity(llm.vllm_config)
        return llm

    async def stop(self) -> None:
        await self._hosted.stop(one for ids in self._running.values() for one in ids)

    async def load_adapter(self, adapter: Adapter) -> None:
        await self._adapters.load(adapter)

    async def unload_adapter(self, name: str) -> None:
        self._adapters.unload(name)

    async def prepare(
        self, request: TextRequest, *, tenant: str, default_max_tokens: int | None = None, adapter: str | None = None
    ) -> Prepared:
        self._hosted.living()
        hold = None if adapter is None else self._adapters.hold(adapter)
        self._prompts.check_ids(request)
        prepared_id = f"mg-{secrets.token_hex(12)}"
        wanted = longest_answer(request, default_max_tokens, self._settings.default_max_tokens)
        with translated():
            if isinstance(request, ChatCompletionRequest):
                self._parsers.check(request)
                room = room_for_answer(request, wanted, self.max_model_len)
                rendered, dropped = await fitted(
                    request, room, lambda asked, free: self._prompts.chat(asked, tenant=tenant, free=free)
                )
                inputs = [rendered]
            else:
                inputs, dropped = await self._prompts.texts(request.prompts, tenant=tenant), 0
            strands = [
                Strand(
                    f"{prepared_id}-{index}",
                    one,
                    min(wanted, self.max_model_len - len(one["prompt_token_ids"])),
                    request,
                )
                for index, one in enumerate(inputs)
            ]
            for strand in strands:
                await strand.settle_on(self._llm, self._parsers, self._sampling_defaults)
        return Prepared(
            id=prepared_id,
            prompts=tuple(Prompt(strand.prompt_token_ids, strand.max_tokens) for strand in strands),
            choices=request.choices,
            payload=_Work(strands, hold),
            dropped_messages=dropped,
            adapter=hold.adapter if hold else None,
        )

    async def tokenize(self, request: TokenizeRequest) -> list[int]:
        self._hosted.living()
        with translated():
            return await self._prompts.encode(request)

    async def detokenize(self, token_ids: Sequence[int]) -> list[str]:
        self._hosted.living()
        with translated():
            return await self._prompts.decode(token_ids)

    async def generate(self, prepared: Prepared) -> AsyncGenerator[Snapshot]:
        work = prepared.payload
        assert isinstance(work, _Work), "prepared by another engine"
        strands, lora = work.strands, work.hold.request if work.hold else None
        llm, collectors = self._hosted.living(), []
        inbox = Inbox(self._interval(strands[0]), self._on_output)
        choices = [ChoiceSnapshot()] * prepared.width
        cached = [0] * len(strands)
        self._running[prepared.id] = [strand.id for strand in strands]
        self._pace.streams = len(self._running)
        try:
            with translated():
                for index, strand in enumerate(strands):
                    collectors.append(await strand.submit(llm, prepared, lora))
                    inbox.attach(index, collectors[-1])  # one by one: those before a failure are to be closed
            yield Snapshot(tuple(choices))
            with translated():
                while not inbox.over:
                    new = await inbox.read()
                    if self._llm is not llm:
                        raise unavailable(None)  # stopped under it; what comes now is the end of that
                    for (index, number), (choice, output) in new.items():
                        choices[index * prepared.choices + number] = strands[index].told(choice, output)
                        cached[index] = output.num_cached_tokens or 0
                    yield Snapshot(tuple(choices), sum(cached))
        finally:
            await self._end(prepared, llm, inbox, collectors)

    async def _end(self, prepared: Prepared, llm: Any, inbox: Inbox, collectors: Sequence[Any]) -> None:
        """Nobody reads *prepared* any more: have *llm* make nothing of it any more, and let its adapter go."""
        ids = self._running.pop(prepared.id)
        self._pace.streams = len(self._running)
        for collector in collectors:
            collector.close()
        try:
            if not inbox.over and not llm.errored:
                await llm.abort(ids)
        finally:
            if prepared.payload.hold:  # type: ignore[attr-defined]  # generate() has looked at it
                prepared.payload.hold.release()  # type: ignore[attr-defined]  # as above

    def _interval(self, strand: Strand) -> Callable[[], float]:
        """Gives the seconds between two snapshots."""
        if strand.taken_apart:
            return lambda: 0.0
        return self._pace.now if strand.streamed else lambda: _NOBODY_READS_ALONG

    def _on_output(self) -> None:
        self._made += 1

    async def abort(self, request_id: str) -> None:
        if self._llm is not None and not self._llm.errored and (ids := self._running.get(request_id)):
            await self._llm.abort(ids)

    async def check(self) -> None:
        await self._hosted.check()

    def load(self) -> Load:
        if self._llm is None:
            return Load(unfinished=0)
        return Load(
            unfinished=self._llm.get_num_unfinished_requests(),
            waiting=self._scheduler.waiting,
            kv_usage=self._scheduler.kv_usage,
            capacity=self._capacity,
        )


def _capacity(config: Any) -> Capacity:
    """What all copies of the model in this process can do together."""
    copies = config.parallel_config.data_parallel_size
    kv_tokens = config.cache_config.kv_cache_size_tokens  # of one copy; None for a model without such a cache
    return Capacity(config.scheduler_config.max_num_seqs * copies, kv_tokens * copies if kv_tokens else None)
