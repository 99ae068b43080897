"""An `AsyncLLM` in this process, from its building to its end. Written against vLLM 0.32."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from vllm.envs import disable_envs_cache, enable_envs_cache

from mulgil.engine.leftovers import RunFile
from mulgil.engine.vllm.errors import unavailable
from mulgil.engine.vllm.heap import forget_tokenizers, settle_heap
from mulgil.errors import EngineUnavailableError

log = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT = 10
"""Seconds that an engine is given to end by itself."""
_CHECK_TIMEOUT = 5.0
_NOTE_INTERVAL = 1.0


class HostedLLM:
    """Builds one in a thread, notes its processes, and ends it with nothing left of it.

    Args:
        build: makes it.
        runs: where its processes are noted.
        what: it is, in errors and in the log: "the …".
    """

    def __init__(self, build: Callable[[], Any], runs: RunFile, *, what: str) -> None:
        self._build = build
        self._runs = runs
        self._what = what
        self._building: asyncio.Task[Any] | None = None
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
            EngineUnavailableError: it cannot be.
        """
        await asyncio.to_thread(self._runs.end_leftovers)
        disable_envs_cache()
        self._building = asyncio.create_task(asyncio.to_thread(self._build))
        try:
            # Waited for, not awaited: a thread cannot be cancelled, and what it builds must be found by stop().
            while not self._building.done():
                await asyncio.wait({self._building}, timeout=_NOTE_INTERVAL)
                await asyncio.to_thread(self._runs.note)
            self.llm = self._building.result()
        except Exception as error:
            log.exception("vLLM could not start %s", self._what)
            raise EngineUnavailableError(f"vLLM could not start {self._what}: {error}") from error
        enable_envs_cache()  # as the core does in its process; else each token reads the environment
        await asyncio.to_thread(settle_heap)
        # It starts with the first request otherwise, and until then a dead core goes unnoticed.
        self.llm._run_output_handler()  # noqa: SLF001 - there is no public way

    async def stop(self, running: Iterable[str]) -> None:
        """End it, and first the requests with these ids."""
        if self._building is None:
            return
        building, self._building, self.llm = self._building, None, None
        await asyncio.wait([building])
        if building.cancelled() or building.exception() is not None:
            return
        llm = building.result()
        if not llm.errored:
            # shutdown() leaves whoever still waits for output waiting for ever.
            await llm.abort(list(running))
        await asyncio.to_thread(llm.shutdown, SHUTDOWN_TIMEOUT)
        await asyncio.to_thread(self._runs.note)
        forget_tokenizers()

    async def check(self) -> None:
        """Have it answer.

        Raises:
            EngineUnavailableError: it does not.
        """
        llm = self.living()
        try:
            # The flag alone cannot see a hung core, and the future of a dead one never resolves.
            await asyncio.wait_for(llm.is_paused(), _CHECK_TIMEOUT)
        except TimeoutError:
            raise EngineUnavailableError(
                f"{self._what.capitalize()} did not answer for {_CHECK_TIMEOUT:.0f} s."
            ) from None
        except Exception as error:
            raise unavailable(error) from error
