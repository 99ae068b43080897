"""Fixtures that every test may use."""

import os
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
from embeddings import EMBEDDER
from harness import MODEL, Server, serving, settings
from otlpreceiver import Receiver, otlp_receiver
from storeservers import redis_6, store_server, valkey  # noqa: F401 - fixtures

from mulgil.demo_model import prepare_demo_embedder, prepare_demo_model
from mulgil.quickstart import cache_folder


@pytest.fixture
async def server() -> AsyncGenerator[Server]:
    """A gateway on the simulated engine."""
    async with serving() as running:
        yield running


@pytest.fixture(scope="session")
async def shared() -> AsyncGenerator[Server]:
    """One gateway on the simulated engine, for tests that leave it as they found it."""
    async with serving() as running:
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
def demo_embedder() -> Path:
    """The folder of the demo model for embeddings; made ready once and kept between runs."""
    return prepare_demo_embedder(cache_folder(), lambda line: None)


@pytest.fixture(scope="session")
def vllm_spans() -> Generator[Receiver]:
    """What the gateway on real vLLM is traced with."""
    with otlp_receiver() as received:
        yield received


@pytest.fixture(scope="session")
async def vllm_server(demo_model: Path, demo_embedder: Path, vllm_spans: Receiver) -> AsyncGenerator[Server]:
    """A gateway on real vLLM with both demo models, started once for all tests."""
    tracing = {"OTEL_EXPORTER_OTLP_ENDPOINT": vllm_spans.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    chosen = settings(
        engine="vllm",
        model=str(demo_model),
        served_model_name=(MODEL,),
        max_num_seqs=16,
        max_model_len=2048,
        tool_call_parser="hermes",
        embeddings_model=str(demo_embedder),
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
