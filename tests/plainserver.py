"""A real server that speaks OpenAI's API as others do: it keeps no stream, breaks lines, and refuses, as told."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

import orjson
import uvicorn
from harness import eventually
from starlette.types import Receive, Scope, Send

CUT = "cut"
"""In a scene: the line breaks here."""


class LineBreaksError(Exception):
    """Leaves the body without its end, so that the server breaks the connection."""


IN_50_SECONDS = "a date in 50 seconds"


@dataclass(frozen=True)
class Refusal:
    """An answer without success."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)


@dataclass
class PlainServer:
    """What it does, by the name of the model that is asked for.

    Attributes:
        refusals: what the first requests are answered with; later ones get a short answer.
        scenes: the pieces of each streamed answer in turn: text, deltas, finish chunks, `CUT`; the last one repeats.
        strict: models whose server refuses the field `stream_options.resumable`.
        slow: models that answer after so many seconds.
        asked: the bodies of the requests.
        url: where it listens.
    """

    refusals: dict[str, list[Refusal]] = field(default_factory=dict)
    scenes: dict[str, list[list[Any]]] = field(default_factory=dict)
    strict: frozenset[str] = frozenset()
    slow: dict[str, float] = field(default_factory=dict)
    asked: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    url: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        request = orjson.loads(body)
        model = request["model"]
        asked = self.asked.setdefault(model, [])
        asked.append(request)
        await asyncio.sleep(self.slow.get(model, 0))
        if model in self.strict and "resumable" in (request.get("stream_options") or {}):
            error = {"message": "Unknown parameter: 'stream_options.resumable'.", "param": "stream_options.resumable"}
            await _reply(send, 400, {"error": error}, {})
        elif self.refusals.get(model):
            refusal = self.refusals[model].pop(0)
            # A date counts from the moment of the answer, not from that of the test's writing.
            headers = {
                name: formatdate(time.time() + 50, usegmt=True) if value == IN_50_SECONDS else value
                for name, value in refusal.headers.items()
            }
            await _reply(send, refusal.status, {"error": {"message": "No.", **refusal.error}}, headers)
        elif request.get("stream"):
            scenes = self.scenes[model]
            await _play(send, scenes.pop(0) if len(scenes) > 1 else scenes[0])
        else:
            message = {"role": "assistant", "content": "Yes."}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            await _reply(send, 200, {"id": "a", "object": "chat.completion", "choices": [choice]}, {})


def finish(reason: str = "stop") -> dict[str, Any]:
    """The piece of a scene that finishes it."""
    return {"finish_reason": reason}


async def _reply(send: Send, status: int, payload: Any, headers: dict[str, str]) -> None:
    sent = [(name.encode(), value.encode()) for name, value in ({"content-type": "application/json"} | headers).items()]
    await send({"type": "http.response.start", "status": status, "headers": sent})
    await send({"type": "http.response.body", "body": orjson.dumps(payload)})


async def _play(send: Send, scene: list[Any]) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for piece in [{"delta": {"role": "assistant", "content": ""}}, *scene]:
        if piece == CUT:
            await asyncio.sleep(0.05)  # what has been sent arrives before the line breaks
            raise LineBreaksError
        choice = {"index": 0, "delta": {}, "finish_reason": None}
        choice |= {"delta": {"content": piece}} if isinstance(piece, str) else piece
        chunk = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        body = b"data: " + orjson.dumps(chunk) + b"\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


@asynccontextmanager
async def plain_server(server: PlainServer) -> AsyncGenerator[PlainServer]:
    """It runs, on a free port."""
    config = uvicorn.Config(server, port=0, lifespan="off", log_config=None, timeout_graceful_shutdown=1)
    running_server = uvicorn.Server(config)
    running = asyncio.create_task(running_server.serve())
    try:
        await eventually(lambda: running_server.started or running.done())
        host, port = running_server.servers[0].sockets[0].getsockname()[:2]
        server.url = f"http://{host}:{port}"
        yield server
    finally:
        running_server.should_exit = True
        await running
