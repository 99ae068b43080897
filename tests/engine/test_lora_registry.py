"""The LoRA adapters of a process: loaded, replaced, unloaded, and in every engine that comes."""

import asyncio
from pathlib import Path

import pytest
from harness import KEY, Server, chat_body, eventually, script, serving, settings
from loras import make_adapter

from mulgil.app import build
from mulgil.engine.base import Engine
from mulgil.engine.lora import Adapter, AdapterRules
from mulgil.engine.lora_registry import AdapterRegistry
from mulgil.engine.simulated import SimulatedEngine
from mulgil.errors import (
    AdapterConflictError,
    AdapterNotFoundError,
    EngineUnavailableError,
    InvalidFieldError,
    ModelNotFoundError,
)
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.settings import Settings

REQUEST = ChatCompletionRequest.model_validate(chat_body("Hello!"))


def registry(folder: Path, *, most: int = 4, **configured: Path) -> AdapterRegistry:
    return AdapterRegistry(AdapterRules(True, (folder,), most), configured, taken=("demo",))


async def engine() -> SimulatedEngine:
    started = SimulatedEngine()
    await started.start()
    return started


async def version(engine: Engine, name: str) -> str:
    """Of the adapter that *engine* would answer with."""
    prepared = await engine.prepare(REQUEST, tenant="t", adapter=name)
    assert prepared.adapter is not None
    return prepared.adapter.version


async def test_an_adapter_of_the_configuration_is_known_at_once_and_loaded_into_each_engine(tmp_path: Path) -> None:
    adapters = registry(tmp_path, formal=make_adapter(tmp_path / "a"), brief=make_adapter(tmp_path / "b", seed=2))
    assert adapters.names == ("formal", "brief")
    assert adapters.source("formal") == "config"
    known = adapters.find("formal")
    assert known is not None
    for one in [await engine(), await engine()]:
        await adapters.load_into(one)
        assert await version(one, "formal") == known.version
        with pytest.raises(ModelNotFoundError):
            await one.prepare(REQUEST, tenant="t", adapter="other")


async def test_one_that_is_loaded_later_is_in_the_engine_of_the_moment_and_in_the_next(tmp_path: Path) -> None:
    adapters, first = registry(tmp_path), await engine()
    await adapters.load_into(first)
    loaded = await adapters.load(lambda: first, "later", make_adapter(tmp_path / "a"))
    assert (adapters.names, adapters.find("later"), adapters.source("later")) == (("later",), loaded, "admin")
    assert await version(first, "later") == loaded.version
    second = await engine()
    await adapters.load_into(second)
    assert await version(second, "later") == loaded.version


async def test_loading_under_the_same_name_replaces_and_the_prepared_end_with_what_they_began(tmp_path: Path) -> None:
    adapters, one = registry(tmp_path, most=1), await engine()
    first = await adapters.load(lambda: one, "a", make_adapter(tmp_path / "a"))
    prepared = await one.prepare(REQUEST, tenant="t", adapter="a")
    second = await adapters.load(lambda: one, "a", make_adapter(tmp_path / "b", seed=2))
    assert first.version != second.version == await version(one, "a")
    assert prepared.adapter == first
    assert adapters.find("a") == second
    last = [snapshot async for snapshot in one.generate(prepared)][-1]
    assert last.choices[0].finish_reason == "stop"


async def test_one_that_is_unloaded_is_gone_from_the_engine_and_from_the_next(tmp_path: Path) -> None:
    adapters, one = registry(tmp_path, a=make_adapter(tmp_path / "a")), await engine()
    await adapters.load_into(one)
    assert (await adapters.unload(lambda: one, "a")).name == "a"
    assert (adapters.names, adapters.find("a")) == ((), None)
    for engine_of_now in (one, await engine()):
        await adapters.load_into(engine_of_now)
        with pytest.raises(ModelNotFoundError):
            await engine_of_now.prepare(REQUEST, tenant="t", adapter="a")
    with pytest.raises(AdapterNotFoundError):
        await adapters.unload(lambda: one, "a")


async def test_no_more_than_allowed_are_loaded_and_no_name_is_taken_twice(tmp_path: Path) -> None:
    adapters, one = registry(tmp_path, most=1), await engine()
    made = make_adapter(tmp_path / "a")
    with pytest.raises(InvalidFieldError, match="'demo' is what something else is served as"):
        await adapters.load(lambda: one, "demo", made)
    await adapters.load(lambda: one, "a", made)
    with pytest.raises(AdapterConflictError, match="max_adapters"):
        await adapters.load(lambda: one, "b", made)
    assert adapters.names == ("a",)
    await adapters.unload(lambda: one, "a")
    await adapters.load(lambda: one, "b", made)


async def test_while_there_is_no_engine_nothing_is_loaded_and_what_is_unloaded_does_not_come_back(
    tmp_path: Path,
) -> None:
    def away() -> Engine:
        raise EngineUnavailableError("The engine is being rebuilt.")

    adapters = registry(tmp_path, a=make_adapter(tmp_path / "a"))
    with pytest.raises(EngineUnavailableError):
        await adapters.load(away, "b", tmp_path / "a")
    await adapters.unload(away, "a")
    next_one = await engine()
    await adapters.load_into(next_one)
    assert adapters.names == ()
    with pytest.raises(ModelNotFoundError):
        await version(next_one, "a")


class Picky(SimulatedEngine):
    """Does not take the adapters of one name."""

    async def load_adapter(self, adapter: Adapter) -> None:
        if adapter.name == "bad":
            raise InvalidFieldError("Invalid 'path': it is for another model.", param="path", code="invalid_value")
        await super().load_adapter(adapter)


async def test_a_first_engine_that_does_not_take_an_adapter_of_the_configuration_is_none(tmp_path: Path) -> None:
    adapters = registry(tmp_path, bad=make_adapter(tmp_path / "a"))
    with pytest.raises(EngineUnavailableError, match=r"Adapter 'bad' cannot be loaded.*another model"):
        await adapters.load_into(Picky())


async def test_a_later_engine_serves_without_an_adapter_whose_files_are_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    adapters = registry(tmp_path, a=make_adapter(tmp_path / "a"), b=make_adapter(tmp_path / "b"))
    await adapters.load_into(await engine())
    (tmp_path / "a/adapter_config.json").unlink()
    later = await engine()
    await adapters.load_into(later)
    assert adapters.names == ("b",)
    assert await version(later, "b")
    assert "adapter a cannot be loaded again" in caplog.text


async def test_a_later_engine_has_the_files_as_they_are_then(tmp_path: Path) -> None:
    adapters = registry(tmp_path, a=make_adapter(tmp_path / "a"))
    await adapters.load_into(await engine())
    before = adapters.find("a")
    make_adapter(tmp_path / "a", seed=2)
    later = await engine()
    await adapters.load_into(later)
    after = adapters.find("a")
    assert before is not None
    assert after is not None
    assert before.version != after.version == await version(later, "a")


class Slow(SimulatedEngine):
    """While it loads an adapter, that is written anew."""

    async def load_adapter(self, adapter: Adapter) -> None:
        await asyncio.to_thread(make_adapter, adapter.path, seed=7)
        await super().load_adapter(adapter)


async def test_files_that_change_while_they_are_loaded_are_refused_and_what_was_served_still_is(
    tmp_path: Path,
) -> None:
    adapters, one = registry(tmp_path), Slow()
    loaded = await adapters.load(lambda: one, "a", make_adapter(tmp_path / "a", seed=7))
    with pytest.raises(InvalidFieldError, match="changed while"):
        await adapters.load(lambda: one, "a", make_adapter(tmp_path / "b"))
    assert adapters.find("a") == loaded
    assert await version(one, "a") == loaded.version


def configured(folder: Path, text: str, **changes: object) -> Settings:
    (folder / "mulgil.toml").write_text(text)
    return settings(config=folder / "mulgil.toml", **changes)


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ('[adapters.a]\npath = "adapters/a"', "adapters.a.path: Value error, must be an absolute path"),
        ('[adapters.a]\npath = "/no/such/folder"', "adapters.a: .*there is no folder"),
        ("[adapters.a]", "adapters.a.path: Field required"),
        ('[adapters.a]\npath = "/a"\nrank = 8', "adapters.a.rank: Extra inputs"),
        ('[adapters."a/b"]\npath = "/a"', "adapters"),
        ('[adapters.demo]\npath = "{made}"', "adapters.demo: .*something else is served as"),
        ('[adapters.a]\npath = "{made}"\n[adapters.b]\npath = "{made}"', "there are 2, and at most 1 may be"),
    ],
)
def test_a_table_that_is_wrong_is_told_before_anything_starts(tmp_path: Path, table: str, told: str) -> None:
    made = make_adapter(tmp_path / "made")
    with pytest.raises(ValueError, match=told):
        build(configured(tmp_path, table.replace("{made}", str(made)), max_adapters=1))


async def answer(server: Server, adapter: str | None) -> str:
    prepared = await server.engine.prepare(REQUEST, tenant="t", adapter=adapter)
    return [snapshot async for snapshot in server.engine.generate(prepared)][-1].choices[0].text


async def test_in_the_whole_application_an_engine_that_is_rebuilt_has_its_adapters_again(tmp_path: Path) -> None:
    made = make_adapter(tmp_path / "made")
    chosen = configured(tmp_path, f'[adapters.formal]\npath = "{made}"', engine_rebuilds=3, engine_canary=True)
    async with serving(chosen) as server:
        first = server.engine
        formal = await answer(server, "formal")
        assert formal != await answer(server, None)
        await server.client.post(
            "/v1/chat/completions", json=chat_body(script(die_at=1)), headers={"authorization": f"Bearer {KEY}"}
        )
        await eventually(lambda: server.mulgil.supervisor.health.state == "ready" and server.engine is not first)
        assert await answer(server, "formal") == formal
