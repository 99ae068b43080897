"""How long an answer takes that is kept, beside one that is made, in one run.

    python -m bench.response_cache

One client asks one gateway over HTTP, one request after the other: each question twice. The simulated engine takes no
time, which shows what the cache itself costs, or as long as a small model; answers have 64 tokens. They are kept in
the process, and in Valkey.
"""

import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from pydantic import SecretStr

from bench.stores import valkey
from mulgil.app import build
from mulgil.server import GatewayServer
from mulgil.settings import Settings

KEY = "sk-mg-key-of-the-response-cache"
QUESTIONS = 15
TOKENS = 64
CONFIG = """
[tiers.default]
requests_per_minute = "unlimited"
input_tokens_per_minute = "unlimited"
output_tokens_per_minute = "unlimited"

[models.simulated]
cache = true
"""


@dataclass(frozen=True)
class Found:
    """Medians, in seconds."""

    miss: float
    hit: float


@asynccontextmanager
async def gateway(folder: Path, **changes: Any) -> AsyncGenerator[httpx2.AsyncClient]:
    """A gateway that keeps answers, and a client of it."""
    config = folder / "mulgil.toml"
    config.write_text(CONFIG)
    chosen = Settings.model_validate(
        {"engine": "simulated", "api_keys": KEY, "config": config, "port": 0, "usage_url": "off", **changes}
    )
    mulgil = build(chosen)
    server = GatewayServer(chosen, mulgil)
    running = asyncio.create_task(server.serve())
    try:
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        await mulgil.supervisor.until_ready()
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        headers = {"authorization": f"Bearer {KEY}"}
        async with httpx2.AsyncClient(base_url=f"http://{host}:{port}", headers=headers, timeout=30) as client:
            yield client
    finally:
        server.should_exit = True
        await running


async def asked(client: httpx2.AsyncClient, number: int, expected: str, *, stream: bool) -> float:
    """Seconds until the last byte."""
    question = f'{"s" if stream else "p"}{number} /simulate {{"tokens": {TOKENS}}}'
    body = {
        "model": "simulated",
        "temperature": 0,
        "stream": stream,
        "messages": [{"role": "user", "content": question}],
    }
    begun = time.perf_counter()
    reply = await client.post("/v1/chat/completions", json=body)
    took = time.perf_counter() - begun
    assert reply.headers["x-mulgil-cache"] == expected, reply.text
    return took


async def measured(client: httpx2.AsyncClient, *, stream: bool) -> Found:
    """Each question twice, and that in turn, so that both meet the same machine."""
    misses, hits = [], []
    for number in range(QUESTIONS):
        misses.append(await asked(client, number, "miss", stream=stream))
        hits.append(await asked(client, number, "hit", stream=stream))
    return Found(statistics.median(misses), statistics.median(hits))


async def table() -> None:
    """Print it."""
    print("store    engine                     way      miss, ms   hit, ms   hit / miss")  # noqa: T201 - the result
    paces: dict[str, dict[str, Any]] = {
        "takes no time": {},
        "30 ms, then 5 ms a token": {"simulated_ttft": 0.03, "simulated_gap": 0.005},
    }
    async with AsyncExitStack() as closings:
        folder = Path(closings.enter_context(tempfile.TemporaryDirectory()))
        url, _ = closings.enter_context(valkey())
        stores: dict[str, dict[str, Any]] = {
            "memory": {},
            "Valkey": {"response_cache_url": url, "response_cache_secret": SecretStr("of the benchmark alone")},
        }
        for store, where in stores.items():
            for pace, waits in paces.items():
                async with gateway(folder, **where, **waits) as client:
                    for stream in (False, True):
                        found = await measured(client, stream=stream)
                        way, ratio = "stream" if stream else "plain", found.hit / found.miss
                        times = f"{found.miss * 1e3:8.2f} {found.hit * 1e3:9.2f} {ratio:12.3f}"
                        print(f"{store:<8} {pace:<26} {way:<8} {times}")  # noqa: T201 - the result


def main() -> int:
    """Print a table."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
