"""Whether a long silent prefill survives the nginx configuration that we ship, with its time-outs as they are.

    python -m bench.silence [SECONDS]

Two streams side by side, 90 s of silence each: one with the comment lines that fill silence, one without any. Not a
test of the suite, since it takes as long as it says.
"""

import asyncio
import sys
import time
from pathlib import Path

import httpx2

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from harness import KEY, chat_body, script, serving, settings
from nginxserver import nginx


async def silence(name: str, seconds: float, ping_interval: float) -> None:
    """Ask for a stream whose first token comes after *seconds*, and say how it went."""
    chosen = settings(ping_interval=ping_interval, heartbeat_interval=1_000.0)
    body = chat_body(script(ttft=seconds, tokens=3), stream=True)
    async with serving(chosen) as server, nginx(f"127.0.0.1:{server.port}") as front:
        began = time.perf_counter()
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {KEY}"}, timeout=seconds + 30) as client:
            try:
                text = (await client.post(f"{front.url}/v1/chat/completions", json=body)).text
            except httpx2.HTTPError as error:
                text = repr(error)
        whole, pings = text.endswith("data: [DONE]\n\n"), text.count(": ping")
        took = time.perf_counter() - began
        sys.stdout.write(f"{name}: {'whole' if whole else 'CUT'} after {took:.1f} s, {pings} comment lines\n")


async def main(seconds: float) -> None:
    """Both at once."""
    await asyncio.gather(silence("with pings", seconds, 15.0), silence("without", seconds, 10_000.0))


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 90.0))
