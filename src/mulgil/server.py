"""Runs the application under uvicorn, as `mulgil serve` does."""

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from mulgil.app import build
from mulgil.process import Mulgil
from mulgil.protocol import protocol
from mulgil.settings import Settings

START_FAILED = 3

_PROGRESS_INTERVAL = 5.0
_TIME_FOR_LAST_WORDS = 3


class GatewayServer(uvicorn.Server):
    """uvicorn's server, which ends in an order that loses nothing.

    At the first signal it is not ready any more and serves for a while, so that balancers notice; then it takes nothing
    on, and what runs may finish within the grace period; what outlives that gets an error that its client can
    read, where uvicorn would cut it off. A second signal shortens both.
    """

    def __init__(self, settings: Settings, mulgil: Mulgil, config: uvicorn.Config | None = None) -> None:
        super().__init__(config or server_config(settings, mulgil.app))
        self._delay = settings.drain_delay
        self._grace = settings.shutdown_grace
        self._mulgil = mulgil
        self._hurry = asyncio.Event()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            # Not uvicorn's way, which would skip the end of the application, and with it the leases.
            self._hurry.set()
            return
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._mulgil.gateway.leaving = True
        await self._unless_hurried(self._delay)
        ending = asyncio.create_task(self._end_what_still_runs())
        await super().shutdown(sockets)
        ending.cancel()

    async def _end_what_still_runs(self) -> None:
        await self._unless_hurried(self._grace)
        await self._mulgil.drain()

    async def _unless_hurried(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()


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
    gc.freeze()  # what is loaded stays: no garbage collection need look at it again, with all requests waiting
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(run())
    return START_FAILED if failed or not server.started else 0


def server_config(settings: Settings, app: Callable[..., object]) -> uvicorn.Config:
    """How uvicorn is to serve *app*."""
    return uvicorn.Config(app, host=settings.host, port=settings.port, **server_options(settings))


def server_options(settings: Settings) -> dict[str, Any]:
    """What uvicorn is told wherever it listens."""
    return {
        "loop": "uvloop",
        "http": protocol(request_timeout=settings.request_timeout, write_timeout=settings.write_timeout),
        "ws": "websockets-sansio",
        "ws_max_size": settings.max_body_bytes,
        "timeout_keep_alive": settings.keep_alive,
        "timeout_graceful_shutdown": settings.shutdown_grace + _TIME_FOR_LAST_WORDS,
        "access_log": False,  # ours says more, and less of what is secret
        "server_header": False,
        "log_config": None,
    }


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
