"""uvicorn's HTTP with what it lacks: bounds on the head and on every wait, and the envelope for what is no HTTP."""

import asyncio
import contextlib
import socket
from http import HTTPStatus
from typing import Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mulgil.api.context import RequestContext
from mulgil.api.errors import envelope
from mulgil.errors import BadRequestError, HeadTooLargeError, MulgilError, RequestTimeoutError

_LARGEST_HEAD = 64 * 1024


class GatewayProtocol(HttpToolsProtocol):
    """One connection. Raises nothing; what is wrong ends it.

    Attributes:
        request_timeout: seconds from a request's first byte to its last.
        write_timeout: seconds that a client may leave unread what was sent to it, and after which one that has
            vanished without a word is noticed, also where nothing is sent to it.
    """

    request_timeout = 60.0
    write_timeout = 60.0

    _head = 0
    _in_head = True
    _reading: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            _notice_when_it_vanishes(connection, self.write_timeout)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head += len(data)
            if self._head > _LARGEST_HEAD and not self.transport.is_closing():
                self._refuse(HeadTooLargeError(f"The headers are larger than {_LARGEST_HEAD} bytes."))

    def on_message_begin(self) -> None:
        self._head, self._in_head = 0, True
        self._reading = self.loop.call_later(self.request_timeout, self._on_request_late)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._stop(self._reading)
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._stop(self._reading)
        super().handle_websocket_upgrade()

    def pause_writing(self) -> None:
        self._writing = self.loop.call_later(self.write_timeout, self._on_reader_late)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stop(self._writing)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop(self._reading)
        self._stop(self._writing)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._refuse(BadRequestError(msg))

    def _on_request_late(self) -> None:
        cycle = self.cycle
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            return  # an answer is on its way, to this request or to the one before
        if self._in_head or cycle is None or not cycle.response_started:
            self._refuse(RequestTimeoutError(f"The request was not complete after {self.request_timeout:g} seconds."))
        else:
            self.transport.abort()  # answered before it was read, and still not whole

    def _on_reader_late(self) -> None:
        # Not close(): that waits for the reader.
        self.transport.abort()

    def _refuse(self, error: MulgilError) -> None:
        body = orjson.dumps(envelope(error))
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            f"x-request-id: {RequestContext().id}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    @staticmethod
    def _stop(timer: asyncio.TimerHandle | None) -> None:
        if timer is not None:
            timer.cancel()


def _notice_when_it_vanishes(connection: Any, seconds: float) -> None:
    """Have the system give up a peer that acknowledges nothing, which it would do after a quarter of an hour.

    It is asked whether it is there when nothing was said for half of *seconds*; see tcp(7).
    """
    options = {"TCP_USER_TIMEOUT": seconds * 1000, "TCP_KEEPIDLE": seconds / 2, "TCP_KEEPINTVL": seconds / 6}
    with contextlib.suppress(OSError):  # it has already gone
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):  # not every system has all of them
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), max(1, round(value)))


def protocol(*, request_timeout: float, write_timeout: float) -> type[GatewayProtocol]:
    """The protocol with these time-outs; uvicorn makes an object of it for each connection."""
    return type(
        "GatewayProtocol",
        (GatewayProtocol,),
        {"request_timeout": request_timeout, "write_timeout": write_timeout},
    )
