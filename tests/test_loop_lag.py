"""The gauge of the event loop's lag, with a loop that is really held."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from harness import Server

from mulgil.loop_lag import LoopLag

HELD = 0.3
INTERVAL = 0.01


@asynccontextmanager
async def watching(window: float = 60.0, loud: float = 60.0) -> AsyncGenerator[LoopLag]:
    lag = LoopLag(interval=INTERVAL, window=window, loud=loud)
    lag.start()
    try:
        await asyncio.sleep(2 * INTERVAL)
        yield lag
    finally:
        await lag.stop()


def hold(seconds: float = HELD) -> None:
    time.sleep(seconds)


async def test_a_call_that_holds_the_loop_is_seen_as_long_as_it_was() -> None:
    async with watching() as lag:
        hold()
        assert lag.last >= HELD - INTERVAL, "before the timer has fired, too"
        await asyncio.sleep(3 * INTERVAL)
        assert lag.worst >= HELD - INTERVAL
        assert lag.last <= lag.worst


async def test_the_worst_stays_while_smaller_ones_follow_and_is_forgotten_in_time() -> None:
    async with watching(window=1.5) as lag:
        hold()
        await asyncio.sleep(2 * INTERVAL)
        hold(0.1)
        await asyncio.sleep(2 * INTERVAL)
        assert lag.worst >= HELD - INTERVAL
        lag.window = 0.0
        await asyncio.sleep(2 * INTERVAL)
        assert lag.worst < HELD - INTERVAL


async def test_a_loop_that_was_never_looked_at_is_not_late() -> None:
    lag = LoopLag()
    await lag.stop()
    assert (lag.last, lag.worst) == (0.0, 0.0)


async def test_what_was_seen_outlasts_the_looking() -> None:
    async with watching() as lag:
        hold()
        await asyncio.sleep(2 * INTERVAL)
    hold()
    assert HELD - INTERVAL <= lag.worst < 2 * HELD


async def test_a_held_loop_is_told_once_with_its_milliseconds(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "mulgil.loop_lag")
    async with watching(loud=HELD / 2):
        for _ in range(3):
            hold()
            await asyncio.sleep(2 * INTERVAL)
    (told,) = [record.getMessage() for record in caplog.records if record.name == "mulgil.loop_lag"]
    assert told.startswith("the event loop was held for ")
    assert int(told.split()[6]) >= (HELD - INTERVAL) * 1_000


async def test_health_tells_in_milliseconds_what_held_the_loop(server: Server) -> None:
    await asyncio.sleep(2 * server.mulgil.lag.interval)
    hold(0.5)
    late = (await server.client.get("/health")).json()["loop_lag_ms"]
    assert late["worst"] >= 400
    assert 0 <= late["last"] <= late["worst"]
