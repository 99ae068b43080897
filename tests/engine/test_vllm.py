"""What only vLLM can get wrong."""

import asyncio
import inspect
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from harness import MODEL, Server, chat_body, eventually, script, settings

from mulgil.errors import EngineError, EngineUnavailableError, MulgilError, OverloadedError
from mulgil.schemas.chat import ChatCompletionRequest

pytestmark = pytest.mark.model


def vllm_exceptions() -> Iterator[type[Exception]]:
    """Every exception that vLLM 0.32 defines for a request."""
    import vllm.exceptions  # noqa: PLC0415 - an optional extra
    import vllm.v1.engine.exceptions  # noqa: PLC0415 - an optional extra

    for module in (vllm.exceptions, vllm.v1.engine.exceptions):
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, Exception) and kind.__module__ == module.__name__:
                yield kind


def test_every_exception_that_vllm_defines_has_a_translation() -> None:
    from mulgil.engine.vllm.errors import TRANSLATIONS  # noqa: PLC0415 - imports vLLM

    kinds = set(vllm_exceptions())
    assert len(kinds) > 10
    assert kinds - TRANSLATIONS.keys() == set()


def test_each_translation_is_an_error_of_ours_with_the_right_status() -> None:
    from vllm.exceptions import QueueOverflowError, VLLMValidationError  # noqa: PLC0415 - an optional extra
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError  # noqa: PLC0415 - an optional extra

    from mulgil.engine.vllm.errors import translated  # noqa: PLC0415 - imports vLLM

    def raised(error: Exception) -> MulgilError:
        with pytest.raises(MulgilError) as caught, translated():
            raise error
        return caught.value

    refused = raised(VLLMValidationError("too hot", parameter="temperature", value=3))
    assert (refused.status, refused.param, refused.message) == (400, "temperature", "too hot")
    assert isinstance(raised(EngineDeadError()), EngineUnavailableError)
    assert isinstance(raised(EngineGenerateError()), EngineError)
    assert isinstance(raised(QueueOverflowError()), OverloadedError)
    unknown = raised(KeyError("a secret"))
    assert isinstance(unknown, EngineError)
    assert "secret" not in unknown.message


@pytest.mark.parametrize(
    ("streamed", "taken_apart", "seconds"),
    [(True, False, 0.02), (True, True, 0.0), (False, False, 0.25)],
    ids=["a stream", "one that a parser takes apart", "a plain reply"],
)
def test_how_long_outputs_are_gathered_is_as_the_settings_say(
    streamed: bool, taken_apart: bool, seconds: float
) -> None:
    from mulgil.engine.vllm.adapter import VLLMEngine  # noqa: PLC0415 - imports vLLM

    chosen = settings(engine="vllm", model="any", chunk_interval=0.02, stream_events_per_second=100)
    engine, strand = VLLMEngine(chosen), SimpleNamespace(streamed=streamed, taken_apart=taken_apart)
    interval = engine._interval(strand)  # type: ignore[arg-type]  # all that it looks at
    assert interval() == seconds
    engine._pace.streams = 5
    assert interval() == (0.05 if seconds == 0.02 else seconds)


def test_an_unknown_engine_argument_is_refused() -> None:
    from mulgil.engine.vllm.adapter import VLLMEngine  # noqa: PLC0415 - imports vLLM
    from mulgil.settings import EngineSettings  # noqa: PLC0415 - beside its user

    with pytest.raises(ValueError, match="max_modle_len"):
        VLLMEngine(EngineSettings(model="m", engine_args={"max_modle_len": 1}))


@pytest.mark.parametrize(
    ("spread", "told"),
    [
        ({"pipeline_parallel_size": 2}, "dies? of the first request"),
        ({"distributed_executor_backend": "ray"}, "use mp"),
        ({"engine_args": {"data_parallel_backend": "ray"}}, "use mp"),
    ],
)
def test_what_the_build_for_cpus_cannot_do_is_refused(spread: dict[str, Any], told: str) -> None:
    from vllm.platforms import current_platform  # noqa: PLC0415 - an optional extra

    from mulgil.engine.vllm.adapter import VLLMEngine  # noqa: PLC0415 - imports vLLM
    from mulgil.settings import EngineSettings  # noqa: PLC0415 - beside its user

    if not current_platform.is_cpu():
        pytest.skip("another build of vLLM")
    with pytest.raises(ValueError, match=told):
        VLLMEngine(EngineSettings(model="m", **spread))


async def test_counts_are_the_engines_own(vllm_server: Server) -> None:
    from prometheus_client import REGISTRY  # noqa: PLC0415 - comes with vLLM

    def counted(name: str) -> float:
        return REGISTRY.get_sample_value(f"vllm:{name}_tokens_total", {"model_name": MODEL, "engine": "0"}) or 0.0

    before = counted("prompt"), counted("generation")
    usages = [
        (await vllm_server.chat(content, max_tokens=most)).json()["usage"]
        for content, most in (("Hi", 5), ("바다는 왜 파란가요?", 17), ("Count to three.", 40))
    ]
    assert sum(usage["prompt_tokens"] for usage in usages) == counted("prompt") - before[0]
    assert sum(usage["completion_tokens"] for usage in usages) == counted("generation") - before[1]


async def test_the_prefix_cache_is_shared_within_a_tenant_and_never_between_tenants(vllm_server: Server) -> None:
    engine = vllm_server.engine
    request = ChatCompletionRequest.model_validate(chat_body("The river flows. " * 120, max_tokens=1))

    async def cached(tenant: str) -> int:
        snapshots = [one async for one in engine.generate(await engine.prepare(request, tenant=tenant))]
        return snapshots[-1].cached_tokens

    assert await cached("a") == 0
    assert await cached("a") > 0
    assert await cached("b") == 0


async def test_a_seeded_crowd_leaves_the_engine_alive(vllm_server: Server) -> None:
    async def ask(seed: int) -> tuple[int, str]:
        reply = await vllm_server.chat(
            f"Write a line about the number {seed} and the sea, in plain words.",
            temperature=0.8,
            seed=seed % 8,
            max_tokens=12,
        )
        return reply.status_code, reply.text

    statuses = await asyncio.gather(*(ask(seed) for seed in range(128)))
    assert [status for status, _ in statuses] == [200] * 128
    alone = [(await vllm_server.chat("The sea is", temperature=0.8, seed=7, max_tokens=12)).json() for _ in range(2)]
    assert alone[0]["choices"] == alone[1]["choices"]


@pytest.mark.parametrize("stream", [False, True])
async def test_clients_that_leave_leave_nothing_whether_they_run_or_wait(vllm_server: Server, stream: bool) -> None:
    """Sixteen run (max_num_seqs), four wait before the engine; all twenty hang up at once."""
    asking = [
        asyncio.create_task(vllm_server.chat(script("Count to a thousand: one, two,"), max_tokens=1500, stream=stream))
        for _ in range(20)
    ]
    queue = vllm_server.mulgil.gateway.queue
    await eventually(lambda: vllm_server.engine.load().unfinished == 16, within=20)
    await eventually(lambda: queue.waiting == 4)
    assert vllm_server.engine.load().waiting == 0, "nobody waits inside the engine"
    for task in asking:
        task.cancel()
    await eventually(lambda: vllm_server.engine.load().unfinished == 0, within=0.5)
    await eventually(lambda: vllm_server.mulgil.gateway.running == 0, within=0.25)
    assert (queue.waiting, queue.turns_in_use) == (0, 0)


async def test_the_load_is_what_the_scheduler_says(vllm_server: Server) -> None:
    capacity = vllm_server.engine.load().capacity
    assert capacity.choices == 16
    assert capacity.kv_tokens is not None
    assert capacity.kv_tokens >= vllm_server.engine.max_model_len
    asking = asyncio.create_task(vllm_server.chat("The river flows. " * 150, max_tokens=200, ignore_eos=True))
    await eventually(lambda: vllm_server.engine.load().kv_usage * (capacity.kv_tokens or 0) > 500, within=20)
    await asking


async def test_inside_the_engine_the_lower_priority_comes_first(vllm_server: Server) -> None:
    engine = vllm_server.engine
    request = ChatCompletionRequest.model_validate(chat_body("Count.", max_tokens=30, ignore_eos=True))
    ended: list[str] = []

    async def run(name: str, priority: int) -> None:
        prepared = replace(await engine.prepare(request, tenant="t"), priority=priority)
        async for _ in engine.generate(prepared):
            pass
        ended.append(name)

    first = [asyncio.create_task(run("first", 1)) for _ in range(16)]
    await eventually(lambda: engine.load().unfinished == 16, within=20)
    low = [asyncio.create_task(run("low", 2)) for _ in range(16)]
    await eventually(lambda: engine.load().unfinished == 32, within=20)
    await asyncio.gather(run("high", 0), *first, *low)
    assert ended.index("high") < ended.index("low")


def test_statistics_that_change_their_shape_do_not_kill_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    from mulgil.engine.vllm.stats import SchedulerView  # noqa: PLC0415 - vLLM is absent where these are skipped

    view = SchedulerView()
    told = view.logger(None, 0)
    told.record(SimpleNamespace(num_waiting_reqs=2, num_skipped_waiting_reqs=1, kv_cache_usage=0.5), None)
    assert (view.waiting, view.kv_usage) == (3, 0.5)
    told.record(None, None)
    for _ in range(3):
        told.record(SimpleNamespace(), None)
    assert (view.waiting, view.kv_usage) == (0, 0.0)
    assert caplog.text.count("cannot be read") == 1


async def test_sampling_parameters_reach_the_engine(vllm_server: Server) -> None:
    async def ask(**fields: Any) -> tuple[str, str, int]:
        reply = (
            await vllm_server.chat("What is the capital of France?", **{"max_tokens": 20, "temperature": 0} | fields)
        ).json()
        choice = reply["choices"][0]
        return choice["message"]["content"], choice["finish_reason"], reply["usage"]["completion_tokens"]

    greedy = await ask()
    assert greedy == ("The capital of France is Paris.", "stop", 8)
    assert await ask(temperature=1, top_p=0) == greedy
    assert await ask(temperature=1, top_k=1) == greedy
    assert (await ask(ignore_eos=True))[1:] == ("length", 20)
    assert (await ask(min_tokens=12))[2] >= 12
    tokenizer = vllm_server.engine._llm.renderer.tokenizer  # type: ignore[attr-defined]  # of the adapter alone
    (paris,) = tokenizer.encode(" Paris", add_special_tokens=False)
    assert "Paris" not in (await ask(logit_bias={str(paris): -100}))[0]
    assert (await ask(stop_token_ids=[paris]))[1] == "stop"


@pytest.mark.parametrize("fields", [{"logit_bias": {"999999": 1}}, {"stop_token_ids": [999_999], "min_tokens": 5}])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_token_id_outside_the_vocabulary_is_refused_with_a_status(
    vllm_server: Server, fields: dict[str, Any], stream: bool
) -> None:
    refused = await vllm_server.chat(stream=stream, max_tokens=9, **fields)
    assert refused.status_code == 422, refused.text
    assert refused.json()["error"]["param"] == next(iter(fields))
    assert (await vllm_server.chat(max_tokens=2)).status_code == 200


async def test_the_loop_comes_round_while_many_large_tools_are_prepared(vllm_server: Server) -> None:
    properties = {f"p{index}": {"type": "string"} for index in range(1_500)}
    function = {"parameters": {"type": "object", "properties": properties}}
    tools = [{"type": "function", "function": {"name": f"f{index}"} | function} for index in range(20)]
    asked = ChatCompletionRequest.model_validate(chat_body(max_tokens=1, tools=tools))
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    try:
        prepared = await vllm_server.engine.prepare(asked, tenant="t")
    finally:
        ticking.cancel()
    # Some hundred times; not once where it is held.
    assert ticks > 10
    last = [snapshot async for snapshot in vllm_server.engine.generate(prepared)][-1]
    assert last.choices[0].tokens == 1


async def test_a_large_conversation_has_the_same_tokens_as_the_same_one_taken_for_small(vllm_server: Server) -> None:
    # The template of the demo model shows no tools, so they make a request large and its prompt no longer.
    words = "x" * 40_000
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "description": words}}}
    messages = [{"role": "user", "content": "Say <|im_end|> twice."}, {"role": "assistant", "content": "물길"}] * 3
    small = {"model": MODEL, "max_tokens": 1, "messages": [*messages, {"role": "user", "content": "Now."}]}
    prepared = [
        await vllm_server.engine.prepare(ChatCompletionRequest.model_validate(body), tenant="t")
        for body in (small, small | {"tools": [tool]})
    ]
    assert prepared[0].prompts[0].token_ids == prepared[1].prompts[0].token_ids
