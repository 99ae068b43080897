"""Chats over WebSocket, as a client has them."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from harness import KEY, Server
from websockets.asyncio.client import ClientConnection, connect

BEARER = {"authorization": f"Bearer {KEY}"}


@asynccontextmanager
async def connected(
    server: Server, query: str = "", headers: dict[str, str] | None = None, **options: Any
) -> AsyncGenerator[ClientConnection]:
    """A connection to the chat; with the suite's key unless there are other *headers*."""
    url = f"ws://{server.host}:{server.port}/ws/chat{query}"
    chosen = BEARER if headers is None else headers
    async with connect(url, additional_headers=chosen, proxy=None, **options) as connection:
        yield connection


async def say(connection: ClientConnection, **message: Any) -> None:
    """Send a message."""
    await connection.send(json.dumps(message))


async def turn(connection: ClientConnection, **message: Any) -> list[Any]:
    """All messages of one turn."""
    await say(connection, **{"type": "chat"} | message)
    heard = [json.loads(await connection.recv())]
    while heard[-1]["type"] not in ("done", "error"):
        heard.append(json.loads(await connection.recv()))
    return heard
