"""What open streams that say nothing cost: memory of each, and whether their comment lines come in time.

    python bench/idle_streams.py [STREAMS]

The gateway runs in a process of its own with the simulated engine; every stream waits for its first token, and a
comment line is due each second. Needs some file descriptors: `ulimit -n 8192`.
"""

import asyncio
import itertools
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
KEY = "sk-mg-bench"
PING = 1.0
WATCHED = 15.0


async def open_stream(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A streamed chat whose first token does not come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**12)
    prompt = '/simulate {"hang_at": 0}'
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": prompt}]})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\n"
    writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
    await reader.readuntil(b'"content":""')
    return reader, writer


async def gaps(reader: asyncio.StreamReader, until: float) -> list[float]:
    """Seconds between the comment lines of one stream."""
    times = []
    while time.monotonic() < until:
        await reader.readuntil(b": ping\n\n")
        times.append(time.monotonic())
    return [after - before for before, after in itertools.pairwise(times)]


async def main(streams: int) -> None:
    """Open them, watch them, and say what they cost."""
    environment = os.environ | {
        "MULGIL_API_KEYS": KEY,
        "MULGIL_CONFIG": str(ROOT / "tests/unlimited.toml"),
        "MULGIL_PING_INTERVAL": str(PING),
        "MULGIL_HEARTBEAT_INTERVAL": "10000",
        "MULGIL_MAX_CONCURRENT_REQUESTS": str(streams + 10),
    }
    command = [sys.executable, "-m", "mulgil", "serve", "--engine=simulated", "--served-model-name=m", "--port=8799"]
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.DEVNULL)
    try:
        await asyncio.sleep(4)
        seen = psutil.Process(process.pid)
        before, begun = seen.memory_info().rss, time.monotonic()
        open_ones = [await open_stream(8799) for _ in range(streams)]
        opened = time.monotonic() - begun
        memory, used = seen.memory_info().rss - before, seen.cpu_times().user
        until = time.monotonic() + WATCHED
        found = [
            gap for each in await asyncio.gather(*(gaps(reader, until) for reader, _ in open_ones)) for gap in each
        ]
        busy = (seen.cpu_times().user - used) / WATCHED
        for _, writer in open_ones:
            writer.close()
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()
    late = sorted(gap - PING for gap in found)
    sys.stdout.write(
        f"{streams} streams opened in {opened:.1f} s; {memory / streams / 1024:.1f} KiB each; "
        f"{busy:.0%} of a core for {streams / PING:.0f} comment lines/s\n"
        f"comment lines late by {statistics.median(late) * 1000:.0f} ms (median), "
        f"{late[int(len(late) * 0.99)] * 1000:.0f} ms (p99), {late[-1] * 1000:.0f} ms (worst of {len(late)})\n"
    )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000))
