"""Two replicas on Ray Serve, each with a vLLM of its own, and one Valkey."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from harness import MODEL
from rayserving import (
    RayServe,
    a_budget_is_shared_exactly,
    a_replica_that_is_killed_takes_only_its_own_streams_with_it,
    streams_are_whole_and_hang_ups_leave_nothing,
    two_replicas,
)
from storeservers import StoreServer

pytestmark = [pytest.mark.model, pytest.mark.scale]

LONG: dict[str, Any] = {"content": "Count.", "max_tokens": 8_000, "ignore_eos": True, "temperature": 0}
DEADLINE = 30
"""Seconds that a request waits for its turn at most."""


@pytest.mark.timeout(300)
async def test_two_replicas_are_one_server_that_outlives_either(
    eight_heads: Path, tmp_path: Path, store_server: StoreServer
) -> None:
    variables = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "HF_HUB_OFFLINE": "1",
    }
    settings: dict[str, Any] = {
        "engine": "vllm",
        "model": str(eight_heads),
        "served_model_name": MODEL,
        "max_num_seqs": 16,
        "lease_ttl": 4,
        "lease_renew_interval": 1,
        "queue_timeout": DEADLINE,
        "run_folder": str(tmp_path / "run"),
    }
    async with two_replicas(tmp_path, store_server, variables=variables, **settings) as running:
        await a_budget_is_shared_exactly(running)
        await streams_are_whole_and_hang_ups_leave_nothing(running, LONG)
        await a_replica_that_is_killed_takes_only_its_own_streams_with_it(running, LONG)
        engines = [running.below(replica, "VLLM::EngineCore") for replica in running.replicas()]
        assert [len(cores) for cores in engines] == [1, 1], "nothing is left of the one that was killed"
        await an_engine_core_that_is_killed_makes_nobody_wait_for_longer_than_its_deadline(running)


async def an_engine_core_that_is_killed_makes_nobody_wait_for_longer_than_its_deadline(running: RayServe) -> None:
    """Its streams end with an error, and the replica makes way for another."""
    await running.all_serve()
    streams = await running.streams(8, **LONG)
    before = {one.pid for one in running.replicas()}
    (core,) = running.below(running.replicas()[0], "VLLM::EngineCore")
    core.kill()

    async def ask() -> tuple[int, float]:
        begun = time.monotonic()
        status = (await running.chat("Say it.", max_tokens=2)).status_code
        return status, time.monotonic() - begun

    at_once = await asyncio.gather(*(ask() for _ in range(20)))
    assert {status for status, _ in at_once} <= {200, 503}
    assert max(seconds for _, seconds in at_once) < DEADLINE
    await asyncio.sleep(2)
    ended = [stream for stream in streams if stream.task.done()]
    assert 0 < len(ended) < len(streams)
    assert {await stream.how(within=1) for stream in ended} == {"engine_unavailable"}
    later = [await ask() for _ in range(40)]
    assert {status for status, _ in later} == {200}
    await running.whole(within=120)
    assert len(before - {one.pid for one in running.replicas()}) == 1
    for stream in streams:
        stream.task.cancel()
    await running.quiet(within=10)
