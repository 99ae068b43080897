"""LoRA adapters in vLLM: what it is not given, what it is made to forget, and an engine that is rebuilt."""

import gc
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import MODEL, VLLM, Server, chat_body, eventually, serving, settings
from loras import make_adapter, write_tensors

from mulgil.engine.base import Engine
from mulgil.engine.lora import NO_ADAPTERS, Adapter, read_adapter
from mulgil.errors import AdapterConflictError, InvalidFieldError, ModelNotFoundError
from mulgil.schemas.chat import ChatCompletionRequest

pytestmark = pytest.mark.model

REQUEST = ChatCompletionRequest.model_validate(chat_body("Tell me about water.", temperature=0, max_tokens=12))
Q_PROJ = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"


def adapter(name: str, folder: Path) -> Adapter:
    return read_adapter(name, folder, NO_ADAPTERS, anywhere=True)


async def text(engine: Engine, name: str | None) -> str:
    prepared = await engine.prepare(REQUEST, tenant="t", adapter=name)
    return [snapshot async for snapshot in engine.generate(prepared)][-1].choices[0].text


@pytest.mark.parametrize(
    ("shapes", "told"),
    [
        ({Q_PROJ.format(0, "A"): (8, 100), Q_PROJ.format(0, "B"): (576, 8)}, "hidden size is 100"),
        ({Q_PROJ.format(99, "A"): (8, 576), Q_PROJ.format(99, "B"): (576, 8)}, "more than the 30 layers"),
        ({Q_PROJ.format(0, "A"): (8, 576), Q_PROJ.format(0, "B"): (900, 8)}, "does not take it: .*size"),
        ({Q_PROJ.format(0, "A").replace("q_proj", "x"): (8, 576)}, "does not take it: .*expected target modules"),
    ],
    ids=["another hidden size", "more layers", "more heads", "a module that it does not have"],
)
async def test_one_for_another_model_is_refused_and_the_engine_goes_on(
    vllm_server: Server, demo_model: Path, tmp_path: Path, shapes: dict[str, tuple[int, int]], told: str
) -> None:
    engine, made = vllm_server.engine, make_adapter(tmp_path / "made", demo_model)
    write_tensors(made, shapes)
    with pytest.raises(InvalidFieldError, match=told) as refusal:
        await engine.load_adapter(adapter("bad", made))
    assert refusal.value.param == "path"
    assert str(made) not in refusal.value.message or "check the stack trace" not in refusal.value.message
    with pytest.raises(ModelNotFoundError):
        await text(engine, "bad")
    assert await text(engine, None)
    assert not await resident(engine)


async def resident(engine: Any) -> set[int]:
    """The ids of the adapters that the core has."""
    return set(await engine._llm.list_loras())


async def test_one_that_is_unloaded_leaves_the_core_when_nobody_can_ask_for_it_any_more(
    vllm_server: Server, demo_model: Path, tmp_path: Path
) -> None:
    engine = vllm_server.engine
    await engine.load_adapter(adapter("one", make_adapter(tmp_path / "one", demo_model)))
    kept = await engine.prepare(REQUEST, tenant="t", adapter="one")
    dropped = await engine.prepare(REQUEST, tenant="t", adapter="one")
    await engine.unload_adapter("one")
    assert await resident(engine)
    del dropped
    gc.collect()
    assert [snapshot async for snapshot in engine.generate(kept)][-1].completion_tokens == 12
    loras: Any = engine
    await eventually(lambda: loras._adapters._resident == 0)
    assert not await resident(engine)


async def test_there_is_room_for_one_more_that_running_requests_still_need_and_not_for_two(
    vllm_server: Server, demo_model: Path, tmp_path: Path
) -> None:
    engine: Any = vllm_server.engine
    made = [adapter("one", make_adapter(tmp_path / f"{seed}", demo_model, seed=seed)) for seed in range(6)]
    waiting = []
    for version in made[:5]:
        await engine.load_adapter(version)
        waiting.append(await engine.prepare(REQUEST, tenant="t", adapter="one"))
    with pytest.raises(AdapterConflictError):
        await engine.load_adapter(made[5])
    texts = set()
    for prepared in waiting:
        texts.add([snapshot async for snapshot in engine.generate(prepared)][-1].choices[0].text)
    assert len(texts) == 5
    await eventually(lambda: engine._adapters._resident == 1)
    await engine.load_adapter(made[5])
    await engine.unload_adapter("one")
    await eventually(lambda: engine._adapters._resident == 0)


@pytest.mark.timeout(180)
async def test_an_engine_that_is_rebuilt_has_its_adapters_again(eight_heads: Path, tmp_path: Path) -> None:
    made, later = make_adapter(tmp_path / "made", eight_heads), make_adapter(tmp_path / "later", eight_heads, seed=2)
    (tmp_path / "mulgil.toml").write_text(f'[adapters.formal]\npath = "{made}"')
    chosen = settings(
        **VLLM,
        model=str(eight_heads),
        config=tmp_path / "mulgil.toml",
        adapter_folders=(tmp_path,),
        engine_rebuilds=2,
        engine_canary=True,
        run_folder=tmp_path / "runs",
    )
    before = {child.pid for child in psutil.Process().children()}
    async with serving(chosen) as server:
        first = server.engine
        await server.mulgil.adapters.load(lambda: first, "later", later)
        texts = [await text(first, name) for name in (None, "formal", "later")]
        assert len({*texts}) == 3
        cores = [child for child in psutil.Process().children() if child.pid not in before]
        for core in cores:
            if "EngineCore" in " ".join(core.cmdline()):
                core.kill()
        await eventually(lambda: server.mulgil.supervisor.health.state == "rebuilding", within=20)
        await eventually(lambda: server.mulgil.supervisor.health.state == "ready", within=120)
        assert server.engine is not first
        assert [await text(server.engine, name) for name in (None, "formal", "later")] == texts
        assert (await server.chat(model=MODEL, max_tokens=2)).status_code == 200
