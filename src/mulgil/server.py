"""Runs the application under uvicorn, as `mulgil serve` does."""

import asyncio
import signal
import socket
from collections.abc import Callable

import uvicorn

from mulgil.app import Mulgil, build
from mulgil.protocol import protocol
from mulgil.settings import Settings

START_FAILED = 3

_PROGRESS_INTERVAL = 5.0
_TIME_FOR_LAST_WORDS = 3


class GatewayServer(uvicorn.Server):
    """uvicorn's server; at its end, what still runs after the grace period is ended by the gateway.

    So a client gets an error that it can read, where uvicorn would cut it off.
    """

    def __init__(self, settings: Settings, mulgil: Mulgil) -> None:
        super().__init__(server_config(settings, mulgil.app))
        self._grace = settings.shutdown_grace
        self._mulgil = mulgil

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self._end_what_still_runs())
        await super().shutdown(sockets)
        ending.cancel()

    async def _end_what_still_runs(self) -> None:
        await asyncio.sleep(self._grace)
        await self._mulgil.drain()


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

    mulgil = build(settings, on_engine_failed=give_up)
    server = GatewayServer(settings, mulgil)

    async def run() -> None:
        announcing = asyncio.create_task(_announce(server, mulgil, on_loading, on_ready))
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
        http=protocol(request_timeout=settings.request_timeout, write_timeout=settings.write_timeout),
        ws="websockets-sansio",
        ws_max_size=settings.max_body_bytes,
        timeout_keep_alive=settings.keep_alive,
        timeout_graceful_shutdown=settings.shutdown_grace + _TIME_FOR_LAST_WORDS,
        access_log=False,  # ours says more, and less of what is secret
        server_header=False,
        log_config=None,
    )


async def _announce(
    server: uvicorn.Server,
    mulgil: Mulgil,
    on_loading: Callable[[int], None],
    on_ready: Callable[[str], None],
) -> None:
    waited = 0.0
    ready = asyncio.create_task(mulgil.until_ready())
    while not (await asyncio.wait({ready}, timeout=_PROGRESS_INTERVAL))[0]:
        waited += _PROGRESS_INTERVAL
        on_loading(round(waited))
    while not server.started:  # noqa: ASYNC110 - uvicorn tells it by this flag alone
        await asyncio.sleep(0.01)
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/v1")
