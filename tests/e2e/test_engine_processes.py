"""A real gateway process on vLLM: its beginning, its end, and what it leaves when it is killed."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest
from gatewayprocess import GUNICORN, gateway_process
from harness import KEY, MODEL, chat_body, eventually

pytestmark = pytest.mark.model


ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}


def on_vllm(folder: Path) -> dict[str, Any]:
    """A gateway with the demo model."""
    return {
        "engine": "vllm",
        "model": folder,
        "served_model_name": MODEL,
        "max_model_len": 2048,
        "shutdown_grace": 5,
        "variables": ENVIRONMENT,
    }


async def loading(client: httpx2.AsyncClient) -> None:
    """Alive, not ready, and a request is told when to come back."""
    assert (await client.get("/health/live")).status_code == 200
    assert (await client.get("/health/ready")).status_code == 503
    refused = await client.post("/v1/chat/completions", json=chat_body())
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "engine_unavailable"
    assert int(refused.headers["retry-after"]) >= 1


async def until_ready(client: httpx2.AsyncClient) -> None:
    async with asyncio.timeout(120):
        while not await is_ready(client):
            await asyncio.sleep(0.2)


async def is_ready(client: httpx2.AsyncClient) -> bool:
    try:
        return (await client.get("/health/ready")).status_code == 200
    except httpx2.TransportError:  # its worker is being replaced
        return False


@pytest.mark.timeout(240)
async def test_under_gunicorn_the_truth_is_told_while_it_loads_and_a_killed_worker_is_replaced_and_its_engine_ended(
    demo_model: Path, tmp_path: Path
) -> None:
    async with (
        gateway_process(tmp_path, command=GUNICORN, **on_vllm(demo_model)) as running,
        httpx2.AsyncClient(base_url=running.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client,
    ):
        await loading(client)
        await until_ready(client)
        (worker,), engine = running.seen.children(), running.children("VLLM::")
        assert len(engine) == 2
        worker.kill()
        await eventually(lambda: worker not in running.seen.children(), within=20)
        await until_ready(client)
        assert not any(process.is_running() for process in engine), "nothing of the old engine is left"
        assert len(running.children("VLLM::")) == 2
        assert (await client.post("/v1/chat/completions", json=chat_body(max_tokens=2))).status_code == 200
        family = running.children()
        running.signal(signal.SIGTERM)
        assert await running.ended(within=60) == 0
        await eventually(lambda: not any(process.is_running() for process in family), within=10)
