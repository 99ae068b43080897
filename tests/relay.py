"""A real TCP relay in front of a gateway: it hands bytes on one at a time, cuts connections, or lets nobody in."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from harness import Server


@dataclass
class Relay:
    """What happens on the way.

    Attributes:
        host, port: the gateway.
        one_by_one: every byte of an answer is a write of its own.
        cuts: after how many bytes an event stream is cut, one number for each, the first for the first.
        url: where it listens.
        streams: the event streams that passed.
    """

    host: str
    port: int
    one_by_one: bool = False
    cuts: deque[int] = field(default_factory=deque)
    url: str = ""
    streams: int = 0
    _shut: bool = False
    _clients: set[asyncio.StreamWriter] = field(default_factory=set)

    def shut(self) -> None:
        """Cut all connections, and every new one as soon as it is made."""
        self._shut = True
        for client in self._clients:
            client.transport.abort()

    def reopen(self) -> None:
        """Let everybody in again."""
        self._shut = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection, to its end or its cut."""
        if self._shut:
            writer.transport.abort()
            return
        self._clients.add(writer)
        upstream_reader, upstream_writer = await asyncio.open_connection(self.host, self.port)
        there = asyncio.create_task(_copy(reader, upstream_writer))
        try:
            with contextlib.suppress(ConnectionError):
                await self._back(upstream_reader, writer)
        finally:
            self._clients.discard(writer)
            there.cancel()
            upstream_writer.transport.abort()
            writer.transport.abort()

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left: int | None = None  # bytes until the cut
        while data := await reader.read(65_536):
            if b"content-type: text/event-stream" in data.lower():  # nginx has it with capitals
                self.streams += 1
                left = self.cuts.popleft() if self.cuts else None
            piece = data if left is None else data[:left]
            for part in (piece[at : at + 1] for at in range(len(piece))) if self.one_by_one else (piece,):
                writer.write(part)
                await writer.drain()
                if self.one_by_one:
                    await asyncio.sleep(0)
            if left is not None:
                left -= len(piece)
                if left == 0:
                    return


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def relaying(server: Server, *, one_by_one: bool = False, cuts: tuple[int, ...] = ()) -> AsyncGenerator[Relay]:
    """A relay in front of *server*, on a free port."""
    relay = Relay(server.host, server.port, one_by_one, deque(cuts))
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await relay.serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the relay is being closed
        finally:
            connections.discard(task)

    listener = await asyncio.start_server(connected, "127.0.0.1", 0)
    host, port = listener.sockets[0].getsockname()[:2]
    relay.url = f"http://{host}:{port}"
    try:
        yield relay
    finally:
        listener.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections)
