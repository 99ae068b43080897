"""Replicas on Ray Serve come when requests wait, and go when none does; on the simulated engine."""

import asyncio
from pathlib import Path

import pytest
from harness import script
from rayserving import deployed
from storeservers import StoreServer

SCALING = {
    "min_replicas": 1,
    "max_replicas": 2,
    "look_back_period_s": 2,
    "metrics_interval_s": 1,
    "upscale_delay_s": 1,
    "downscale_delay_s": 3,
    "policy": {"policy_function": "mulgil.ray_serve:ByWaiting", "policy_kwargs": {"waiting": 3}},
}


@pytest.mark.scale
@pytest.mark.timeout(180)
async def test_replicas_follow_the_requests_that_wait(tmp_path: Path, store_server: StoreServer) -> None:
    variables = {
        "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
        "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
    }
    async with deployed(
        tmp_path,
        store_server,
        {"autoscaling_config": SCALING},
        variables=variables,
        engine="simulated",
        max_concurrent_requests=2,
        queue_timeout=120,
    ) as running:
        await running.whole(within=30, replicas=1)
        two = [asyncio.create_task(running.chat(script(tokens=50, gap=0.1), stream=True)) for _ in range(2)]
        await asyncio.sleep(4)
        assert len(running.replicas()) == 1, "its turns are in use, but nobody waits"
        await asyncio.gather(*two)
        many = [asyncio.create_task(running.chat(script(tokens=20, gap=0.1), stream=True)) for _ in range(24)]
        await running.whole(within=60, replicas=2)
        assert {reply.status_code for reply in await asyncio.gather(*many)} == {200}
        await running.whole(within=60, replicas=1)
