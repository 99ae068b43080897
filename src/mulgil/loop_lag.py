"""How late the event loop is: while one request holds it, no other is answered and no token leaves."""

import asyncio
import contextlib
import logging
import time
from collections import deque

log = logging.getLogger(__name__)

_TOLD_AT_MOST_EVERY = 10.0


class LoopLag:
    """Sets itself a timer again and again, and notes how late it fires.

    What holds the loop for a time is noticed to within one interval of it. A machine that is too busy to run the
    process makes it late too.

    Args:
        interval: seconds between two looks; each costs some microseconds.
        window: seconds that `worst` looks back.
        loud: seconds of lag from which on a warning is logged, at most one every ten seconds.
    """

    def __init__(self, *, interval: float = 0.05, window: float = 30.0, loud: float = 0.25) -> None:
        self.interval = interval
        self.window = window
        self._loud = loud
        self._last = 0.0
        self._due: float | None = None
        self._told = -_TOLD_AT_MOST_EVERY
        # Of each lag only what no later one outdoes, so the worst is the first: its moment, and seconds.
        self._peaks: deque[tuple[float, float]] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def last(self) -> float:
        """Seconds that the loop was late at the last look."""
        return max(self._last, self._overdue())

    @property
    def worst(self) -> float:
        """The most seconds that it was late within the window."""
        since = time.perf_counter() - self.window
        while self._peaks and self._peaks[0][0] < since:
            self._peaks.popleft()
        return max(self._peaks[0][1] if self._peaks else 0.0, self._overdue())

    def start(self) -> None:
        """Look from now on, in a task of the running loop."""
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Look no more. What was seen stays."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _watch(self) -> None:
        try:
            while True:
                self._due = time.perf_counter() + self.interval
                await asyncio.sleep(self.interval)
                self._note(self._overdue())
        finally:
            self._due = None

    def _overdue(self) -> float:
        """Seconds since the timer should have fired; nothing while it is not due."""
        return max(time.perf_counter() - self._due, 0.0) if self._due is not None else 0.0

    def _note(self, lag: float) -> None:
        self._last, now = lag, time.perf_counter()
        while self._peaks and self._peaks[-1][1] <= lag:
            self._peaks.pop()
        self._peaks.append((now, lag))
        if lag >= self._loud and now - self._told >= _TOLD_AT_MOST_EVERY:
            self._told = now
            log.warning("the event loop was held for %.0f ms: nothing was read, sent or answered meanwhile", lag * 1000)
