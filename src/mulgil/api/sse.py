"""Server-sent events on the wire: one event, one write, LF only, and never a silence that a proxy takes for death."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mulgil.api.disconnect import on_hang_up
from mulgil.api.errors import error_frame
from mulgil.errors import MulgilError

DONE = b"data: [DONE]\n\n"

HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    # no-transform and x-accel-buffering keep proxies from gathering or compressing the events.
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}

_PING = b": ping\n\n"
# After an `id:` a blank line alone is an empty event to openai-python, which cannot parse it.
_PING_WITHIN_IDS = b": ping\n"


@dataclass(frozen=True, slots=True)
class Silence:
    """What is sent when nothing happens.

    Attributes:
        ping: seconds until a comment line.
        heartbeat: seconds until an event without content, for clients that do not count comments.
    """

    ping: float = 15.0
    heartbeat: float = 60.0


def event(payload: Mapping[str, object]) -> bytes:
    """One event with *payload* as JSON."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


@dataclass(frozen=True, slots=True)
class Events:
    """A stream of events.

    Attributes:
        frames: the events, each one whole.
        on_left: called at once when the reader hangs up, and in any case when the response is over.
        heartbeat: makes an event without content, when it is due; None where there is no such thing.
        has_ids: events carry an `id:`.
        last: makes the last event, given the failure if there was one.
    """

    frames: AsyncGenerator[bytes]
    on_left: Callable[[], None]
    heartbeat: Callable[[], bytes] | None = None
    has_ids: bool = False
    last: Callable[[MulgilError | None], bytes] = lambda error: DONE if error is None else error_frame(error)


class EventStream(Response):
    """Sends events to the last one; a failure ends them with an error event instead of `[DONE]`.

    Args:
        events: what is sent.
        silence: what is sent when they pause.
        headers: to send beside those of every event stream.
    """

    def __init__(self, events: Events, silence: Silence, *, headers: Mapping[str, str]) -> None:
        super().__init__(headers={**HEADERS, **headers})
        del self.headers["content-length"]
        self._events = events
        self._silence = silence

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        events = self._events
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            line = _Line(send, events, self._silence)
            async with (
                on_hang_up(receive, events.on_left) as gone,
                aclosing(events.frames) as frames,
                line.kept_alive(),
            ):
                failure: MulgilError | None = None
                try:
                    async for frame in frames:
                        await line.send(frame)
                except MulgilError as error:
                    failure = error
            if not gone():
                last = events.last(failure)
                await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            events.on_left()


class _Line:
    """The way to one reader. What is sent of itself never comes between the bytes of an event."""

    def __init__(self, send: Send, events: Events, silence: Silence) -> None:
        self._send = send
        self._heartbeat = events.heartbeat
        self._ping = _PING_WITHIN_IDS if events.has_ids else _PING
        self._silence = silence
        self._now = asyncio.get_running_loop().time
        self._event_at = self._bytes_at = self._now()
        self._busy = False

    async def send(self, frame: bytes) -> None:
        self._busy = True
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})
        self._busy = False
        self._event_at = self._bytes_at = self._now()

    @contextlib.asynccontextmanager
    async def kept_alive(self) -> AsyncGenerator[None]:
        """While inside, silence is filled."""
        filling = asyncio.create_task(self._fill())
        try:
            yield
        finally:
            filling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await filling

    async def _fill(self) -> None:
        while True:
            quiet = self._now() - self._bytes_at
            if quiet < self._silence.ping:
                await asyncio.sleep(self._silence.ping - quiet)
            elif self._busy:  # waiting for a reader, who has enough to read
                await asyncio.sleep(self._silence.ping)
            elif self._heartbeat is not None and self._now() - self._event_at >= self._silence.heartbeat:
                await self.send(self._heartbeat())
            else:
                await self._send({"type": "http.response.body", "body": self._ping, "more_body": True})
                self._bytes_at = self._now()
