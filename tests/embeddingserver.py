"""Another server that makes embeddings, and answers as it is told."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson
import uvicorn
from harness import eventually
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


@dataclass
class Upstream:
    """A server that answers as it is told.

    Attributes:
        answers: status, headers and body by path; what is not there is a 404.
        delay: seconds before each answer.
        requests: what came: method, path, headers, body.
    """

    answers: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    delay: float = 0.0
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    under_way: int = 0
    url: str = ""

    def says(self, path: str, body: object, status: int = 200, **headers: str) -> None:
        content = body if isinstance(body, bytes) else orjson.dumps(body)
        self.answers[path] = status, {name.replace("_", "-"): value for name, value in headers.items()}, content

    async def answer(self, request: Request) -> Response:
        body = await request.body()
        self.requests.append((request.method, request.url.path, dict(request.headers), body))
        self.under_way += 1
        try:
            if self.delay:
                await self._unless_left(request)
        finally:
            self.under_way -= 1
        status, headers, content = self.answers.get(request.url.path, (404, {}, b'{"detail":"Not Found"}'))
        return Response(content, status_code=status, headers=headers, media_type="application/json")

    async def _unless_left(self, request: Request) -> None:
        for _ in range(round(self.delay / 0.01)):
            if await request.is_disconnected():
                return
            await asyncio.sleep(0.01)


@asynccontextmanager
async def scripted_upstream() -> AsyncGenerator[Upstream]:
    """An `Upstream` under uvicorn on a free port, which counts one token and embeds one text."""
    upstream = Upstream()
    upstream.says("/tokenize", {"count": 3, "max_model_len": 100, "tokens": [1, 5, 2]})
    upstream.says("/v1/models", {"object": "list", "data": []})
    upstream.says("/v1/embeddings", {"data": [{"index": 0, "embedding": [1.0, 0.0]}], "usage": {"prompt_tokens": 3}})
    app = Starlette(routes=[Route("/{path:path}", upstream.answer, methods=["GET", "POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None))
    running = asyncio.create_task(server.serve())
    try:
        await eventually(lambda: server.started or running.done())
        upstream.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        yield upstream
    finally:
        server.should_exit = True
        await running
