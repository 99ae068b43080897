"""Health is what the engine does, not what it once said."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from harness import chat_body, eventually, script, serving, settings

from mulgil.engine.simulated import SimulatedEngine
from mulgil.engine.supervisor import Patience, Supervisor
from mulgil.errors import EngineError, EngineUnavailableError
from mulgil.schemas.chat import ChatCompletionRequest


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
    patience = Patience(check_interval=0.01, rebuilds=0)
    return Supervisor(build, patience=patience, on_failed=lambda: gave_up.append("gave up")), gave_up


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


class Mortal(SimulatedEngine):
    """One of many."""

    def __init__(self, *, stillborn: bool) -> None:
        super().__init__()
        self.stillborn = stillborn
        self.deaf = False
        self.stopped = False

    async def start(self) -> None:
        if self.stillborn:
            raise EngineUnavailableError("It was never alive.")

    async def stop(self) -> None:
        self.stopped = True
        await super().stop()

    async def check(self) -> None:
        if self.deaf:
            raise EngineUnavailableError("The engine did not answer.")
        await super().check()


class Line:
    """A supervisor with one engine after the other; those of some numbers never live."""

    def __init__(self, patience: Patience, stillborn: tuple[int, ...]) -> None:
        self.engines: list[Mortal] = []
        self.gave_up = 0
        self._stillborn = stillborn
        self.subject = Supervisor(self._build, patience=patience, on_failed=self._give_up)

    async def _build(self) -> Mortal:
        self.engines.append(Mortal(stillborn=len(self.engines) in self._stillborn))
        return self.engines[-1]

    def _give_up(self) -> None:
        self.gave_up += 1


@asynccontextmanager
async def lineage(patience: Patience | None = None, *, stillborn: tuple[int, ...] = ()) -> AsyncGenerator[Line]:
    line = Line(patience or Patience(check_interval=0.01, rebuilds=3, steady=0), stillborn)
    line.subject.start()
    await line.subject.until_ready()
    try:
        yield line
    finally:
        await line.subject.stop()


async def test_a_dead_engine_is_replaced_and_what_is_left_of_it_is_ended() -> None:
    async with lineage() as line:
        line.engines[0]._die()
        assert line.subject.health.state == "rebuilding"
        await line.subject.rebuilt(within=5)
        assert line.subject.engine() is line.engines[1]
        assert line.engines[0].stopped
        assert (line.subject.rebuilds, line.gave_up) == (1, 0)


async def test_an_engine_that_stays_silent_is_replaced_and_a_short_silence_is_nothing() -> None:
    async with lineage(Patience(check_interval=0.01, hung=0.4, steady=0)) as line:
        line.engines[0].deaf = True
        await eventually(lambda: line.subject.health.state == "unresponsive")
        line.engines[0].deaf = False
        await eventually(lambda: line.subject.health.state == "ready")
        assert len(line.engines) == 1
        line.engines[0].deaf = True
        await eventually(lambda: len(line.engines) == 2 and line.subject.health.state == "ready")
        assert line.engines[0].stopped


async def test_an_engine_with_work_that_makes_nothing_is_replaced() -> None:
    async with lineage(Patience(check_interval=0.01, stalled=0.2, steady=0)) as line:
        engine = line.engines[0]
        request = ChatCompletionRequest.model_validate(chat_body(script(tokens=5, hang_at=2)))
        prepared = await engine.prepare(request, tenant="t")

        async def run() -> None:
            async for _ in engine.generate(prepared):
                pass

        running = asyncio.create_task(run())
        await eventually(lambda: len(line.engines) == 2)
        with pytest.raises(EngineUnavailableError):
            await running


async def test_an_engine_without_work_does_not_stall() -> None:
    async with lineage(Patience(check_interval=0.01, stalled=0.05)) as line:
        await asyncio.sleep(0.3)
        assert len(line.engines) == 1


async def test_after_as_many_failed_attempts_as_allowed_it_gives_up_once() -> None:
    async with lineage(Patience(check_interval=0.01, rebuilds=2), stillborn=(1, 2, 3)) as line:
        line.engines[0]._die()
        await eventually(lambda: line.gave_up == 1)
        assert (line.subject.health.state, line.subject.health.reason) == ("failed", "It was never alive.")
        assert len(line.engines) == 3


async def test_an_attempt_that_fails_is_followed_by_another() -> None:
    async with lineage(stillborn=(1,)) as line:
        line.engines[0]._die()
        await eventually(lambda: line.subject.health.state == "ready" and len(line.engines) == 3)
        assert line.engines[1].stopped


async def test_an_engine_that_cannot_make_one_token_is_none() -> None:
    async def build() -> SimulatedEngine:
        return SimulatedEngine()

    async def prove(_: SimulatedEngine) -> None:
        raise EngineError("It makes nothing.")

    gave_up: list[int] = []
    subject = Supervisor(build, patience=Patience(0.01), on_failed=lambda: gave_up.append(1), prove=prove)
    subject.start()
    await eventually(lambda: bool(gave_up))
    assert subject.health.reason == "It makes nothing."
    await subject.stop()


async def test_a_gateway_serves_again_after_its_engine_died() -> None:
    async with serving(settings(engine_rebuilds=3, engine_canary=True)) as server:
        first = server.engine
        running = asyncio.create_task(server.chat(script(tokens=500, gap=0.01), stream=True))
        await eventually(lambda: first.load().unfinished == 1)
        died = await server.chat(script(die_at=1))
        assert died.json()["error"]["code"] == "engine_unavailable"
        assert "engine_unavailable" in (await running).text
        await server.mulgil.supervisor.rebuilt(within=5)
        assert (await server.chat()).status_code == 200
        assert server.engine is not first
        assert server.mulgil.gateway.running == 0


class SlowToLoad(SimulatedEngine):
    async def start(self) -> None:
        await asyncio.sleep(0.5)
        await super().start()


async def slow_to_load() -> SlowToLoad:
    return SlowToLoad()


@pytest.mark.parametrize(("patience", "status"), [(5.0, 200), (0.1, 503)])
async def test_a_request_that_comes_during_a_rebuild_waits_for_it_as_long_as_for_a_turn(
    patience: float, status: int
) -> None:
    chosen = settings(engine_rebuilds=3, queue_timeout=patience)
    async with serving(chosen, engine=slow_to_load) as server:
        await server.chat(script(die_at=0))
        answer = await server.chat()
        assert answer.status_code == status, answer.text
        if status == 503:
            assert answer.json()["error"]["code"] == "engine_unavailable"
            assert answer.headers["retry-after"]
