"""What `Engine` promises of LoRA adapters, kept by every adapter of it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest
from harness import chat_body, eventually, script
from loras import alike, make_adapter

from mulgil.engine.base import Engine, Prepared
from mulgil.engine.lora import NO_ADAPTERS, Adapter, read_adapter
from mulgil.engine.simulated import SimulatedEngine
from mulgil.engine.snapshot import Snapshot
from mulgil.errors import ModelNotFoundError
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.schemas.completions import CompletionRequest

PROMPT = "Tell me about water."
Load = Callable[[str, int], Awaitable[Adapter]]


@pytest.fixture(params=["simulated", pytest.param("vllm", marks=pytest.mark.model)])
def engine(request: pytest.FixtureRequest) -> Engine:
    # Not async: a fixture that is running cannot have the server's fixture started.
    if request.param == "vllm":
        running: Engine = request.getfixturevalue("vllm_with_adapters").engine
        return running
    return SimulatedEngine(max_model_len=2048)


@pytest.fixture
def model(request: pytest.FixtureRequest, engine: Engine) -> Path | None:
    """The folder of the model that *engine* runs, if it runs one."""
    if isinstance(engine, SimulatedEngine):
        return None
    folder: Path = request.getfixturevalue("eight_heads")
    return folder


@pytest.fixture
async def load(engine: Engine, model: Path | None, tmp_path: Path) -> AsyncGenerator[Load]:
    """Loads an adapter under a name, with the weights of a seed; all are unloaded afterwards."""
    names = set()

    async def load(name: str, seed: int) -> Adapter:
        adapter = read_adapter(
            name, make_adapter(tmp_path / f"{name}-{seed}", model, seed=seed), NO_ADAPTERS, anywhere=True
        )
        await engine.load_adapter(adapter)
        names.add(name)
        return adapter

    yield load
    for name in names:
        await engine.unload_adapter(name)


async def prepare(engine: Engine, adapter: str | None, content: str = PROMPT, max_tokens: int = 6) -> Prepared:
    request = ChatCompletionRequest.model_validate(
        chat_body(content, temperature=0, max_tokens=max_tokens, stream=True, ignore_eos=True)
    )
    return await engine.prepare(request, tenant="t", adapter=adapter)


async def run(engine: Engine, prepared: Prepared) -> list[Snapshot]:
    return [snapshot async for snapshot in engine.generate(prepared)]


async def text(engine: Engine, adapter: str | None) -> str:
    return (await run(engine, await prepare(engine, adapter)))[-1].choices[0].text


async def test_an_adapter_answers_otherwise_and_the_model_as_before(engine: Engine, load: Load) -> None:
    without = await text(engine, None)
    await load("first", 1)
    await load("second", 2)
    texts = [await text(engine, name) for name in (None, "first", "second", None)]
    assert texts[0] == texts[3] == without
    assert len({*texts}) == 3


async def likeliest(engine: Engine, adapter: str | None) -> dict[str, float]:
    """The likeliest first tokens; of the simulated engine, which is always sure, the text."""
    if isinstance(engine, SimulatedEngine):
        return {await text(engine, adapter): 0.0}
    fields = {"logprobs": True, "top_logprobs": 20, "max_tokens": 1, "temperature": 0}
    request = ChatCompletionRequest.model_validate(chat_body(PROMPT, **fields))
    answer = await run(engine, await engine.prepare(request, tenant="t", adapter=adapter))
    return dict(answer[-1].choices[0].logprobs[0].top)


async def test_at_the_same_time_each_has_its_own(engine: Engine, load: Load) -> None:
    await load("first", 1)
    await load("second", 2)
    alone = {name: await likeliest(engine, name) for name in (None, "first", "second")}
    names = [None, "first", "second", "first", None, "second"]
    together = await asyncio.gather(*(likeliest(engine, name) for name in names))
    for name, told in zip(names, together, strict=True):
        assert [other for other, known in alone.items() if alike(told, known)] == [name]


async def test_it_streams_and_the_prompt_is_the_same(engine: Engine, load: Load) -> None:
    adapter = await load("first", 1)
    prepared, plain = await prepare(engine, "first", max_tokens=40), await prepare(engine, None)
    assert prepared.adapter == adapter
    assert plain.adapter is None
    assert prepared.prompts[0].token_ids == plain.prompts[0].token_ids
    snapshots = await run(engine, prepared)
    assert snapshots[0].completion_tokens == 0
    assert len({snapshot.completion_tokens for snapshot in snapshots}) > 3


async def test_completions_have_adapters_too(engine: Engine, load: Load) -> None:
    await load("first", 1)
    request = CompletionRequest.model_validate(
        {"model": "any", "prompt": ["a b", "c d"], "max_tokens": 8, "temperature": 0}
    )
    with_it = await run(engine, await engine.prepare(request, tenant="t", adapter="first"))
    without = await run(engine, await engine.prepare(request, tenant="t"))
    for one, other in zip(with_it[-1].choices, without[-1].choices, strict=True):
        assert one.text != other.text


async def test_one_that_there_is_not_is_a_model_that_does_not_exist(engine: Engine, load: Load) -> None:
    with pytest.raises(ModelNotFoundError):
        await prepare(engine, "nobody")
    await load("first", 1)
    await engine.unload_adapter("first")
    with pytest.raises(ModelNotFoundError):
        await prepare(engine, "first")
    await engine.unload_adapter("first")
    await engine.unload_adapter("nobody")


async def test_what_was_prepared_ends_with_the_version_it_was_prepared_with(engine: Engine, load: Load) -> None:
    first = await load("one", 1)
    before, waiting = await text(engine, "one"), await prepare(engine, "one")
    second = await load("one", 2)
    after = await text(engine, "one")
    assert (await run(engine, waiting))[-1].choices[0].text == before != after
    assert waiting.adapter == first
    assert (await prepare(engine, "one")).adapter == second
    await load("one", 1)
    assert await text(engine, "one") == before


async def test_what_runs_when_it_is_unloaded_ends_as_if_it_were_not(engine: Engine, load: Load) -> None:
    await load("one", 1)
    content = script(PROMPT, tokens=60, gap=0.005)
    whole = (await run(engine, await prepare(engine, "one", content, 60)))[-1]
    snapshots: list[Snapshot] = []

    async def collect(prepared: Prepared) -> None:
        async for snapshot in engine.generate(prepared):
            snapshots.append(snapshot)

    running = asyncio.create_task(collect(await prepare(engine, "one", content, 60)))
    await eventually(lambda: bool(snapshots) and snapshots[-1].completion_tokens >= 3, within=20)
    await engine.unload_adapter("one")
    await running
    assert snapshots[-1].choices == whole.choices
    assert snapshots[-1].completion_tokens == 60


async def test_the_same_version_again_changes_nothing(engine: Engine, load: Load) -> None:
    first = await load("one", 1)
    before = await text(engine, "one")
    assert await load("one", 1) == first
    assert await text(engine, "one") == before
