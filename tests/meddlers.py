"""Real HTTP proxies that each do one thing wrong, as proxies on the way to a gateway do."""

import asyncio
import gzip
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2
import uvicorn
from harness import eventually
from starlette.types import Receive, Scope, Send

_OF_ONE_CONNECTION = {b"connection", b"transfer-encoding", b"content-length", b"keep-alive", b"date", b"upgrade"}


class Cut(Exception):  # noqa: N818 - no error: it is what this proxy is for
    """Ends the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meddling:
    """What a proxy does wrong; as it is, nothing, but that no WebSocket passes.

    Attributes:
        gathers: passes nothing on until the response is whole.
        flushes_every: seconds for which it gathers.
        patience: seconds of silence after which it cuts the connection.
        allows: seconds after which it cuts any response.
        drops: headers that it does not pass on.
        adds: headers that it adds.
        compresses: streams too.
        has_own_errors: writes error pages of its own.
        largest_body: that it passes on.
    """

    gathers: bool = False
    flushes_every: float = 0.0
    patience: float = 60.0
    allows: float = 60.0
    drops: Collection[bytes] = ()
    adds: Collection[tuple[bytes, bytes]] = ()
    compresses: bool = False
    has_own_errors: bool = False
    largest_body: int = 2**30


class Meddler:
    """The proxy, as an application."""

    def __init__(self, target: str, how: Meddling, client: httpx2.AsyncClient) -> None:
        self._target = target
        self._how = how
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        how, body = self._how, b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if len(body) > how.largest_body:
            await _page(send, 413)
            return
        url = f"{self._target}{scope['path']}?{scope['query_string'].decode()}"
        headers = [(name, value) for name, value in scope["headers"] if name not in _OF_ONE_CONNECTION]
        async with self._client.stream(scope["method"], url, headers=headers, content=body) as answer:
            if how.has_own_errors and answer.status_code >= 400:
                await _page(send, answer.status_code)
                return
            kept = [
                (name.lower(), value)
                for name, value in answer.headers.raw
                if name.lower() not in {*_OF_ONE_CONNECTION, *how.drops}
            ]
            packs = how.compresses and "gzip" in _header(scope, b"accept-encoding")
            kept += [*how.adds, *([(b"content-encoding", b"gzip")] if packs else [])]
            start = {"type": "http.response.start", "status": answer.status_code, "headers": kept}
            await self._pass_on(answer, start, send, packs=packs)

    async def _pass_on(self, answer: httpx2.Response, start: dict[str, object], send: Send, *, packs: bool) -> None:
        how, held = self._how, b""
        try:
            async with asyncio.timeout(how.allows):
                if not how.gathers:
                    await send(start)
                last = asyncio.get_running_loop().time()
                async for data in _patiently(answer.aiter_raw(), how.patience):
                    held += data
                    now = asyncio.get_running_loop().time()
                    if not (how.gathers or packs) and now - last >= how.flushes_every:
                        await send({"type": "http.response.body", "body": held, "more_body": True})
                        held, last = b"", now
                if how.gathers:
                    await send(start)
                await send({"type": "http.response.body", "body": gzip.compress(held) if packs else held})
        except TimeoutError:
            raise Cut from None


def _header(scope: Scope, name: bytes) -> str:
    return next((value.decode() for key, value in scope["headers"] if key == name), "")


async def _patiently(data: AsyncIterator[bytes], patience: float) -> AsyncGenerator[bytes]:
    while True:
        try:
            async with asyncio.timeout(patience):
                one = await anext(data)
        except StopAsyncIteration:
            return
        yield one


async def _page(send: Send, status: int) -> None:
    headers = [(b"content-type", b"text/html"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"<html>Sorry</html>"})


@asynccontextmanager
async def meddling(target: str, how: Meddling) -> AsyncGenerator[str]:
    """The URL of a proxy in front of *target*."""
    async with httpx2.AsyncClient(timeout=60) as client:
        config = uvicorn.Config(
            Meddler(target, how, client),
            port=0,
            lifespan="off",
            ws="none",
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve())
        try:
            await eventually(lambda: server.started or running.done())
            yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        finally:
            server.should_exit = True
            await running
