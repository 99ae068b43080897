"""Health is what the engine does, not what it once said."""

import asyncio

import pytest
from harness import eventually

from mulgil.engine.simulated import SimulatedEngine
from mulgil.engine.supervisor import Supervisor
from mulgil.errors import EngineError, EngineUnavailableError


class Slow(SimulatedEngine):
    """Loads until it is let go, and may be made deaf."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded = asyncio.Event()
        self.deaf = False

    async def start(self) -> None:
        await self.loaded.wait()

    async def check(self) -> None:
        if self.deaf:
            raise EngineUnavailableError("The engine did not answer.")
        await super().check()


def supervised(engine: SimulatedEngine) -> tuple[Supervisor[SimulatedEngine], list[str]]:
    async def build() -> SimulatedEngine:
        return engine

    gave_up: list[str] = []
    return Supervisor(build, check_interval=0.01, on_start_failed=lambda: gave_up.append("gave up")), gave_up


async def test_while_it_loads_it_is_unavailable_and_says_when_to_come_back() -> None:
    engine = Slow()
    subject, _ = supervised(engine)
    subject.start()
    await asyncio.sleep(0.02)
    assert subject.health.state == "loading"
    with pytest.raises(EngineUnavailableError, match="loading") as refusal:
        subject.engine()
    assert refusal.value.headers["retry-after"] == "5"
    engine.loaded.set()
    await subject.until_ready()
    assert subject.engine() is engine
    await subject.stop()


async def test_a_dead_engine_shows_at_once_and_not_at_the_next_check() -> None:
    engine = SimulatedEngine()
    subject, _ = supervised(engine)
    subject.start()
    await subject.until_ready()
    engine._die()
    assert subject.health.state == "failed"
    with pytest.raises(EngineUnavailableError, match="died"):
        subject.engine()
    await subject.stop()


async def test_an_engine_that_does_not_answer_is_not_ready_until_it_answers_again() -> None:
    engine = Slow()
    engine.loaded.set()
    subject, _ = supervised(engine)
    subject.start()
    await subject.until_ready()
    engine.deaf = True
    await eventually(lambda: subject.health.state == "unresponsive")
    engine.deaf = False
    await eventually(lambda: subject.health.state == "ready")
    await subject.stop()


@pytest.mark.parametrize("error", [EngineUnavailableError("no such model"), RuntimeError("no such model")])
async def test_an_engine_that_cannot_start_fails_and_tells(error: Exception) -> None:
    class Broken(SimulatedEngine):
        async def start(self) -> None:
            raise error

    subject, gave_up = supervised(Broken())
    subject.start()
    await eventually(lambda: gave_up == ["gave up"])
    assert subject.health.state == "failed"
    await subject.stop()


async def test_stopping_while_it_loads_does_not_wait_for_an_engine_that_can_be_cancelled() -> None:
    subject, gave_up = supervised(Slow())
    subject.start()
    await asyncio.sleep(0.01)
    await asyncio.wait_for(subject.stop(), 1)
    assert subject.health.state == "stopped"
    assert gave_up == []


@pytest.mark.parametrize("error", [EngineError("odd"), ZeroDivisionError("odd")])
async def test_a_check_that_fails_in_an_unknown_way_neither_ends_the_watch_nor_the_stop(error: Exception) -> None:
    class Odd(SimulatedEngine):
        odd = True
        stopped = False

        async def check(self) -> None:
            if self.odd:
                raise error

        async def stop(self) -> None:
            self.stopped = True

    engine = Odd()
    subject, _ = supervised(engine)
    subject.start()
    await eventually(lambda: subject.health.state == "unresponsive")
    engine.odd = False
    await eventually(lambda: subject.health.state == "ready")
    await subject.stop()
    assert engine.stopped
