"""A gateway whose workers are Ray's, on a CPU that Ray takes for two GPUs (plugin/cpu_on_ray.py)."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from gatewayprocess import gateway_process
from rayserving import piped, ray_variables
from spreadgateway import becomes, chat, on, serves, serving

pytestmark = [pytest.mark.model, pytest.mark.scale, pytest.mark.timeout(240)]

HERE = Path(__file__).parent


@asynccontextmanager
async def ray_with(gpus: int, folder: Path) -> AsyncGenerator[tuple[psutil.Process, dict[str, str]]]:
    """A Ray of the test's own; its process, and the environment of those who use it."""
    variables = {
        **ray_variables(),
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE / "plugin"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
    }
    async with piped(folder, HERE / "raycluster.py", str(gpus), variables=variables) as process:
        assert process.stdout is not None
        while not (line := (await process.stdout.readline()).decode()).startswith("address "):
            assert line, (folder / "ray.log").read_text()
        yield psutil.Process(process.pid), variables | {"RAY_ADDRESS": line.split()[1]}


def on_ray(model: Path, variables: dict[str, str], **more: Any) -> dict[str, Any]:
    spread: dict[str, Any] = {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}
    return on(model, variables=variables, **spread, **more)


async def test_workers_of_ray_share_each_layer_and_one_that_is_killed_is_replaced(
    eight_heads: Path, tmp_path: Path
) -> None:
    async with ray_with(2, tmp_path) as (ray, variables), serving(tmp_path, **on_ray(eight_heads, variables)) as one:
        _, client = one

        def workers() -> list[psutil.Process]:
            titles = {child: " ".join(child.cmdline()) for child in ray.children(recursive=True)}
            return [child for child, title in titles.items() if "RayWorkerProc" in title or "VLLM::Worker" in title]

        assert len(workers()) == 2
        await serves(client)
        workers()[1].kill()
        await becomes(client, "rebuilding", within=30)
        await becomes(client, "ready", within=120)
        assert (await chat(client)).status_code == 200


async def test_accelerators_that_ray_does_not_have_are_told_in_time(eight_heads: Path, tmp_path: Path) -> None:
    async with ray_with(1, tmp_path) as (_, variables):
        options = on_ray(eight_heads, variables, engine_start_timeout=30)
        async with gateway_process(tmp_path, **options) as gateway:
            assert await gateway.ended(within=90) == 3
            log = gateway.log.read_text()
    assert "not ready after 30 s ('engine_start_timeout')" in log
    assert "has the cluster 2 accelerators free" in log
