"""Replicas on Ray Serve, with the simulated engine; tests/scale has them on vLLM."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from harness import MODEL, script
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve.config import AutoscalingContext
from rayserving import (
    RayServe,
    a_budget_is_shared_exactly,
    a_replica_that_is_killed_takes_only_its_own_streams_with_it,
    streams_are_whole_and_hang_ups_leave_nothing,
    two_replicas,
)
from storeservers import StoreServer

from mulgil.ray_serve import ByWaiting, application, settings_of

LONG = {"content": script(tokens=3_000, gap=0.01)}


@pytest.mark.timeout(120)
async def test_two_replicas_are_one_server_that_outlives_either(tmp_path: Path, store_server: StoreServer) -> None:
    async with two_replicas(tmp_path, store_server, engine="simulated", lease_ttl=4, lease_renew_interval=1) as running:
        await a_budget_is_shared_exactly(running)
        await streams_are_whole_and_hang_ups_leave_nothing(running, LONG)
        await a_replica_that_is_killed_takes_only_its_own_streams_with_it(running, LONG)
        await an_engine_that_dies_is_told_and_its_replica_replaced(running)
        await without_a_replica_requests_wait_for_one(running)
        await what_outlives_the_grace_period_gets_an_error(running)


async def an_engine_that_dies_is_told_and_its_replica_replaced(running: RayServe) -> None:
    before = {one.pid for one in running.replicas()}
    await running.all_serve()
    streams = await running.streams(6, **LONG)
    died = await running.chat(script(tokens=9, die_at=3), stream=True)
    assert "engine_unavailable" in died.text
    ended = [stream for stream in streams if stream.task.done()]
    assert {await stream.how(within=5) for stream in streams if stream in ended} <= {"engine_unavailable"}
    await asyncio.sleep(0.2)
    assert {(await running.chat(max_tokens=2)).status_code for _ in range(50)} == {200}
    await running.whole(within=60)
    assert len(before - {one.pid for one in running.replicas()}) == 1
    for stream in streams:
        stream.task.cancel()
    await running.quiet(within=10)


async def without_a_replica_requests_wait_for_one(running: RayServe) -> None:
    for one in running.replicas():
        one.kill()
    assert (await running.chat(max_tokens=2)).status_code == 200
    await running.whole(within=60)


async def what_outlives_the_grace_period_gets_an_error(running: RayServe) -> None:
    streams = await running.streams(4, **LONG)
    assert await running.ask("delete") == "deleted"
    assert {await stream.how(within=20) for stream in streams} == {"server_shutting_down"}
    await running.quiet(within=1)


@pytest.fixture
async def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncGenerator[None]:
    """No `.env`, and one key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MULGIL_API_KEYS", "a-key-of-the-test")
    yield


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"engnie": "simulated"}, "no such setting: engnie"),
        ({"engine": "simulated", "api_keys": "a-secret-key"}, "'api_keys' is secret"),
        ({"engine": "simulated", "redis_url": "redis://h"}, "'redis_url' is secret"),
        ({"engine": "vllm"}, "'model' is needed"),
    ],
)
@pytest.mark.usefixtures("clean")
def test_an_application_that_cannot_be_served_is_refused_before_it_has_replicas(
    given: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        application(given)


@pytest.mark.usefixtures("clean")
def test_a_failed_engine_is_rebuilt_in_its_replica_only_where_that_is_asked_for() -> None:
    assert settings_of({"engine": "simulated", "model": MODEL}).engine_rebuilds == 0
    assert settings_of({"engine": "simulated", "engine_rebuilds": 2}).engine_rebuilds == 2


def context(replicas: int, **told: float) -> AutoscalingContext:
    """What Ray tells of so many replicas, each of which says the same."""
    deployment = DeploymentID(name="Mulgil", app_name="mulgil")
    ids = [ReplicaID(str(number), deployment) for number in range(replicas)]
    return AutoscalingContext(
        deployment_id=deployment,
        deployment_name="Mulgil",
        app_name="mulgil",
        current_num_replicas=replicas,
        target_num_replicas=replicas,
        running_replicas=ids,
        total_num_requests=0,
        total_queued_requests=0,
        aggregated_metrics={name: dict.fromkeys(ids, value) for name, value in told.items()},
        raw_metrics={},
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=9,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=None,
        config=None,
    )


@pytest.mark.parametrize(
    ("waiting", "running", "wanted"),
    [
        (0, 50, 4),  # full, but nobody waits
        (4, 50, 4),
        (6, 50, 6),
        (400, 50, 8),  # not more than twice as many at once
        (0, 26, 3),
        (0, 30, 4),  # three would have too little to spare
        (1, 0, 4),
    ],
)
def test_replicas_follow_those_who_wait(waiting: float, running: float, wanted: float) -> None:
    assert ByWaiting()(context(4, waiting=waiting, running=running, turns=50)) == (wanted, {})


def test_without_word_from_the_replicas_their_number_stays() -> None:
    assert ByWaiting()(context(4)) == (4, {})
    assert ByWaiting()(context(0, waiting=9, running=0, turns=50)) == (0, {})
