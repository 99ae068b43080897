"""Server-sent events on the wire: one event, one write, LF only, nothing but `data:` lines."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

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


def event(payload: Mapping[str, object]) -> bytes:
    """One event with *payload* as JSON."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


class EventStream(Response):
    """Sends the events of *frames* and `[DONE]`; a failure ends it with an error event instead.

    Args:
        frames: the events, each one whole.
        on_left: called at once when the reader hangs up, and in any case when the response is over.
        headers: to send beside those of every event stream.
    """

    def __init__(
        self, frames: AsyncGenerator[bytes], on_left: Callable[[], None], *, headers: Mapping[str, str]
    ) -> None:
        super().__init__(headers={**HEADERS, **headers})
        del self.headers["content-length"]
        self._frames = frames
        self._on_left = on_left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with on_hang_up(receive, self._on_left) as gone, aclosing(self._frames) as frames:
                try:
                    async for frame in frames:
                        await send({"type": "http.response.body", "body": frame, "more_body": True})
                    last = DONE
                except MulgilError as error:
                    last = error_frame(error)
                if not gone():
                    await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            self._on_left()
