"""A gateway in a process of its own, for what cannot be done to the test's own process."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
from harness import KEY, MODEL, eventually

ROOT = Path(__file__).parent.parent
SERVE = ("-m", "mulgil", "serve")
GUNICORN = ("-m", "gunicorn", "-c", str(ROOT / "deploy/gunicorn.conf.py"))
_LISTENING = re.compile(r"(?:running on|Listening at:) http://(\S+)")


class GatewayProcess:
    """A gateway under the suite's key; every setting can be given.

    Args:
        log: where its output goes.
        command: what Python is told to do.
        variables: of the environment, beside the settings.
        settings: by name.
    """

    def __init__(
        self,
        log: Path,
        *,
        command: Sequence[str] = SERVE,
        variables: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.log = log
        given = {"api_keys": KEY, "engine": "simulated", "model": MODEL, "port": 0} | settings
        self._command = [sys.executable, *command]
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("MULGIL_")}
        self._environment |= {f"MULGIL_{name.upper()}": str(value) for name, value in given.items()}
        self._environment |= variables or {}
        self.popen: subprocess.Popen[bytes]

    def start(self) -> None:
        """Begin; it listens some time later."""
        with self.log.open("wb") as out:
            self.popen = subprocess.Popen(
                self._command, env=self._environment, stdout=out, stderr=subprocess.STDOUT, cwd=self.log.parent
            )

    @property
    def address(self) -> str | None:
        """Host and port where it says that it listens."""
        found = _LISTENING.search(self.log.read_text())
        return found[1] if found else None

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def seen(self) -> psutil.Process:
        """The process, as the system sees it."""
        return psutil.Process(self.popen.pid)

    def children(self, name: str = "") -> list[psutil.Process]:
        """Its processes with *name* in their title, theirs included."""
        return [child for child in self.seen.children(recursive=True) if name in _title(child)]

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    async def ended(self, *, within: float = 20) -> int:
        """Its exit status, once it has ended."""
        return await asyncio.to_thread(self.popen.wait, within)

    def kill(self) -> None:
        """End it, and whatever it has started."""
        family = self.children() if self.popen.poll() is None else []
        self.popen.kill()
        self.popen.wait()
        for child in family:
            if child.is_running():
                child.kill()


def _title(process: psutil.Process) -> str:
    """Nothing of one that has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


@asynccontextmanager
async def gateway_process(folder: Path, **options: Any) -> AsyncGenerator[GatewayProcess]:
    """A gateway that listens; it is told to end when the block is left, and killed when it does not.

    Args:
        folder: of its log, and the one that it runs in.
        options: of `GatewayProcess`.
    """
    running = GatewayProcess(folder / "log", **options)
    running.start()
    try:
        await eventually(lambda: running.address is not None, within=30)
        yield running
        if running.popen.poll() is None:
            running.signal(signal.SIGTERM)
            await running.ended(within=30)
    finally:
        running.kill()
