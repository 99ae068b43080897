"""Notice when the client has gone, whatever the server is doing for it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientGone(Exception):  # noqa: N818 - not an error, and nobody is left to read it
    """The client hung up before it had its answer."""


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of *work*, which is cancelled when the client leaves first.

    To be called when the request's body has been read.

    Raises:
        ClientGone: the client left; *work* has been cancelled and has ended.
    """
    task = asyncio.create_task(work)
    async with on_hang_up(receive, task.cancel) as gone:
        try:
            return await task
        except asyncio.CancelledError:
            if gone():
                raise ClientGone from None
            task.cancel()
            raise


@asynccontextmanager
async def on_hang_up(receive: Receive, act: Callable[[], object]) -> AsyncGenerator[Callable[[], bool]]:
    """While inside, call *act* once when the client leaves. Yields whether that has happened."""
    left = False

    async def watch() -> None:
        nonlocal left
        while (await receive())["type"] != "http.disconnect":
            pass
        left = True
        act()

    watcher = asyncio.create_task(watch())
    try:
        yield lambda: left
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher
