"""A listener of its own for metrics: who may reach it is the network's to say."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Generator

import uvicorn
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mulgil.telemetry.exposition import exposed

log = logging.getLogger(__name__)


class MetricsPort:
    """Serves `/metrics` and nothing else, to whoever asks.

    Args:
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        registry: what is told.

    Attributes:
        port: the one that it listens on, once it does.
    """

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        self.host, self.port = host, port
        self._registry = registry
        self._server: uvicorn.Server | None = None
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listen from now on, in a task of the running loop.

        Raises:
            OSError: the address cannot be listened on.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.create_server((self.host, self.port), family=family)
        self.port = listener.getsockname()[1]
        app = Starlette(routes=[Route("/metrics", self._metrics)])
        config = uvicorn.Config(app, lifespan="off", ws="none", access_log=False, server_header=False, log_config=None)
        self._server = _Server(config)
        self._running = asyncio.create_task(self._server.serve(sockets=[listener]))
        log.info("metrics are told on %s:%d", self.host, self.port)

    async def stop(self) -> None:
        """Listen no more."""
        if self._server is not None and self._running is not None:
            self._server.should_exit = self._server.force_exit = True
            await self._running

    async def _metrics(self, request: Request) -> Response:
        body, content_type = exposed(self._registry, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})


class _Server(uvicorn.Server):
    """A server beside another one, which has the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
