"""A real gateway process whose engine is killed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx2
import psutil
import pytest
from harness import KEY, MODEL, chat_body, events, eventually

pytestmark = pytest.mark.model


class Process:
    """`mulgil serve` with the demo model."""

    def __init__(self, folder: Path, log: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MULGIL_")} | {
            "MULGIL_API_KEYS": KEY,
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
        }
        command = [sys.executable, "-m", "mulgil", "serve", "--port=0", f"--model={folder}"]
        command += [f"--served-model-name={MODEL}", "--max-model-len=2048", "--shutdown-grace=5"]
        self.log = log
        with log.open("wb") as out:
            self.popen = subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)

    @property
    def port(self) -> int | None:
        """The port that uvicorn says it listens on."""
        _, found, rest = self.log.read_text().partition("running on http://127.0.0.1:")
        return int(rest.split()[0]) if found else None

    def children(self, name: str) -> list[psutil.Process]:
        """The engine's processes whose title begins with *name*."""
        return [
            child
            for child in psutil.Process(self.popen.pid).children(recursive=True)
            if name in " ".join(child.cmdline())
        ]


@pytest.fixture
async def process(demo_model: Path, tmp_path: Path) -> AsyncGenerator[tuple[Process, httpx2.AsyncClient]]:
    running = Process(demo_model, tmp_path / "log")
    try:
        await eventually(lambda: running.port is not None, within=30)
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{running.port}", headers=headers) as client:
            yield running, client
    finally:
        family = psutil.Process(running.popen.pid).children(recursive=True) if running.popen.poll() is None else []
        running.popen.terminate()
        try:
            running.popen.wait(30)
        except subprocess.TimeoutExpired:
            running.popen.kill()
        for child in family:
            if child.is_running():
                child.kill()


async def loading(client: httpx2.AsyncClient) -> None:
    """Alive, not ready, and a request is told when to come back."""
    assert (await client.get("/health/live")).status_code == 200
    assert (await client.get("/health/ready")).status_code == 503
    refused = await client.post("/v1/chat/completions", json=chat_body())
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "engine_unavailable"
    assert int(refused.headers["retry-after"]) >= 1


async def core_killed_while_it_streams(running: Process, client: httpx2.AsyncClient) -> None:
    """An error event, no [DONE], readiness gone within 2 s."""
    body = chat_body("Count from one to one thousand: one, two,", temperature=0, max_tokens=1500, stream=True)
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.aiter_lines()
        seen = [await anext(lines) for _ in range(12)]
        (core,) = running.children("EngineCore")
        core.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        seen += [line async for line in lines]
    last = events("\n".join(seen))[-1]
    assert last["error"]["code"] == "engine_unavailable"
    assert not any("[DONE]" in line for line in seen)
    assert (await client.get("/health/ready")).status_code == 503
    assert time.monotonic() - killed < 2
    assert (await client.get("/health/live")).status_code == 200, "a restart would not help: it is being rebuilt"


async def serving_again(running: Process, client: httpx2.AsyncClient) -> None:
    """It comes back by itself, with one engine and no leftover of the old one."""
    async with asyncio.timeout(90):
        while (await client.get("/health/ready")).status_code != 200:
            await asyncio.sleep(0.2)
    assert (await client.post("/v1/chat/completions", json=chat_body(max_tokens=2))).status_code == 200
    assert len(running.children("EngineCore")) == 1


async def told_to_end(running: Process) -> None:
    """It ends as it is told, and takes its children along."""
    children = psutil.Process(running.popen.pid).children(recursive=True)
    running.popen.send_signal(signal.SIGTERM)
    await asyncio.to_thread(running.popen.wait, 30)
    assert running.popen.returncode == 0
    await eventually(lambda: not any(child.is_running() for child in children), within=10)


@pytest.mark.timeout(240)
async def test_while_it_loads_when_its_core_is_killed_and_at_its_end_the_truth_is_told(
    process: tuple[Process, httpx2.AsyncClient],
) -> None:
    running, client = process
    await loading(client)
    async with asyncio.timeout(180):
        while (await client.get("/health/ready")).status_code != 200:
            await asyncio.sleep(0.2)
    assert (await client.post("/v1/chat/completions", json=chat_body(max_tokens=2))).status_code == 200
    for _ in range(2):
        await core_killed_while_it_streams(running, client)
        await serving_again(running, client)
    await told_to_end(running)


@pytest.mark.timeout(180)
async def test_a_killed_gateways_engine_is_ended_by_the_next_one(
    process: tuple[Process, httpx2.AsyncClient], demo_model: Path, tmp_path: Path
) -> None:
    running, client = process
    async with asyncio.timeout(120):
        while (await client.get("/health/ready")).status_code != 200:
            await asyncio.sleep(0.2)
    engine = running.children("VLLM::")
    assert len(engine) == 2
    running.popen.kill()
    running.popen.wait()
    await asyncio.sleep(1)
    assert any(child.is_running() for child in engine), "nobody else ends it"
    another = Process(demo_model, tmp_path / "another")
    try:
        await eventually(lambda: not any(child.is_running() for child in engine), within=60)
    finally:
        another.popen.terminate()
        await asyncio.to_thread(another.popen.wait, 60)
