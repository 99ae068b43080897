"""What can happen to a real engine, five times in a row on one gateway process."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from faultstage import CULPRIT, Ended, Stage, staged
from harness import eventually
from storeservers import StoreServer

pytestmark = pytest.mark.model

HUNG = 6
RAISE = {"logit_bias": {"7": 1.0}}
"""What faults/raising.py fails at."""


async def core_killed(stage: Stage) -> None:
    (core,) = stage.gateway.children("EngineCore")
    core.kill()


async def worker_killed(stage: Stage) -> None:
    (worker,) = stage.gateway.children("VLLM::Worker")
    worker.kill()


async def core_stopped(stage: Stage) -> None:
    (core,) = stage.gateway.children("EngineCore")
    core.send_signal(signal.SIGSTOP)


async def step_raises(stage: Stage) -> None:
    assert (await stage.chat("hello", key=CULPRIT, **RAISE)).how == "engine_unavailable"


@dataclass(frozen=True)
class Fault:
    """What is done, and seconds until it must be known."""

    strike: Callable[[Stage], Awaitable[None]]
    noticed: float = 2.0


FAULTS = (
    Fault(core_killed),
    Fault(worker_killed),
    Fault(step_raises),
    Fault(core_stopped, noticed=10.0),
    Fault(core_killed),
)


async def ready(stage: Stage) -> bool:
    return (await stage.client.get("/health/ready")).status_code == 200


async def unready(stage: Stage) -> bool:
    return not await ready(stage)


async def until(condition: Callable[[], Awaitable[bool]], *, within: float) -> float:
    """Seconds until *condition* holds; fails when it does not *within* seconds."""
    begun = time.monotonic()
    async with asyncio.timeout(within):
        while not await condition():
            await asyncio.sleep(0.05)
    return time.monotonic() - begun


def processes(stage: Stage) -> Counter[str]:
    """What it has started, by kind."""
    return Counter(" ".join(child.cmdline())[:40] for child in stage.gateway.children())


async def long_answer(stage: Stage) -> Ended:
    return await stage.chat("Count from one to one thousand: one, two,", temperature=0, max_tokens=1_500)


async def struck(stage: Stage, fault: Fault) -> None:
    """Readiness goes, every stream ends with an error event, and what was made is charged."""
    streams = [asyncio.create_task(long_answer(stage)) for _ in range(4)]
    before = stage.pieces
    await eventually(lambda: stage.pieces > before + 40, within=20)
    await fault.strike(stage)
    await until(lambda: unready(stage), within=fault.noticed)
    async with asyncio.timeout(2 if fault.noticed == 2 else HUNG + 15):
        ended = await asyncio.gather(*streams)
    assert {stream.how for stream in ended} == {"engine_unavailable"}
    assert all(stream.tokens for stream in ended)
    assert (await stage.client.get("/health/live")).status_code == 200, "a restart would not help: it is being rebuilt"


@pytest.mark.timeout(400)
async def test_it_is_noticed_told_charged_to_the_token_and_mended(
    demo_model: Path, tmp_path: Path, store_server: StoreServer
) -> None:
    begun = time.monotonic()
    settings: dict[str, Any] = {
        "engine": "vllm",
        "model": demo_model,
        "served_model_name": "demo",
        "max_model_len": 2048,
        "engine_hung_timeout": HUNG,
        "engine_args": '{"logits_processors": ["raising:Raises"]}',
    }
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    async with staged(tmp_path, store_server, loads=120, variables=variables, **settings) as stage:
        start_up = time.monotonic() - begun
        family, memory = processes(stage), []
        for fault in FAULTS:
            await struck(stage, fault)
            await stage.settles(within=5)
            await until(lambda: ready(stage), within=start_up + 5)
            await stage.answers_again(within=5)
            assert processes(stage) == family
            memory.append(stage.gateway.seen.memory_info().rss / 1e6)
        # From the second on: what the allocator keeps for good has settled then. A leak is 40 MB each time.
        assert memory[-1] - memory[1] < 40, f"it grew with each engine: {memory}"
