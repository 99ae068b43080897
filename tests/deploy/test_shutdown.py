"""A deploy: one of two gateways behind nginx is told to end while 200 streams run."""

import asyncio
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
from gatewayprocess import gateway_process
from harness import KEY, UNLIMITED, chat_body, events, eventually, script, serving, settings
from nginxserver import nginx
from pydantic import SecretStr
from storeservers import StoreServer

from mulgil.admission.store import Account

STREAMS = 200
MANY = 1_000


def told_to_drain(store: str) -> dict[str, Any]:
    """Settings of a gateway that notices its end in time."""
    return {
        "config": UNLIMITED,
        "redis_url": store,
        "max_concurrent_requests": MANY,
        "drain_delay": 1,
        "shutdown_grace": 3,
    }


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
        gateway_process(tmp_path, **told_to_drain(store_server.url)) as dying,
        serving(chosen) as staying,
        nginx(str(dying.address), f"127.0.0.1:{staying.port}", NGINX_CONNECTIONS_PER_ADDRESS=str(MANY)) as front,
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
        dying.signal(signal.SIGTERM)
        answers = await asking(client, told + 5)
        status = await dying.ended(within=15)
        ended = Counter(await asyncio.gather(*streams))
        assert status == 0
        assert set(answers) == {200}
        assert answers[200] > 50
        assert set(ended) == {"whole", "server_shutting_down"}
        assert ended["whole"] >= STREAMS // 2
        caller = await staying.mulgil.keys.find(KEY.encode())
        assert caller is not None
        left = (await staying.mulgil.store.balances(Account(caller.tenant, caller.key_id))).key
        assert (left.concurrency, left.held_tokens) == (0, 0), "every lease is settled, on both"
