"""Fixtures that every test may use."""

import os
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
from embeddings import EMBEDDER
from harness import UNLIMITED, VLLM, Server, served_at, serving, settings
from loras import make_adapter
from otlpreceiver import Receiver, otlp_receiver
from postgresserver import postgres_server  # noqa: F401 - a fixture
from storeservers import redis_6, store_server, valkey  # noqa: F401 - fixtures

from bench.tiny_model import prepare_tiny_model
from mulgil.demo_model import prepare_demo_embedder, prepare_demo_model
from mulgil.quickstart import cache_folder


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which tests are run, and where the gateways of another process are that some are to ask (scripts/stack)."""
    parser.addoption("--simulated-at", metavar="URL", help="gateways on the simulated engine, for the fixture `shared`")
    parser.addoption("--vllm-at", metavar="URL", help="gateways on vLLM, for the fixture `vllm_server`")
    parser.addoption("--heavy", action="store_true", help="also what takes minutes: the tests that are marked so")
    parser.addoption("--scale", action="store_true", help="run the tests of several workers, machines and replicas too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    several = pytest.mark.skip(reason="takes minutes and several engines at a time: scripts/test --scale")
    for item in items:
        if item.get_closest_marker("scale") and not config.getoption("--scale"):
            item.add_marker(several)
        for mark in () if config.getoption("--heavy") else item.iter_markers("heavy"):
            item.add_marker(pytest.mark.skip(reason=f"{mark.kwargs['reason']}; pytest --heavy runs it"))


@pytest.fixture(scope="session", autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What gateways of their own process keep is not the user's."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture
async def server() -> AsyncGenerator[Server]:
    """A gateway on the simulated engine."""
    async with serving() as running:
        yield running


@pytest.fixture(scope="session")
async def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Server]:
    """One gateway on the simulated engine, for tests that leave it as they found it."""
    url: str | None = request.config.getoption("--simulated-at")
    own = settings(usage_url=None, state_folder=tmp_path_factory.mktemp("shared"))
    async with served_at(url) if url else serving(own) as running:
        yield running


@pytest.fixture
def no_errors_logged(caplog: pytest.LogCaptureFixture) -> Generator[None]:
    """What the client got wrong is not the operator's business."""
    yield
    assert [record.getMessage() for record in caplog.get_records("call") if record.levelname == "ERROR"] == []


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The folder of the demo model; made ready once and kept between runs."""
    return prepare_demo_model(cache_folder(), lambda line: None)


@pytest.fixture(scope="session")
def eight_heads(demo_model: Path) -> Path:
    """The folder of a tiny random model that two workers can share; made once and kept between runs."""
    return prepare_tiny_model(cache_folder(), demo_model, heads=8)


@pytest.fixture(scope="session")
def demo_embedder() -> Path:
    """The folder of the demo model for embeddings; made ready once and kept between runs."""
    return prepare_demo_embedder(cache_folder(), lambda line: None)


@pytest.fixture(scope="session")
def vllm_spans() -> Generator[Receiver]:
    """What the gateway on real vLLM is traced with."""
    with otlp_receiver() as received:
        yield received


def prepare_environment() -> None:
    """For vLLM in this process."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


@pytest.fixture(scope="session")
async def vllm_with_adapters(
    request: pytest.FixtureRequest, eight_heads: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncGenerator[Server]:
    """A gateway on real vLLM with a tiny model, started once for all tests: with the LoRA adapter `begun`, and a folder
    for others."""
    if request.config.getoption("--vllm-at"):
        pytest.skip("these tests look inside the gateway, and that one is elsewhere")
    prepare_environment()
    folder = tmp_path_factory.mktemp("adapters")
    begun = make_adapter(folder / "begun", eight_heads, seed=100)
    (folder / "mulgil.toml").write_text(f'[adapters.begun]\npath = "{begun}"\n{UNLIMITED.read_text()}')
    chosen = settings(
        **VLLM | {"served_model_name": (eight_heads.name,)},
        model=str(eight_heads),
        config=folder / "mulgil.toml",
        adapter_folders=(folder,),
        engine_metrics=False,
        engine_rebuilds=1,
        run_folder=folder / "runs",
    )
    async with serving(chosen) as running:
        yield running


@pytest.fixture(scope="session")
async def vllm_server(request: pytest.FixtureRequest, vllm_spans: Receiver) -> AsyncGenerator[Server]:
    """A gateway on real vLLM with both demo models, started once for all tests."""
    url: str | None = request.config.getoption("--vllm-at")
    if url:
        async with served_at(url) as elsewhere:
            yield elsewhere
        return
    tracing = {"OTEL_EXPORTER_OTLP_ENDPOINT": vllm_spans.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    prepare_environment()
    chosen = settings(
        **VLLM,
        model=str(request.getfixturevalue("demo_model")),
        embeddings_model=str(request.getfixturevalue("demo_embedder")),
        embeddings_served_name=(EMBEDDER,),
        metrics_port=0,
    )
    before = dict(os.environ)
    os.environ.update(tracing)
    async with serving(chosen) as running:
        assert running.mulgil.embeddings is not None
        await running.mulgil.embeddings.supervisor.until_ready()
        # Of this gateway alone; vLLM has added to them.
        for name in [name for name in os.environ if name.startswith("OTEL_") and name not in before]:
            del os.environ[name]
        yield running
