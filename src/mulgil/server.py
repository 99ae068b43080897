"""Runs the application under uvicorn, as `mulgil serve` does."""

import asyncio
import signal
from collections.abc import Callable

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mulgil.api.context import RequestContext
from mulgil.api.errors import envelope
from mulgil.app import build
from mulgil.engine.supervisor import Supervisor
from mulgil.errors import BadRequestError
from mulgil.settings import Settings

START_FAILED = 3

_PROGRESS_INTERVAL = 5.0


class GatewayProtocol(HttpToolsProtocol):
    """Answers what is no HTTP at all with the error envelope, too."""

    def send_400_response(self, msg: str) -> None:
        error = BadRequestError(msg)
        body = orjson.dumps(envelope(error))
        head = (
            "HTTP/1.1 400 Bad Request\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            f"x-request-id: {RequestContext().id}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


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
    server = uvicorn.Server(server_config(settings, mulgil.app))

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
        timeout_graceful_shutdown=settings.shutdown_grace,
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
