"""An `AsyncLLM` in this process, from its building to its end. Written against vLLM 0.32."""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from vllm.envs import disable_envs_cache, enable_envs_cache
from vllm.platforms import current_platform

from mulgil.engine.leftovers import RunFile
from mulgil.engine.vllm.arguments import SHUTDOWN_TIMEOUT
from mulgil.engine.vllm.errors import unavailable
from mulgil.engine.vllm.exertion import computes
from mulgil.engine.vllm.heap import forget_tokenizers, settle_heap
from mulgil.errors import EngineUnavailableError

log = logging.getLogger(__name__)

_CHECK_TIMEOUT = 5.0
_NOTE_INTERVAL = 1.0
_GIVING_UP = 30.0
"""Seconds in which a build must have ended whose processes are gone."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """How long a build may take.

    Attributes:
        seconds: from its beginning.
        waiting_for: what it may be waiting for, in a sentence; empty where that is nothing.
    """

    seconds: float
    waiting_for: str = ""


_NONE = Deadline(math.inf)


class HostedLLM:
    """Builds one in a thread, notes its processes, and ends it with nothing left of it.

    Args:
        build: makes it.
        runs: where its processes are noted.
        what: it is, in errors and in the log: "the …".
        deadline: for its building.
    """

    def __init__(self, build: Callable[[], Any], runs: RunFile, *, what: str, deadline: Deadline = _NONE) -> None:
        self._build = build
        self._runs = runs
        self._what = what
        self._deadline = deadline
        self._building: asyncio.Task[Any] | None = None
        self._others: set[int] = set()
        self.llm: Any = None
        """The engine while there is one, living or dead."""

    @property
    def dead(self) -> bool:
        return self.llm is not None and bool(self.llm.errored)

    def living(self) -> Any:
        """The engine.

        Raises:
            EngineUnavailableError: there is none, or it is dead.
        """
        if self.llm is None or self.llm.errored:
            raise EngineUnavailableError(f"{self._what.capitalize()} is not running.", retry_after=5.0)
        return self.llm

    async def start(self) -> None:
        """Build it.

        Raises:
            EngineUnavailableError: it cannot be, or not in time.
        """
        await asyncio.to_thread(self._runs.end_leftovers)
        self._others = await asyncio.to_thread(self._runs.starting)
        disable_envs_cache()
        self._building = asyncio.create_task(asyncio.to_thread(self._build))
        if not await self._built(self._building, self._deadline.seconds):
            await self._give_up(self._building)
            raise EngineUnavailableError(
                f"{self._what.capitalize()} was not ready after {self._deadline.seconds:g} s ('engine_start_timeout'). "
                f"{self._deadline.waiting_for}".rstrip()
            )
        try:
            self.llm = self._building.result()
        except Exception as error:
            log.exception("vLLM could not start %s", self._what)
            raise EngineUnavailableError(f"vLLM could not start {self._what}: {error}") from error
        enable_envs_cache()  # as the core does in its process; else each token reads the environment
        await asyncio.to_thread(settle_heap)
        # It starts with the first request otherwise, and until then a dead core goes unnoticed.
        self.llm._run_output_handler()  # noqa: SLF001 - there is no public way

    async def _built(self, building: asyncio.Task[Any], seconds: float) -> bool:
        """Wait *seconds* at most until *building* has ended; whether it has."""
        # Waited for, not awaited: a thread cannot be cancelled, and what it builds must be found by stop().
        end = asyncio.get_running_loop().time() + seconds
        while not building.done() and (left := end - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait({building}, timeout=min(_NOTE_INTERVAL, left))
            await asyncio.to_thread(self._runs.note)
        return building.done()

    async def _give_up(self, building: asyncio.Task[Any]) -> None:
        """End *building* by ending what it waits for: its processes, which may still be starting."""
        for _ in range(round(_GIVING_UP / _NOTE_INTERVAL)):
            await asyncio.to_thread(self._runs.end_all_but, self._others)
            if await self._built(building, _NOTE_INTERVAL):
                await asyncio.to_thread(self._runs.note)  # it may have ended before it was looked at once more
                return
        log.error("vLLM does not give up starting %s, although its processes are gone", self._what)

    async def stop(self, running: Iterable[str]) -> None:
        """End it, and first the requests with these ids."""
        if self._building is None:
            return
        building, self._building, self.llm = self._building, None, None
        if not building.done():
            await self._give_up(building)
        if not building.done() or building.cancelled() or building.exception() is not None:
            return
        llm = building.result()
        if not llm.errored:
            # shutdown() leaves whoever still waits for output waiting for ever.
            await llm.abort(list(running))
        await asyncio.to_thread(llm.shutdown, SHUTDOWN_TIMEOUT)
        await asyncio.to_thread(self._runs.note)
        forget_tokenizers()

    async def check(self) -> None:
        """Have it answer, or see that it computes; whether that leads anywhere is for who counts what it makes.

        Raises:
            EngineUnavailableError: it does neither.
        """
        llm = self.living()
        try:
            # The flag alone cannot see a hung core, and the future of a dead one never resolves.
            await asyncio.wait_for(llm.is_paused(), _CHECK_TIMEOUT)
        except TimeoutError:
            if await self._computes(llm):
                return
            raise EngineUnavailableError(
                f"{self._what.capitalize()} did not answer for {_CHECK_TIMEOUT:.0f} s."
            ) from None
        except Exception as error:
            raise unavailable(error) from error

    async def _computes(self, llm: Any) -> bool:
        """Whether it is silent because it is in the middle of a long step, as happens on a CPU alone."""
        if not current_platform.is_cpu():
            return False
        started = llm.engine_core.resources.engine_manager  # None where somebody else has started the cores
        cores = [core.pid for core in started.processes] if started else []
        return await asyncio.to_thread(computes, cores) and not self.dead
