"""A deploy: one of two gateways behind nginx is told to end while 200 streams run."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
from harness import KEY, UNLIMITED, chat_body, events, eventually, script, serving, settings
from nginxserver import nginx
from pydantic import SecretStr
from storeservers import StoreServer

from mulgil.admission.store import Account

STREAMS = 200
MANY = 1_000


def start(store: str, log: Path) -> subprocess.Popen[bytes]:
    """A gateway process on the simulated engine."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MULGIL_")} | {
        "MULGIL_API_KEYS": KEY,
        "MULGIL_CONFIG": str(UNLIMITED),
        "MULGIL_REDIS_URL": store,
        "MULGIL_MAX_CONCURRENT_REQUESTS": str(MANY),
        "MULGIL_DRAIN_DELAY": "1",
        "MULGIL_SHUTDOWN_GRACE": "3",
    }
    command = [sys.executable, "-m", "mulgil", "serve", "--engine=simulated", "--model=demo", "--port=0"]
    with log.open("wb") as out:
        return subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT, cwd=log.parent)


@asynccontextmanager
async def gateway(folder: Path, store: str) -> AsyncGenerator[tuple[subprocess.Popen[bytes], str]]:
    """A gateway process, and its address."""
    log, marker = folder / "log", "running on http://"
    running = start(store, log)
    try:
        await eventually(lambda: marker in log.read_text(), within=20)
        yield running, log.read_text().partition(marker)[2].split()[0]
    finally:
        if running.poll() is None:
            running.kill()
        running.wait()


async def streamed(client: httpx2.AsyncClient, number: int, tokens: int, begun: list[int]) -> str:
    """How a stream ended: `whole`, or the code of the error that it ended with."""
    body = chat_body(script(f"stream {number}", tokens=tokens, gap=0.05), stream=True)
    text = ""
    async with client.stream("POST", "/v1/chat/completions", json=body, headers={"x-session-id": str(number)}) as reply:
        assert reply.status_code == 200
        begun.append(number)
        async for piece in reply.aiter_text():
            text += piece
    last = events(text)[-1]
    return "whole" if last == "[DONE]" else str(last["error"]["code"])


async def asking(client: httpx2.AsyncClient, until: float) -> Counter[int]:
    """What new requests are answered with, one after the other."""
    seen: Counter[int] = Counter()
    number = 0
    while time.monotonic() < until:
        number += 1
        reply = await client.post(
            "/v1/chat/completions", json=chat_body(script(tokens=2)), headers={"x-session-id": f"new {number}"}
        )
        seen[reply.status_code] += 1
        await asyncio.sleep(0.01)
    return seen


async def test_under_200_streams_no_new_request_fails_and_every_stream_is_whole_or_says_why(
    tmp_path: Path, store_server: StoreServer
) -> None:
    chosen = settings(redis_url=SecretStr(store_server.url), max_concurrent_requests=MANY)
    limits = httpx2.Limits(max_connections=MANY)
    async with (
        gateway(tmp_path, store_server.url) as (dying, address),
        serving(chosen) as staying,
        nginx(address, f"127.0.0.1:{staying.port}", NGINX_CONNECTIONS_PER_ADDRESS=str(MANY)) as front,
        httpx2.AsyncClient(
            base_url=front.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60, limits=limits
        ) as client,
    ):
        begun: list[int] = []
        # Half of them end within the grace period, half would go on for longer than the test.
        streams = [
            asyncio.create_task(streamed(client, number, 40 if number % 2 else 160, begun)) for number in range(STREAMS)
        ]
        await eventually(lambda: len(begun) == STREAMS, within=20)
        told = time.monotonic()
        dying.send_signal(signal.SIGTERM)
        answers = await asking(client, told + 5)
        await asyncio.to_thread(dying.wait, 15)
        ended = Counter(await asyncio.gather(*streams))
        assert dying.returncode == 0
        assert set(answers) == {200}
        assert answers[200] > 50
        assert set(ended) == {"whole", "server_shutting_down"}
        assert ended["whole"] >= STREAMS // 2
        caller = await staying.mulgil.keys.find(KEY.encode())
        assert caller is not None
        left = (await staying.mulgil.store.balances(Account(caller.tenant, caller.key_id))).key
        assert (left.concurrency, left.held_tokens) == (0, 0), "every lease is settled, on both"
