"""What vLLM has made for a request and nobody has read yet. Written against vLLM 0.32."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

Place = tuple[int, int]
"""Of a choice: the index of its prompt, and its own among the choices of that."""

LONGEST_PAUSE = 0.1
"""Seconds between two events of a stream that was gathered for the sake of others; beyond, a reader would see it."""


class Pace:
    """How long the streams of an engine wait from one event to the next.

    What a stream costs, it costs for each event, whatever its text: where many streams would have more events in a
    second than the process is to spend itself on, each gets fewer and longer ones.

    Args:
        interval: seconds, at least; 0 for every token as it is made, of however many streams.
        events: a second, of all streams together.
    """

    def __init__(self, interval: float, events: int) -> None:
        self._interval = interval
        self._events = events
        self.streams = 0
        """How many there are."""

    def now(self) -> float:
        """Seconds to wait."""
        if not self._interval:
            return 0.0
        return max(self._interval, min(self.streams / self._events, LONGEST_PAUSE))


class Inbox:
    """Takes the outputs of all prompts of a request, and keeps the newest of each choice.

    vLLM's collector wakes its reader for each token, and tasks that wake are most of what a token costs here. An
    output is cumulative, so one that was not read is made up for by the next.

    Args:
        interval: gives the seconds to the next reading, at least; the first and the last wait for nothing.
        on_output: called for every output of the engine. Must not fail.
    """

    def __init__(self, interval: Callable[[], float], on_output: Callable[[], None]) -> None:
        self._interval = interval
        self._on_output = on_output
        self._loop = asyncio.get_running_loop()
        self._new: dict[Place, tuple[Any, Any]] = {}
        self._open: set[int] = set()
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    @property
    def over(self) -> bool:
        """Everything was made, and read."""
        return not (self._open or self._new)

    def attach(self, index: int, collector: Any) -> None:
        """From here on get what *collector* would have got, and what it has got: it is prompt *index*'s."""
        self._open.add(index)
        collector.put = partial(self._put, index)
        if (came := collector.output) is not None:
            self._put(index, came)

    async def read(self) -> dict[Place, tuple[Any, Any]]:
        """What is new: of each choice its newest state, with the output that told it.

        Raises:
            Exception: what vLLM failed with.
        """
        if not self._may_be_read():
            self._reader = self._loop.create_future()
            if self._new:
                self._wake_when_due()
            try:
                await self._reader
            finally:
                self._reader = None
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
        if self._error is not None:
            raise self._error
        self._due = self._loop.time() + self._interval()
        new, self._new = self._new, {}
        return new

    def _put(self, index: int, output: Any) -> None:
        self._on_output()
        if isinstance(output, Exception):
            self._error = output
        else:
            for choice in output.outputs:
                self._new[index, choice.index] = choice, output
            if output.finished:
                self._open.discard(index)
        if self._reader is not None:
            if self._may_be_read():
                self._wake()
            else:
                self._wake_when_due()

    def _may_be_read(self) -> bool:
        if self._error is not None or not self._open:
            return True
        return bool(self._new) and self._loop.time() >= self._due

    def _wake_when_due(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_at(self._due, self._wake)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
