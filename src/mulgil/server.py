"""Runs the application under uvicorn, as `mulgil serve` does."""

import asyncio
import signal
import socket
from collections.abc import Callable
from http import HTTPStatus

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mulgil.api.context import RequestContext
from mulgil.api.errors import envelope
from mulgil.app import Mulgil, build
from mulgil.engine.supervisor import Supervisor
from mulgil.errors import BadRequestError, HeadTooLargeError, MulgilError
from mulgil.settings import Settings

START_FAILED = 3

_PROGRESS_INTERVAL = 5.0
_TIME_FOR_LAST_WORDS = 3
_LARGEST_HEAD = 64 * 1024


class GatewayProtocol(HttpToolsProtocol):
    """uvicorn's HTTP, with a bound on the head, and the error envelope even for what is no HTTP at all."""

    _head = 0
    _in_head = True

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head += len(data)
            if self._head > _LARGEST_HEAD and not self.transport.is_closing():
                self._refuse(HeadTooLargeError(f"The headers are larger than {_LARGEST_HEAD} bytes."))

    def on_message_begin(self) -> None:
        self._head, self._in_head = 0, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(BadRequestError(msg))

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


class GatewayServer(uvicorn.Server):
    """uvicorn's server; at its end, what still runs after the grace period is ended by the gateway.

    So a client gets an error that it can read, where uvicorn would cut it off.
    """

    def __init__(self, settings: Settings, mulgil: Mulgil) -> None:
        super().__init__(server_config(settings, mulgil.app))
        self._grace = settings.shutdown_grace
        self._gateway = mulgil.gateway

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self._end_what_still_runs())
        await super().shutdown(sockets)
        ending.cancel()

    async def _end_what_still_runs(self) -> None:
        await asyncio.sleep(self._grace)
        await self._gateway.drain()


def serve(
    settings: Settings,
    *,
    on_loading: Callable[[int], None] = lambda seconds: None,
    on_ready: Callable[[str], None] = lambda url: None,
) -> int:
    """Serve until told to stop.

    Args:
        settings: the configuration.
        on_loading: called every few seconds while the model loads, with the seconds so far.
        on_ready: called once with the base URL when the first request can be answered.

    Returns:
        The exit status: 0, or 3 when the engine could not be started.
    """
    failed = False

    def give_up() -> None:
        nonlocal failed
        failed = True
        server.should_exit = True

    mulgil = build(settings, on_start_failed=give_up)
    server = GatewayServer(settings, mulgil)

    async def run() -> None:
        announcing = asyncio.create_task(_announce(server, mulgil.supervisor, on_loading, on_ready))
        try:
            await server.serve()
        finally:
            announcing.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn raises the signal once more when it has shut down; that must not undo a clean end.
        signal.signal(number, lambda *_: None)
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(run())
    return START_FAILED if failed or not server.started else 0


def server_config(settings: Settings, app: Callable[..., object]) -> uvicorn.Config:
    """How uvicorn is to serve *app*."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=GatewayProtocol,
        timeout_keep_alive=settings.keep_alive,
        timeout_graceful_shutdown=settings.shutdown_grace + _TIME_FOR_LAST_WORDS,
        access_log=False,  # ours says more, and less of what is secret
        server_header=False,
        log_config=None,
    )


async def _announce(
    server: uvicorn.Server,
    supervisor: Supervisor,
    on_loading: Callable[[int], None],
    on_ready: Callable[[str], None],
) -> None:
    waited = 0.0
    ready = asyncio.create_task(supervisor.until_ready())
    while not (await asyncio.wait({ready}, timeout=_PROGRESS_INTERVAL))[0]:
        waited += _PROGRESS_INTERVAL
        on_loading(round(waited))
    while not server.started:  # noqa: ASYNC110 - uvicorn tells it by this flag alone
        await asyncio.sleep(0.01)
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/v1")
