"""The watch over the engine: starts it, knows its state, and never calls a silent engine healthy."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

from mulgil.errors import EngineUnavailableError, MulgilError

log = logging.getLogger(__name__)

State = Literal["loading", "ready", "unresponsive", "failed", "stopped"]

_LOADING_RETRY_AFTER = 5.0
_FAILED_RETRY_AFTER = 30.0


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
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def check(self) -> None: ...


E = TypeVar("E", bound=Supervised)


class Supervisor(Generic[E]):
    """Owns an engine of this process.

    Args:
        build: makes the engine, not started.
        check_interval: seconds between two round trips through the engine.
        on_start_failed: called once when the engine cannot be started.
        name: of the engine, in the log.
    """

    def __init__(
        self,
        build: Callable[[], Awaitable[E]],
        *,
        check_interval: float,
        on_start_failed: Callable[[], None],
        name: str = "engine",
    ) -> None:
        self._build = build
        self._check_interval = check_interval
        self._on_start_failed = on_start_failed
        self._name = name
        self._engine: E | None = None
        self._health = Health("loading", "The engine is loading.", time.time())
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    @property
    def health(self) -> Health:
        """The state now; a dead engine shows at once, not at the next check."""
        if self._health.state in ("ready", "unresponsive") and self._engine is not None and self._engine.dead:
            self._become("failed", "The engine died.")
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
                retry_after=_LOADING_RETRY_AFTER if health.state == "loading" else _FAILED_RETRY_AFTER,
            )
        return self._engine

    def start(self) -> None:
        """Begin to load; returns at once."""
        self._task = asyncio.create_task(self._watch())

    async def until_ready(self) -> None:
        """Wait until the engine has served its first check."""
        await self._ready.wait()

    async def until_loaded(self) -> None:
        """Wait until the engine has loaded, or cannot be."""
        while self._health.state == "loading":  # noqa: ASYNC110 - for who starts a server and has a second to spare
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        """End the watch, then the engine."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._engine is not None:
            await self._engine.stop()
        self._become("stopped", "The server is shutting down.")

    async def _watch(self) -> None:
        try:
            self._engine = await self._build()
            await self._engine.start()
        except MulgilError as error:
            self._become("failed", error.message)
        except Exception:
            log.exception("the %s could not be started", self._name)
            self._become("failed", "The engine could not be started.")
        else:
            self._become("ready", "The engine answers.")
            self._ready.set()
            await self._keep_checking(self._engine)
            return
        self._on_start_failed()

    async def _keep_checking(self, engine: E) -> None:
        while self.health.state != "failed":
            await asyncio.sleep(self._check_interval)
            try:
                await engine.check()
            except MulgilError as error:
                self._become("failed" if engine.dead else "unresponsive", error.message)
            except Exception:
                log.exception("the %s could not be checked", self._name)
                self._become("failed" if engine.dead else "unresponsive", "The engine could not be checked.")
            else:
                self._become("ready", "The engine answers.")

    def _become(self, state: State, reason: str) -> None:
        if state != self._health.state:
            self._health = Health(state, reason, time.time())
            level = logging.INFO if state in ("ready", "stopped") else logging.ERROR
            log.log(level, "%s %s: %s", self._name, state, reason)
