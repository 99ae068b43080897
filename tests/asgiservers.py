"""A real server that tells what it was asked, to see what a proxy makes of requests."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import orjson
import uvicorn
from harness import eventually
from starlette.types import Receive, Scope, Send


@dataclass
class Answering:
    """Answers every request with its name, the status that is set here, and the headers that it heard.

    A WebSocket gets its messages back, with the name before them.
    """

    name: str
    port: int = 0
    status: int = 200

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._echo(receive, send)
            return
        while (await receive()).get("more_body"):
            pass
        heard = {name.decode(): value.decode() for name, value in scope["headers"]}
        body = orjson.dumps({"name": self.name, "headers": heard})
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _echo(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": f"{self.name}: {message['text']}"})


@asynccontextmanager
async def answering(name: str) -> AsyncGenerator[Answering]:
    """Such a server, on a free port."""
    app = Answering(name)
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_config=None, timeout_graceful_shutdown=1))
    running = asyncio.create_task(server.serve())
    try:
        await eventually(lambda: server.started or running.done())
        app.port = server.servers[0].sockets[0].getsockname()[1]
        yield app
    finally:
        server.should_exit = True
        await running
