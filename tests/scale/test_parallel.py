"""One gateway whose model is spread: over workers, over copies, over machines, and by Ray."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from gatewayprocess import SERVE, GatewayProcess, gateway_process
from harness import events, eventually
from spreadgateway import becomes, chat, on, serves, serving
from storeservers import free_port

pytestmark = [pytest.mark.model, pytest.mark.scale, pytest.mark.timeout(240)]

ONE_CPU_EACH = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}


async def test_two_workers_share_each_layer(eight_heads: Path, tmp_path: Path) -> None:
    options = on(eight_heads, tensor_parallel_size=2, variables=ONE_CPU_EACH)
    async with serving(tmp_path, **options) as (gateway, client):
        assert len(gateway.children("VLLM::Worker")) == 2
        await serves(client)


async def test_two_copies_share_the_requests_and_end_together(eight_heads: Path, tmp_path: Path) -> None:
    options = on(eight_heads, data_parallel_size=2, variables=ONE_CPU_EACH)
    async with serving(tmp_path, **options) as (gateway, client):
        cores = gateway.children("VLLM::EngineCore")
        assert len(cores) == 2
        before = [core.cpu_times().user for core in cores]
        await serves(client)
        assert all(core.cpu_times().user > used for core, used in zip(cores, before, strict=True)), "both have worked"
        streams = [asyncio.create_task(chat(client, f"Count {n}.", max_tokens=1_900, stream=True)) for n in range(4)]
        await asyncio.sleep(0.5)
        cores[0].kill()
        ended = [events(reply.text)[-1] for reply in await asyncio.wait_for(asyncio.gather(*streams), 15)]
        assert all("error" in last for last in ended if last != "[DONE]")
        assert any(last != "[DONE]" for last in ended)
        await becomes(client, "ready", within=90)
        assert (await chat(client)).status_code == 200


def spanning(model: Path, rank: int, port: int, **more: Any) -> dict[str, Any]:
    """One of two machines that a model spans; both are this one, whose loopback they meet on."""
    return on(
        model,
        tensor_parallel_size=2,
        nnodes=2,
        node_rank=rank,
        master_addr="127.0.0.1",
        master_port=port,
        run_folder=f"run-{rank}",
        variables={"VLLM_HOST_IP": "127.0.0.1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
        **more,
    )


def other_machine(folder: Path, **options: Any) -> GatewayProcess:
    folder.mkdir()
    other = GatewayProcess(folder / "log", command=SERVE, **options)
    other.start()
    return other


async def test_two_machines_share_each_layer_and_the_other_one_ends_with_machine_0(
    eight_heads: Path, tmp_path: Path
) -> None:
    port = free_port()
    other = other_machine(tmp_path / "other", **spanning(eight_heads, 1, port))
    try:
        async with serving(tmp_path, **spanning(eight_heads, 0, port)) as (gateway, client):
            assert len(gateway.children("VLLM::Worker")) == 1
            assert len(other.children("VLLM::Worker")) == 1
            await serves(client)
            (core,) = gateway.children("VLLM::EngineCore")
            core.kill()
            assert await other.ended(within=30) == 3
            other = other_machine(tmp_path / "again", **spanning(eight_heads, 1, port))
            await becomes(client, "ready", within=120)
            assert (await chat(client)).status_code == 200
        assert await other.ended(within=30) == 3
    finally:
        other.kill()


async def test_a_machine_that_is_missing_is_told_in_time(eight_heads: Path, tmp_path: Path) -> None:
    options = spanning(eight_heads, 0, free_port(), engine_start_timeout=25)
    async with gateway_process(tmp_path, **options) as gateway:
        assert await gateway.ended(within=60) == 3, "as where a first engine cannot be had for another reason"
        log = gateway.log.read_text()
    assert "not ready after 25 s ('engine_start_timeout')" in log
    assert "'node_rank' 1 run" in log


async def test_nobody_waits_for_a_machine_that_is_missing_when_told_to_end(eight_heads: Path, tmp_path: Path) -> None:
    async with gateway_process(tmp_path, **spanning(eight_heads, 0, free_port())) as gateway:
        await eventually(lambda: bool(gateway.children("VLLM::Worker")), within=40)
        family = gateway.children("VLLM::")
        gateway.signal(signal.SIGTERM)
        assert await gateway.ended(within=20) == 0
        await eventually(lambda: not any(one.is_running() for one in family))


async def test_machine_0_that_is_missing_is_told_in_time(eight_heads: Path, tmp_path: Path) -> None:
    options = spanning(eight_heads, 1, free_port(), engine_start_timeout=25)
    other = other_machine(tmp_path / "other", **options)
    try:
        assert await other.ended(within=60) == 3
        assert "not ready after 25 s ('engine_start_timeout')" in other.log.read_text()
        assert "'node_rank' 0 run" in other.log.read_text()
    finally:
        other.kill()
