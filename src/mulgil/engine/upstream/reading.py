"""The event stream of an upstream, piece by piece, within bounds of time and size."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import httpx2
import orjson

from mulgil.client.events import EventParser
from mulgil.errors import EngineError

_LONGEST_EVENT = 1024 * 1024
_AFTER_THE_END = 0.05  # seconds in which a connection that can be used again comes to the end of its response


class Reading:
    """Reads one answer.

    Args:
        silence: seconds without a byte after which it is given up.
        most_bytes: longest answer.
        most_events: in so many events at most.

    Attributes:
        aborted: nobody wants the rest.
    """

    def __init__(self, *, silence: float, most_bytes: int, most_events: int) -> None:
        self.aborted = False
        self._silence = silence
        self._bytes_left = most_bytes
        self._events_left = most_events
        self._unfinished = 0
        self._waiting: asyncio.Timeout | None = None
        self._response: httpx2.Response | None = None

    @contextlib.asynccontextmanager
    async def waiting(self) -> AsyncGenerator[None]:
        """Something is waited for; not longer than a silence may be, and not after an abort.

        Raises:
            TimeoutError: it has not come.
        """
        async with asyncio.timeout(0 if self.aborted else self._silence) as waiting:
            self._waiting = waiting
            try:
                yield
            finally:
                self._waiting = None

    async def abort(self) -> None:
        """Let go of the connection at once."""
        self.aborted = True
        if self._waiting is not None:
            if not self._waiting.expired():
                self._waiting.reschedule(asyncio.get_running_loop().time())
        elif self._response is not None:
            await self._response.aclose()

    async def chunks(self, response: httpx2.Response) -> AsyncGenerator[list[dict[str, Any]]]:
        """The chunks that have come together; ends behind `[DONE]`, and when it is aborted.

        Raises:
            EngineError: it breaks off, is silent for too long, says too much, has no chunks, or tells an error.
        """
        self._response = response
        parser, pieces = EventParser(), response.aiter_raw()
        async with aclosing(pieces):
            while not self.aborted:
                piece = await self._next(pieces)
                if piece is None:
                    return
                self._account(len(piece))
                events = [event.data for event in parser.feed(piece)]
                if events:
                    self._unfinished = 0
                chunks = self._read(events)
                if chunks:
                    yield chunks
                if any(event.startswith("[DONE]") for event in events):
                    await _to_the_end(pieces)
                    return

    async def _next(self, pieces: AsyncGenerator[bytes]) -> bytes | None:
        try:
            async with self.waiting():
                piece = await anext(pieces, None)
                why = "stopped before the answer was complete"
        except TimeoutError:
            piece, why = None, "was silent for too long"
        except (httpx2.HTTPError, httpx2.StreamError):
            piece, why = None, "broke off in the middle of the answer"
        if piece is None and not self.aborted:
            raise _failed(why)
        return piece

    def _account(self, size: int) -> None:
        self._bytes_left -= size
        self._unfinished += size
        if self._bytes_left < 0 or self._unfinished > _LONGEST_EVENT:
            raise _failed("says more than an answer can be")

    def _read(self, events: list[str]) -> list[dict[str, Any]]:
        self._events_left -= len(events)
        if self._events_left < 0:
            raise _failed("says more than an answer can be")
        chunks = []
        for data in events:
            if data.startswith("[DONE]"):
                break
            try:
                chunk = orjson.loads(data)
            except orjson.JSONDecodeError:
                chunk = None
            if not isinstance(chunk, dict):
                raise _failed("sent what cannot be read")
            if chunk.get("error") is not None:
                raise _failed("failed this request")
            chunks.append(chunk)
        return chunks


async def _to_the_end(pieces: AsyncGenerator[bytes]) -> None:
    with contextlib.suppress(TimeoutError, httpx2.HTTPError, httpx2.StreamError):
        async with asyncio.timeout(_AFTER_THE_END):
            await anext(pieces, None)


def _failed(what: str) -> EngineError:
    return EngineError(f"The server that answers in place of the engine {what}.")
