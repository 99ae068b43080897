"""What open streams that say nothing cost: memory of each, and whether their comment lines come in time.

    python -m bench.idle_streams [STREAMS]

The gateway runs in a process of its own with the simulated engine and its budgets in Valkey; every stream waits for its
first token, and a comment line is due each second.
"""

import asyncio
import itertools
import json
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.contenders import MODEL, KnownKeys, OverHttp, mulgil
from bench.figures import percentile
from bench.load import Load
from bench.servers import scratch
from bench.stores import valkey

PING = 1.0
_OPEN_TIMEOUT = 120.0


@dataclass(frozen=True)
class Idle:
    """What so many streams cost.

    Attributes:
        streams: how many.
        opened: seconds until all were open.
        bytes_each: that the gateway's process grew by, for each.
        busy: share of a core for a comment line a second of each.
        late: seconds that those lines were late, p50 and p99.
    """

    streams: int
    opened: float
    bytes_each: float
    busy: float
    late: tuple[float, float]


async def _open(port: int, key: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A streamed chat whose first token does not come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**12)
    prompt = '/simulate {"hang_at": 0}'
    body = json.dumps({"model": MODEL, "stream": True, "messages": [{"role": "user", "content": prompt}]})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n"
    writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
    await reader.readuntil(b'"content":""')
    return reader, writer


async def _gaps(reader: asyncio.StreamReader, until: float) -> list[float]:
    """Seconds between the comment lines of one stream."""
    times = []
    while time.monotonic() < until:
        await reader.readuntil(b": ping\n\n")
        times.append(time.monotonic())
    return [after - before for before, after in itertools.pairwise(times)]


async def watched(gateway: OverHttp, streams: int, seconds: float) -> Idle:
    """Open them, and watch them for so many *seconds*."""
    before, begun = gateway.server.usage(), time.monotonic()
    async with asyncio.timeout(_OPEN_TIMEOUT):
        keys = itertools.cycle(gateway.keys)
        open_ones = [await _open(gateway.port, next(keys)) for _ in range(streams)]
    opened, after = time.monotonic() - begun, gateway.server.usage()
    async with asyncio.timeout(seconds + _OPEN_TIMEOUT):
        until = time.monotonic() + seconds
        found = await asyncio.gather(*(_gaps(reader, until) for reader, _ in open_ones))
    busy = (gateway.server.usage().cpu - after.cpu) / seconds
    for _, writer in open_ones:
        writer.close()
    late = [gap - PING for each in found for gap in each]
    return Idle(streams, opened, (after.rss - before.rss) / streams, busy, (percentile(late, 50), percentile(late, 99)))


def measured(folder: Path, streams: int, seconds: float = 10.0) -> Idle:
    """In a fresh gateway, since one keeps the memory that it has had."""
    wanted = 2 * streams + 1_000
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, most) if most > 0 else wanted, most))
    known = KnownKeys.made(10, folder)
    pings = {"PING_INTERVAL": str(PING), "HEARTBEAT_INTERVAL": "10000"}
    with valkey() as (redis_url, _), mulgil(folder / f"idle-{streams}", redis_url, known, more=pings) as gateway:
        gateway.answer(Load(port=0, model=MODEL, streams=32, requests=2, tokens=20))  # what is loaded late is loaded
        return uvloop.run(watched(gateway, streams, seconds))


def main(streams: int) -> None:
    """Measure and print."""
    with scratch() as folder:
        found = measured(folder, streams)
    sys.stdout.write(
        f"{streams} streams opened in {found.opened:.1f} s; {found.bytes_each / 1000:.1f} kB each; "
        f"{found.busy:.0%} of a core for {streams / PING:.0f} comment lines/s\n"
        f"comment lines late by {found.late[0] * 1000:.0f} ms (median), {found.late[1] * 1000:.0f} ms (p99)\n"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000)
