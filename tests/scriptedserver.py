"""A server of raw sockets that answers as OpenAI's API would, or as no server should."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

Scene = Callable[[asyncio.StreamWriter], Awaitable[None]]
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@dataclass
class ScriptedServer:
    """What it does.

    Attributes:
        scene: writes the answer to a request; the connection is closed behind it.
        tokenize: what the tokenize endpoint says; None: there is none.
        tokenizes: writes what the tokenize endpoint says instead.
        absent: where the tokenize endpoint is not.
        requests: path, headers and body of each request.
        open: connections that stand.
        url: with `/v1`.
    """

    scene: Scene
    tokenize: dict[str, Any] | None = None
    tokenizes: Scene | None = None
    absent: str = ""
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    open: int = 0
    url: str = ""

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The bodies of the requests for answers."""
        return [orjson.loads(body) for path, _, body in self.requests if not path.endswith("/tokenize")]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        path = head[0].split()[1]
        self.requests.append((path, headers, await reader.readexactly(int(headers["content-length"]))))
        if path.endswith("/tokenize"):
            told = None if path == self.absent else self.tokenize
            scene = self.tokenizes or (answers(404, {"detail": "Not Found"}) if told is None else answers(200, told))
        else:
            scene = self.scene
        playing = asyncio.ensure_future(scene(writer))
        leaving = asyncio.ensure_future(reader.read())
        await asyncio.wait((playing, leaving), return_when=asyncio.FIRST_COMPLETED)
        for one in (playing, leaving):
            one.cancel()
        await asyncio.gather(playing, leaving, return_exceptions=True)


@asynccontextmanager
async def scripted(scene: Scene, *, tokenize: dict[str, Any] | None = None) -> AsyncGenerator[ScriptedServer]:
    """Such a server, on a free port."""
    server = ScriptedServer(scene, tokenize)
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        server.open += 1
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await server.serve(reader, writer)
                writer.close()
                await writer.wait_closed()
        finally:
            server.open -= 1
            tasks.discard(task)
            writer.transport.abort()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
    try:
        yield server
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)


def answers(status: int, body: object, **headers: str) -> Scene:
    """A whole answer at once."""

    async def scene(writer: asyncio.StreamWriter) -> None:
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        lines = {"content-type": "application/json", "content-length": str(len(content)), "connection": "close"}
        lines |= {name.replace("_", "-"): value for name, value in headers.items()}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"HTTP/1.1 {status} Some Words\r\n{head}\r\n".encode() + content)
        await writer.drain()

    return scene


def streams(*pieces: bytes | dict[str, Any] | float) -> Scene:
    """An event stream: bytes as they are, chunks as events, and pauses in seconds."""

    async def scene(writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM)
        for piece in pieces:
            if isinstance(piece, float):
                await asyncio.sleep(piece)
            else:
                writer.write(piece if isinstance(piece, bytes) else event(piece))
            await writer.drain()

    return scene


def event(payload: dict[str, Any]) -> bytes:
    """One event."""
    return b"data: " + orjson.dumps(payload) + b"\n\n"


def delta(content: str | None = None, *, index: int = 0, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk of a chat."""
    told = {"content": content} if content is not None else {}
    return {"choices": [{"index": index, "delta": told | more, "finish_reason": finish}]}


def usage(prompt: int, completion: int, **more: Any) -> dict[str, Any]:
    """The chunk with the counts."""
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **more}}


DONE = b"data: [DONE]\n\n"
