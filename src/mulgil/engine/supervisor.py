"""The watch over the engine: starts it, knows its state, and never calls a silent engine healthy."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar, get_args

from mulgil.errors import EngineUnavailableError, MulgilError

log = logging.getLogger(__name__)

State = Literal["loading", "ready", "unresponsive", "rebuilding", "failed", "stopped"]
STATES: tuple[State, ...] = get_args(State)

_LOADING_RETRY_AFTER = 5.0
_FAILED_RETRY_AFTER = 30.0
_STOPPING = 30.0
_LONGEST_BACK_OFF = 30.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the watch waits before it acts, in seconds.

    Attributes:
        check_interval: between two round trips through the engine.
        hung: an engine that answers no round trip for so long is rebuilt.
        stalled: one that has work and makes nothing for so long is rebuilt.
        rebuilds: attempts in a row that may fail before the process gives up; 0 to give up at once.
        steady: an engine that has lived for so long was rebuilt with success, and the count of attempts begins anew.
    """

    check_interval: float = 1.0
    hung: float = 30.0
    stalled: float = 120.0
    rebuilds: int = 5
    steady: float = 1.0


@dataclass(frozen=True, slots=True)
class Health:
    """The engine's state, the reason for it in one sentence, and since when (Unix time)."""

    state: State
    reason: str
    since: float


class Supervised(Protocol):
    """What the watch asks of an engine; see `mulgil.engine.base.Engine` for what is promised."""

    @property
    def dead(self) -> bool: ...
    @property
    def progress(self) -> int | None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def check(self) -> None: ...


E = TypeVar("E", bound=Supervised)


class Supervisor(Generic[E]):
    """Owns an engine of this process, and builds another when it is beyond help.

    Args:
        build: makes an engine, not started.
        patience: how long it waits before it acts.
        on_failed: called once when no engine can be had: at the start, or after as many attempts as allowed.
        prove: serves one small request; an engine that cannot is no engine. Default: it is not asked.
        name: of the engine, in the log.
    """

    def __init__(
        self,
        build: Callable[[], Awaitable[E]],
        *,
        patience: Patience,
        on_failed: Callable[[], None],
        prove: Callable[[E], Awaitable[None]] | None = None,
        name: str = "engine",
    ) -> None:
        self._build = build
        self._patience = patience
        self._on_failed = on_failed
        self._prove = prove
        self._name = name
        self._engine: E | None = None
        self._health = Health("loading", "The engine is loading.", time.time())
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.rebuilds = 0
        """How often it was rebuilt, or tried to be."""

    @property
    def health(self) -> Health:
        """The state now; a dead engine shows at once, not at the next check."""
        if self._health.state in ("ready", "unresponsive") and self._engine is not None and self._engine.dead:
            self._become("rebuilding" if self._patience.rebuilds else "failed", "The engine died.")
        return self._health

    def engine(self) -> E:
        """The engine, if it can serve.

        Raises:
            EngineUnavailableError: it cannot, for the reason in the message.
        """
        health = self.health
        if self._engine is None or health.state != "ready":
            raise EngineUnavailableError(
                f"The model cannot answer now: {health.reason}",
                retry_after=_FAILED_RETRY_AFTER if health.state == "failed" else _LOADING_RETRY_AFTER,
            )
        return self._engine

    async def rebuilt(self, *, within: float) -> None:
        """Wait while it is being rebuilt, *within* seconds at most; whether it serves then is another question."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self.health.state == "rebuilding":
                    await self._change()

    def start(self) -> None:
        """Begin to load; returns at once."""
        self._task = asyncio.create_task(self._watch())

    async def until_ready(self) -> None:
        """Wait until the engine has served its first check."""
        while self._health.state != "ready":
            await self._change()

    async def until_loaded(self) -> None:
        """Wait until the engine has loaded, or cannot be."""
        while self._health.state == "loading":
            await self._change()

    async def stop(self) -> None:
        """End the watch, then the engine."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._engine is not None:
            await self._engine.stop()
        self._become("stopped", "The server is shutting down.")

    async def _watch(self) -> None:
        failures = 0
        while (wrong := await self._started()) is None or self.rebuilds:
            if wrong is None:
                assert self._engine is not None
                begun = time.monotonic()
                wrong = await self._kept(self._engine)
                if time.monotonic() - begun >= self._patience.steady:
                    failures = 0
            failures += 1
            if failures > self._patience.rebuilds:
                break
            self.rebuilds += 1
            self._become("rebuilding", wrong)
            await self._clear_away()
            await asyncio.sleep(min(2.0 ** (failures - 1) - 1, _LONGEST_BACK_OFF))
        self._become("failed", wrong or "The engine could not be started.")
        self._on_failed()

    async def _started(self) -> str | None:
        """Build and start an engine; what is wrong, or None."""
        try:
            self._engine = engine = await self._build()
            await engine.start()
            if self._prove is not None:
                await self._prove(engine)
        except MulgilError as error:
            return error.message
        except Exception:
            log.exception("the %s could not be started", self._name)
            return "The engine could not be started."
        self._become("ready", "The engine answers.")
        return None

    async def _kept(self, engine: E) -> str:
        """Watch over *engine* until it is beyond help; what is wrong then."""
        silent_since: float | None = None
        stall = _Stall(self._patience.stalled)
        while not engine.dead:
            await asyncio.sleep(self._patience.check_interval)
            wrong = await self._checked(engine)
            if engine.dead:
                break
            if wrong is None:
                silent_since = None
                self._become("ready", "The engine answers.")
                if stall.seen(engine.progress):
                    return f"The engine has made nothing for {self._patience.stalled:g} s."
                continue
            silent_since = silent_since or time.monotonic()
            self._become("unresponsive", wrong)
            if time.monotonic() - silent_since >= self._patience.hung:
                return wrong
        return "The engine died."

    async def _checked(self, engine: E) -> str | None:
        try:
            await engine.check()
        except MulgilError as error:
            return error.message
        except Exception:
            log.exception("the %s could not be checked", self._name)
            return "The engine could not be checked."
        return None

    async def _clear_away(self) -> None:
        """End what is left of the engine: its generations with an error, its processes in any case."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        try:
            await asyncio.wait_for(engine.stop(), _STOPPING)
        except Exception:
            log.exception("the old %s could not be stopped", self._name)

    async def _change(self) -> None:
        changed = self._changed
        await changed.wait()

    def _become(self, state: State, reason: str) -> None:
        if state != self._health.state:
            self._health = Health(state, reason, time.time())
            level = logging.INFO if state in ("ready", "stopped") else logging.ERROR
            log.log(level, "%s %s: %s", self._name, state, reason)
            # A fresh event each time: whoever waits is woken once and looks for itself.
            self._changed.set()
            self._changed = asyncio.Event()


class _Stall:
    """Notices that an engine with work makes nothing.

    Args:
        seconds: for how long.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last: int | None = None
        self._since = time.monotonic()

    def seen(self, progress: int | None) -> bool:
        """Whether it has stalled, given a count that grows with its work; None while it has none."""
        if progress is None or progress != self._last:
            self._last, self._since = progress, time.monotonic()
            return False
        return time.monotonic() - self._since >= self._seconds
