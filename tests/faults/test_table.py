"""Every row of the table of faults, twice in a row on one gateway."""

import asyncio
import resource
from collections.abc import Generator
from pathlib import Path

import pytest
from faultstage import LONG, staged
from faulttable import FAULTS, Fault
from harness import script
from storeservers import StoreServer

STREAMS = 8
POOL = 20
"""Connections that the users' client may keep for later, or not."""


@pytest.fixture(autouse=True)
def many_descriptors() -> Generator[None]:
    """For the gateway too, which inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_nobody_is_told_a_lie_nothing_is_lost_and_it_heals_by_itself(
    fault: Fault, tmp_path: Path, store_server: StoreServer
) -> None:
    async with staged(tmp_path, store_server, **fault.started(tmp_path)) as stage:
        descriptors = []
        for _ in range(2):
            streams = [asyncio.create_task(stage.chat(script(f"stream {n}", **LONG))) for n in range(STREAMS)]
            await asyncio.sleep(0.3)
            async with fault.strike(stage):
                seen = await stage.asking(1)
            await stage.answers_again(within=fault.heals)
            ended = {stream.how for stream in await asyncio.gather(*streams)}
            assert ended <= fault.streams
            assert seen <= fault.requests
            await stage.settles(within=fault.heals, forgotten=fault.forgets)
            descriptors.append(stage.gateway.seen.num_fds())
        assert "Traceback" not in stage.gateway.log.read_text()
        assert descriptors[1] <= descriptors[0] + POOL, "the second time takes no more than the first"
