"""One keep-alive connection that asks for completions and counts what comes, as cheaply as it can.

Nothing is decoded while a stream runs: events are counted by the blank lines that end them, in the bytes as they come.
"""

import asyncio
import re
import time
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import cast

_CONTENT = re.compile(rb'"content":\s*"[^"]')
_USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')
_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"
_EVENT_END = b"\n\n"
_BODY_END = b"\r\n0\r\n\r\n"
_KEPT_SEGMENTS = 6


@dataclass(slots=True)
class Timing:
    """What one request took, in seconds.

    Attributes:
        ttft: to the first event with text; to the whole answer where it is not streamed.
        total: to the last byte.
        tokens: as the server counted them in its `usage`.
        events: of the stream, `[DONE]` included; 0 where it is not streamed.
        failure: what went wrong; empty where nothing did.
    """

    ttft: float = 0.0
    total: float = 0.0
    tokens: int = 0
    events: int = 0
    failure: str = ""


@dataclass(slots=True)
class _Answer:
    """What has come of one answer."""

    begun: float
    done: asyncio.Future[None]
    timing: Timing = field(default_factory=Timing)
    head: bytes = b""
    body: bytearray = field(default_factory=bytearray)
    length: int | None = None
    last: float = 0.0
    segments: deque[bytes] = field(default_factory=lambda: deque(maxlen=_KEPT_SEGMENTS))


class Connection(asyncio.Protocol):
    """A connection to a server of HTTP/1.1.

    Attributes:
        gaps: seconds between reads that brought events, of all requests so far.
    """

    def __init__(self) -> None:
        self.gaps = array("d")
        self._transport: asyncio.Transport
        self._answer: _Answer | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(f"the connection was closed: {exc}")

    async def ask(self, request: bytes, within: float) -> Timing:
        """Send *request* and read its answer to the end, *within* so many seconds."""
        loop = asyncio.get_running_loop()
        answer = self._answer = _Answer(time.perf_counter(), loop.create_future())
        self._transport.write(request)
        timer = loop.call_later(within, self._finish, f"no end after {within:.0f} s")
        try:
            await answer.done
        finally:
            timer.cancel()
        return answer.timing

    def close(self) -> None:
        """Hang up."""
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        now, answer = time.perf_counter(), self._answer
        if answer is None:
            return
        if answer.length is None:
            if not (data := self._headed(answer, data)):
                return
            if answer.length is None:  # still no head
                return
        if answer.length >= 0:
            self._plain(answer, data, now)
        else:
            self._streamed(answer, data, now)

    def _headed(self, answer: _Answer, data: bytes) -> bytes:
        """Take the head off what comes; the rest of *data*."""
        answer.head += data
        head, found, rest = answer.head.partition(_HEAD_END)
        if not found:
            return b""
        length = _LENGTH.search(head)
        answer.length = int(length[1]) if length else -1
        if not head.startswith(b"HTTP/1.1 200"):
            answer.timing.failure = (head.partition(b"\r\n")[0] + b" " + rest[:300]).decode(errors="replace")
        answer.head = head
        return rest

    def _plain(self, answer: _Answer, data: bytes, now: float) -> None:
        answer.body += data
        if len(answer.body) >= (answer.length or 0):
            answer.timing.ttft = now - answer.begun
            answer.segments.append(bytes(answer.body))
            self._end(answer, now)

    def _streamed(self, answer: _Answer, data: bytes, now: float) -> None:
        timing, segments = answer.timing, answer.segments
        segments.append(data)
        if events := data.count(_EVENT_END):
            timing.events += events
            if answer.last:
                self.gaps.append(now - answer.last)
                answer.last = now
            elif _CONTENT.search(data):
                timing.ttft, answer.last = now - answer.begun, now
        if data.endswith(b"0\r\n\r\n") and (len(data) > 5 or b"".join(segments).endswith(_BODY_END)):
            self._end(answer, now)

    def _end(self, answer: _Answer, now: float) -> None:
        answer.timing.total = now - answer.begun
        usage = _USAGE.findall(b"".join(answer.segments))
        if usage:
            answer.timing.tokens = int(usage[-1])
        elif not answer.timing.failure:
            answer.timing.failure = f"no usage in {bytes(answer.segments[-1][-300:])!r}"
        self._finish(answer.timing.failure)

    def _finish(self, failure: str) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done.done():
            answer.timing.failure = failure
            answer.done.set_result(None)
