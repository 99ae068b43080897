"""LoRA adapters in vLLM: what it is not given, what it is made to forget, and an engine that is rebuilt."""

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest
from harness import Server, chat_body, eventually
from loras import alike, make_adapter, write_tensors

from mulgil.engine.base import Engine, Prepared
from mulgil.engine.lora import NO_ADAPTERS, Adapter, AdapterRules, read_adapter
from mulgil.engine.snapshot import TokenLogprob
from mulgil.errors import AdapterConflictError, InvalidFieldError, ModelNotFoundError
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.settings import EngineSettings

pytestmark = pytest.mark.model

REQUEST = ChatCompletionRequest.model_validate(chat_body("Tell me about water.", temperature=0, max_tokens=12))
Q_PROJ = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"


def adapter(name: str, folder: Path) -> Adapter:
    return read_adapter(name, folder, NO_ADAPTERS, anywhere=True)


@pytest.mark.parametrize(("rank", "room"), [(1, 1), (16, 16), (17, 32), (512, 512)])
def test_vllm_keeps_room_for_adapters_only_where_there_may_be_some(rank: int, room: int) -> None:
    from mulgil.engine.vllm.arguments import engine_args  # noqa: PLC0415 - imports vLLM

    alone = engine_args(EngineSettings(model="m"), NO_ADAPTERS)
    rules = AdapterRules(enabled=True, most=3, max_rank=rank)
    args = engine_args(EngineSettings(model="m"), rules)
    assert {name: args[name] for name in args.keys() - alone.keys()} == {
        "enable_lora": True,
        # Three, one that is replaced, and on CPU one that stays empty.
        "max_loras": 5,
        "max_cpu_loras": 5,
        "max_lora_rank": room,
    }


@pytest.mark.parametrize("name", ["enable_lora", "max_loras", "max_cpu_loras", "max_lora_rank"])
def test_how_much_room_there_is_follows_from_the_settings_alone(name: str) -> None:
    from mulgil.engine.vllm.arguments import engine_args  # noqa: PLC0415 - imports vLLM

    with pytest.raises(ValueError, match=f"engine_args: {name} follows from 'max_adapters'"):
        engine_args(EngineSettings(model="m", engine_args={name: 1}), NO_ADAPTERS)


@pytest.fixture
def adapter_folder(vllm_with_adapters: Server, tmp_path: Path) -> Path:
    """Where adapters may lie that are loaded while it runs."""
    (folder,) = vllm_with_adapters.mulgil.adapters._rules.folders
    return folder / tmp_path.name


async def text(engine: Engine, name: str | None) -> str:
    prepared = await engine.prepare(REQUEST, tenant="t", adapter=name)
    return [snapshot async for snapshot in engine.generate(prepared)][-1].choices[0].text


@pytest.mark.parametrize(
    ("shapes", "told"),
    [
        ({Q_PROJ.format(0, "A"): (8, 100), Q_PROJ.format(0, "B"): (256, 8)}, "hidden size is 100"),
        ({Q_PROJ.format(2, "A"): (8, 64), Q_PROJ.format(2, "B"): (256, 8)}, "more than the 2 layers"),
        ({Q_PROJ.format(0, "A"): (8, 64), Q_PROJ.format(0, "B"): (900, 8)}, "does not take it: .*size"),
        ({Q_PROJ.format(0, "A").replace("q_proj", "x"): (8, 64)}, "does not take it: .*expected target modules"),
    ],
    ids=["another hidden size", "more layers", "more heads", "a module that it does not have"],
)
async def test_one_for_another_model_is_refused_and_the_engine_goes_on(
    vllm_with_adapters: Server, eight_heads: Path, tmp_path: Path, shapes: dict[str, tuple[int, int]], told: str
) -> None:
    engine, made = vllm_with_adapters.engine, make_adapter(tmp_path / "made", eight_heads)
    write_tensors(made, shapes)
    with pytest.raises(InvalidFieldError, match=told) as refusal:
        await engine.load_adapter(adapter("bad", made))
    assert refusal.value.param == "path"
    assert "stack trace" not in refusal.value.message
    with pytest.raises(ModelNotFoundError):
        await text(engine, "bad")
    assert await text(engine, None)
    assert len(await resident(engine)) == 1  # the one it began with


async def resident(engine: Any) -> set[int]:
    """The ids of the adapters that the core has."""
    return set(await engine._llm.list_loras())


async def test_one_that_is_unloaded_leaves_the_core_when_nobody_can_ask_for_it_any_more(
    vllm_with_adapters: Server, eight_heads: Path, tmp_path: Path
) -> None:
    engine = vllm_with_adapters.engine
    await engine.load_adapter(adapter("one", make_adapter(tmp_path / "one", eight_heads)))
    kept = await engine.prepare(REQUEST, tenant="t", adapter="one")
    dropped = await engine.prepare(REQUEST, tenant="t", adapter="one")
    await engine.unload_adapter("one")
    assert len(await resident(engine)) == 2
    del dropped
    gc.collect()
    assert [snapshot async for snapshot in engine.generate(kept)][-1].completion_tokens == 12
    loras: Any = engine
    await eventually(lambda: loras._adapters._resident == 1)
    assert len(await resident(engine)) == 1  # the one it began with


async def test_there_is_room_for_one_more_that_running_requests_still_need_and_not_for_two(
    vllm_with_adapters: Server, eight_heads: Path, tmp_path: Path
) -> None:
    engine: Any = vllm_with_adapters.engine
    made = [adapter("one", make_adapter(tmp_path / f"{seed}", eight_heads, seed=seed)) for seed in range(5)]
    waiting = []
    for version in made[:4]:
        await engine.load_adapter(version)
        waiting.append(await engine.prepare(REQUEST, tenant="t", adapter="one"))
    with pytest.raises(AdapterConflictError):
        await engine.load_adapter(made[4])
    texts = set()
    for prepared in waiting:
        texts.add([snapshot async for snapshot in engine.generate(prepared)][-1].choices[0].text)
    assert len(texts) == 4
    await eventually(lambda: engine._adapters._resident == 2)
    await engine.load_adapter(made[4])
    await engine.unload_adapter("one")
    await eventually(lambda: engine._adapters._resident == 1)


async def test_the_model_alone_answers_as_itself_beside_as_many_adapters_as_there_can_be(
    vllm_with_adapters: Server, eight_heads: Path, tmp_path: Path
) -> None:
    engine: Any = vllm_with_adapters.engine
    asked = REQUEST.model_copy(update={"logprobs": True, "top_logprobs": 20, "max_tokens": 4})

    async def prepared(name: str | None) -> Prepared:
        ready: Prepared = await engine.prepare(asked, tenant="t", adapter=name)
        return ready

    async def steps(ready: Prepared) -> list[TokenLogprob]:
        return list([snapshot async for snapshot in engine.generate(ready)][-1].choices[0].logprobs)

    alone = await steps(await prepared(None))
    replaced = []
    for name, seed in (("one", 1), ("two", 2), ("three", 3), ("three", 4)):
        await engine.load_adapter(adapter(name, make_adapter(tmp_path / f"{name}-{seed}", eight_heads, seed=seed)))
        replaced.append(await prepared(name))
    assert len(await resident(engine)) == 5
    others = [*replaced, await prepared("begun")]
    for _ in range(2):  # their slots are taken with the first of these
        told, *_ = await asyncio.gather(*(steps(one) for one in (await prepared(None), *others)))
        for position, (now, then) in enumerate(zip(told, alone, strict=True)):
            assert alike(dict(now.top), dict(then.top)), position
            if now.text != then.text:
                break
        others = [await prepared(name) for name in ("one", "two", "three", "begun")]
    for name in ("one", "two", "three"):
        await engine.unload_adapter(name)
    del replaced, others
    gc.collect()
    await eventually(lambda: engine._adapters._resident == 1)


@pytest.mark.timeout(180)
async def test_an_engine_that_is_rebuilt_has_its_adapters_again(
    vllm_with_adapters: Server, eight_heads: Path, adapter_folder: Path
) -> None:
    server, names = vllm_with_adapters, (None, "begun", "later")
    first: Any = server.engine
    await server.mulgil.adapters.load(lambda: first, "later", make_adapter(adapter_folder / "later", eight_heads))
    texts = [await text(first, name) for name in names]
    assert len({*texts}) == 3
    (core,) = first._llm.engine_core.resources.engine_manager.processes
    core.kill()
    await eventually(lambda: server.mulgil.supervisor.health.state == "rebuilding", within=20)
    await eventually(lambda: server.mulgil.supervisor.health.state == "ready", within=120)
    assert server.engine is not first
    assert [await text(server.engine, name) for name in names] == texts
    await server.mulgil.adapters.unload(lambda: server.engine, "later")
    with pytest.raises(ModelNotFoundError):
        await text(server.engine, "later")
    assert await text(server.engine, "begun") == texts[1]
