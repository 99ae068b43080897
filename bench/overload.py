"""Five times as many requests as a gateway can serve: what those get who are admitted, and how the rest is told.

    python -m bench.overload [SECONDS]

The gateway runs in a process of its own with the simulated engine and its budgets in Valkey. Requests come at random
moments, whether those before were answered or not: first half as many as it can serve, then five times as many.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import uvloop

from bench.contenders import MODEL, KnownKeys, OverHttp, mulgil
from bench.figures import percentile
from bench.servers import scratch
from bench.stores import valkey

TURNS = 50
PLACES = 2
"""The longest wait is that of so many turns: with these figures a twentieth of a second."""
TTFT, GAP, TOKENS = 0.3, 0.03, 25
"""Seconds, and tokens of an answer in the mean: half as many to half as many more, or all would end together."""
CAPACITY = TURNS / (TTFT + GAP * (TOKENS - 1))
"""Requests a second."""
_ANSWER_TIMEOUT = 30.0
_END_OF_HEAD = b"\r\n\r\n"


@dataclass
class Seen:
    """What came of the requests of one load.

    Attributes:
        statuses: how often each came.
        ttft: seconds until the first text of those who were admitted.
        refused: seconds until the rest was told.
        silent: refusals that did not say when to come back.
        broken: admitted streams that were not whole.
        memory: of the gateway's process, in bytes, each second.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    ttft: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    silent: int = 0
    broken: int = 0
    memory: list[int] = field(default_factory=list)


async def _ask(port: int, key: str, tokens: int, seen: Seen) -> None:
    prompt = "Tell me. /simulate " + json.dumps({"tokens": tokens, "ttft": TTFT, "gap": GAP})
    body = json.dumps({"model": MODEL, "stream": True, "messages": [{"role": "user", "content": prompt}]})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
    begun = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        answer = (await reader.readuntil(_END_OF_HEAD)).lower()
        status = int(answer.split(b" ", 2)[1])
        seen.statuses[status] += 1
        if status == 200:
            await reader.readuntil(b'"content":""')
            await reader.readuntil(b'"content":"')
            seen.ttft.append(time.perf_counter() - begun)
            seen.broken += b"[DONE]" not in await reader.read(-1)
        else:
            seen.refused.append(time.perf_counter() - begun)
            seen.silent += b"\r\nretry-after: " not in answer
    finally:
        writer.close()


async def load(gateway: OverHttp, rate: float, seconds: float) -> Seen:
    """*rate* requests a second for so many *seconds*, of all keys in turn."""
    seen, chance = Seen(), random.Random(int(rate))
    loop = asyncio.get_running_loop()
    due = begun = loop.time()
    number = 0
    async with asyncio.timeout(seconds + _ANSWER_TIMEOUT), asyncio.TaskGroup() as asking:
        while due < begun + seconds:
            await asyncio.sleep(max(0.0, due - loop.time()))
            tokens = chance.randint(TOKENS // 2, TOKENS + TOKENS // 2)
            asking.create_task(_ask(gateway.port, gateway.keys[number % len(gateway.keys)], tokens, seen))
            number += 1
            due += chance.expovariate(rate)
            if len(seen.memory) < due - begun:
                seen.memory.append(gateway.server.usage().rss)
    return seen


def told(name: str, seen: Seen) -> str:
    """One load in words."""
    statuses = ", ".join(f"{count} × {status}" for status, count in sorted(seen.statuses.items()))
    lines = [f"{name}: {statuses}; {seen.broken} not whole"]
    lines += [f"  TTFT p50 {percentile(seen.ttft, 50) * 1000:.0f} ms, p99 {percentile(seen.ttft, 99) * 1000:.0f} ms"]
    if seen.refused:
        p50, p99, worst = (percentile(seen.refused, percent) * 1000 for percent in (50, 99, 100))
        lines += [f"  refused after p50 {p50:.1f} ms, p99 {p99:.1f} ms, worst {worst:.1f} ms"]
        lines += [f"  {seen.silent} of them without Retry-After"]
    tenth = max(1, len(seen.memory) // 10)
    early, late = (sum(part) / tenth / 1e6 for part in (seen.memory[tenth : 2 * tenth], seen.memory[-tenth:]))
    return "\n".join([*lines, f"  memory {early:.1f} MB early, {late:.1f} MB late"])


async def measured(gateway: OverHttp, seconds: float) -> tuple[Seen, Seen]:
    """Uncongested, and overloaded."""
    await load(gateway, CAPACITY / 2, 2)  # what is loaded late is loaded
    return await load(gateway, CAPACITY / 2, seconds / 3), await load(gateway, CAPACITY * 5, seconds)


def main(seconds: float) -> None:
    """Measure and print."""
    bounds = {"MAX_CONCURRENT_REQUESTS": str(TURNS), "MAX_QUEUED_REQUESTS": str(PLACES)}
    with scratch() as folder, valkey() as (redis_url, _):
        known = KnownKeys.made(10, folder)
        with mulgil(folder / "overload", redis_url, known, more=bounds) as gateway:
            calm, crowded = uvloop.run(measured(gateway, seconds))
    ratio = percentile(crowded.ttft, 99) / percentile(calm.ttft, 99)
    sys.stdout.write(
        f"{told(f'{CAPACITY / 2:.0f} requests/s', calm)}\n{told(f'{CAPACITY * 5:.0f} requests/s', crowded)}\n"
        f"TTFT p99, crowded ÷ calm: {ratio:.2f}\n"
    )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
