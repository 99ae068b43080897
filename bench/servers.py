"""Servers that the benchmarks start: each is waited for, watched, and stopped by its own process id."""

import contextlib
import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
_START_TIMEOUT = 240.0
_STOP_TIMEOUT = 30.0
_LOG_TAIL = 3_000


def say(line: str) -> None:
    """Tell whoever waits how far it is."""
    sys.stderr.write(f"bench: {line}\n")
    sys.stderr.flush()


def free_port() -> int:
    """A port of the loopback that nobody uses, below those of outgoing connections."""
    while True:
        port = random.SystemRandom().randrange(12_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@dataclass(frozen=True)
class Usage:
    """What a process has used so far: seconds of a core, and bytes that it holds."""

    cpu: float
    rss: int


class Server:
    """A process.

    Attributes:
        started_in: seconds from its start until it was ready.
    """

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.process = process
        self.log = log
        self.started_in = 0.0
        self._seen = psutil.Process(process.pid)

    def usage(self) -> Usage:
        """Of this process alone, not of those that it started."""
        times = self._seen.cpu_times()
        return Usage(times.user + times.system, self._seen.memory_info().rss)

    def offspring_cpu(self) -> float:
        """Seconds that the processes which it started have worked."""
        times = [child.cpu_times() for child in self._seen.children(recursive=True)]
        return sum(one.user + one.system for one in times)

    def check(self) -> None:
        """Raise RuntimeError, with the end of its log, if it has ended."""
        if self.process.poll() is not None:
            said = self.log.read_text(errors="replace")[-_LOG_TAIL:]
            raise RuntimeError(f"{self.process.args!r} ended with {self.process.returncode}:\n{said}")

    def until_ready(self, port: int, path: str) -> None:
        """Wait until a GET of *path* is answered with 200."""
        begun = time.monotonic()
        while not _answers(port, path):
            self.check()
            if time.monotonic() - begun > _START_TIMEOUT:
                raise TimeoutError(f"not ready after {_START_TIMEOUT:.0f} s: {self.process.args!r}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it and whatever it has started."""
        offspring: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            offspring = self._seen.children(recursive=True)
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(_STOP_TIMEOUT)
        for child in offspring:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(offspring, timeout=_STOP_TIMEOUT)


@contextmanager
def running(
    command: Sequence[str], folder: Path, *, environment: Mapping[str, str] | None = None, talks: bool = False
) -> Iterator[Server]:
    """A process, ended when the block is left.

    Args:
        command: what is run.
        folder: where it runs and keeps its log; no `.env` is there.
        environment: variables beside ours; none of ours that begin with MULGIL_.
        talks: its standard input and output are pipes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MULGIL_")}
    inherited |= {"PYTHONPATH": str(ROOT), **(environment or {})}
    pipe = subprocess.PIPE if talks else subprocess.DEVNULL
    log = folder / "log"
    with log.open("w") as sink:
        out = subprocess.PIPE if talks else sink
        process = subprocess.Popen(
            command, cwd=folder, env=inherited, stdin=pipe, stdout=out, stderr=sink, text=True, bufsize=1
        )
    server = Server(process, log)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def serving(
    command: Sequence[str], folder: Path, port: int, *, path: str, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A server of HTTP that answers a GET of *path*, ended when the block is left."""
    begun = time.monotonic()
    with running(command, folder, environment=environment) as server:
        server.until_ready(port, path)
        server.started_in = time.monotonic() - begun
        yield server


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards; its name is short, as paths of Unix sockets must be."""
    with tempfile.TemporaryDirectory(prefix="mgb-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
