"""Real servers for the tests: the application under uvicorn on a free port, in the test's own loop."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from pydantic import SecretStr

from mulgil.admission.store import BudgetStore
from mulgil.app import build
from mulgil.engine.base import Engine
from mulgil.process import Mulgil
from mulgil.server import GatewayServer
from mulgil.settings import Settings

KEY = "sk-mg-test-key-of-the-suite"
MODEL = "demo"
VLLM: dict[str, Any] = {
    "engine": "vllm",
    "served_model_name": (MODEL,),
    "max_num_seqs": 16,
    "max_model_len": 2048,
    "tool_call_parser": "hermes",
}
"""How the demo model is served to the tests that need it."""
UNLIMITED = Path(__file__).parent / "unlimited.toml"


def settings(**changes: Any) -> Settings:
    """Settings for a test: the simulated engine, one key without limits, a free port, nothing from the environment."""
    given = {
        "engine": "simulated",
        "model": MODEL,
        "api_keys": (SecretStr(KEY),),
        "config": UNLIMITED,
        "port": 0,
        "shutdown_grace": 2,
        "engine_check_interval": 0.05,
        # A test that kills its engine wants to see it dead.
        "engine_rebuilds": 0,
        "engine_canary": False,
        "usage_url": SecretStr("off"),
    }
    return Settings.model_construct(
        **{name: field.get_default(call_default_factory=True) for name, field in Settings.model_fields.items()}
        | given
        | changes
    )


@dataclass(frozen=True)
class Server:
    """A running gateway."""

    mulgil: Mulgil
    host: str
    port: int
    client: httpx2.AsyncClient
    uvicorn: GatewayServer

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def engine(self) -> Engine:
        return self.mulgil.supervisor.engine()

    async def chat(self, content: str = "hello", **fields: Any) -> httpx2.Response:
        """A chat completion, plain unless `stream=True`; the response is read to its end."""
        return await self.client.post("/v1/chat/completions", json=chat_body(content, **fields))

    async def open_socket(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port)


class ServerElsewhere(Server):
    """A gateway, or many behind a proxy, in processes of their own: a test that would look inside is skipped.

    Args:
        url: where it listens, without `/v1`.
        client: with its key.
    """

    def __init__(self, url: str, client: httpx2.AsyncClient) -> None:
        address = httpx2.URL(url)
        # The class above is frozen, and what of it is inside a process has no value here.
        vars(self).update(host=address.host, port=address.port, client=client)

    def __repr__(self) -> str:
        return f"ServerElsewhere({self.url})"

    @property
    def mulgil(self) -> Mulgil:
        pytest.skip("this test looks inside the gateway, and that one is elsewhere")

    @property
    def uvicorn(self) -> GatewayServer:
        pytest.skip("this test looks inside the server, and that one is elsewhere")


@asynccontextmanager
async def served_at(url: str) -> AsyncGenerator[Server]:
    """The gateways at *url*, under the suite's key."""
    async with httpx2.AsyncClient(base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=30) as client:
        yield ServerElsewhere(url, client)


@asynccontextmanager
async def serving(
    chosen: Settings | None = None,
    *,
    engine: Callable[[], Awaitable[Engine]] | None = None,
    store: BudgetStore | None = None,
) -> AsyncGenerator[Server]:
    """A gateway with these settings, ready to serve."""
    chosen = chosen or settings()
    mulgil = build(chosen, engine=engine, store=store, on_engine_failed=lambda: None)
    uvicorn_server = GatewayServer(chosen, mulgil)
    running = asyncio.create_task(uvicorn_server.serve())
    try:
        await eventually(lambda: uvicorn_server.started or running.done())
        host, port = uvicorn_server.servers[0].sockets[0].getsockname()[:2]
        await mulgil.supervisor.until_ready()
        async with httpx2.AsyncClient(
            base_url=f"http://{host}:{port}", headers={"authorization": f"Bearer {KEY}"}, timeout=30
        ) as client:
            yield Server(mulgil, host, port, client, uvicorn_server)
    finally:
        uvicorn_server.should_exit = True
        await running


async def eventually(condition: Callable[[], bool], *, within: float = 5.0) -> None:
    """Wait until *condition* holds; fails when it does not *within* seconds."""
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.002)


def chat_body(content: str = "hello", **fields: Any) -> dict[str, Any]:
    """The body of a chat completion of one user message."""
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **fields}


def script(prompt: str = "", **directives: Any) -> str:
    """A message that tells the simulated engine what to do."""
    return f"{prompt} /simulate {orjson.dumps(directives).decode()}"


def raw_request(body: bytes, *, path: str = "/v1/chat/completions", **headers: str) -> bytes:
    """An HTTP/1.1 POST with the suite's key, as bytes."""
    lines = {
        "host": "test",
        "authorization": f"Bearer {KEY}",
        "content-type": "application/json",
        "content-length": str(len(body)),
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def events(body: str) -> list[Any]:
    """The payloads of an event stream: JSON objects, and the string `[DONE]`."""
    payloads = [line.removeprefix("data: ") for line in body.split("\n") if line.startswith("data: ")]
    return [payload if payload == "[DONE]" else orjson.loads(payload) for payload in payloads]


def text_of(stream: list[Any], index: int = 0) -> str:
    """The content of one choice, put together from the chunks."""
    return "".join(
        choice["delta"].get("content", "")
        for chunk in stream
        if chunk != "[DONE]"
        for choice in chunk["choices"]
        if choice["index"] == index
    )


@asynccontextmanager
async def hanging_up(server: Server, request: bytes) -> AsyncGenerator[asyncio.StreamReader]:
    """Sends *request* on a socket that is closed when the block is left."""
    reader, writer = await server.open_socket()
    writer.write(request)
    await writer.drain()
    try:
        yield reader
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
