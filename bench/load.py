"""The load generator: so many streams at once, each on a connection of its own that asks again and again.

    python -m bench.load '{"port": 8000, "model": "m", "streams": 32}'

Prints what it measured as JSON. It runs in a process of its own, so that its work is not counted as a server's.
"""

import asyncio
import dataclasses
import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import uvloop

from bench.figures import percentile
from bench.wire import Connection, Timing

_WORDS = "river stone window garden letter music harbour winter market bridge lantern forest candle mirror".split()


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is asked of a server.

    Attributes:
        port: of the server, on the loopback.
        model: its name.
        keys: API keys, taken in turn by the connections.
        streams: connections, each with one request under way.
        requests: of each connection, one after the other.
        tokens: of each answer.
        streamed: whether events are asked for.
        words: length of each prompt.
        cycle: whether each request of a connection takes the next key.
        timeout: seconds for one request.
        extra: more fields of the body.
    """

    port: int
    model: str
    keys: tuple[str, ...] = ("none",)
    streams: int = 1
    requests: int = 1
    tokens: int = 100
    streamed: bool = True
    words: int = 12
    cycle: bool = False
    timeout: float = 120.0
    extra: dict[str, Any] = field(default_factory=dict)

    def prompt(self, number: int) -> str:
        """The text of request *number*; each is another."""
        words = (_WORDS[(number * 7 + index * (1 + number % 5)) % len(_WORDS)] for index in range(self.words))
        return f"Request {number}. Tell a story about {' '.join(words)}."

    def request(self, number: int, key: str) -> bytes:
        """The bytes of request *number*."""
        asked: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": self.prompt(number)}],
            "max_tokens": self.tokens,
            "temperature": 0,
            **self.extra,
        }
        if self.streamed:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        body = json.dumps(asked).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {key}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


@dataclass(frozen=True)
class Measured:
    """What came of a load. Times are in seconds.

    Attributes:
        seconds: from the first request to the end of the last answer.
        tokens: of all answers.
        events: of all streams.
        ttft, gaps, totals: p50 and p99 of each.
        cpu: seconds that the load generator itself worked.
        failures: what went wrong, the first few.
    """

    seconds: float
    tokens: int
    events: int
    ttft: tuple[float, float]
    gaps: tuple[float, float]
    totals: tuple[float, float]
    cpu: float
    failures: list[str]


async def run(load: Load) -> Measured:
    """Put *load* on the server."""
    loop = asyncio.get_running_loop()
    connections = [(await loop.create_connection(Connection, "127.0.0.1", load.port))[1] for _ in range(load.streams)]
    requests = [
        [load.request(number := index * load.requests + turn, load.keys[_key(load, index, number)]) for turn in
         range(load.requests)]
        for index in range(load.streams)
    ]  # fmt: skip
    busy, begun = time.process_time(), time.perf_counter()

    async def stream(connection: Connection, asked: list[bytes]) -> list[Timing]:
        return [await connection.ask(request, load.timeout) for request in asked]

    done = await asyncio.gather(*(stream(*pair) for pair in zip(connections, requests, strict=True)))
    seconds, cpu = time.perf_counter() - begun, time.process_time() - busy
    for connection in connections:
        connection.close()
    timings = [timing for each in done for timing in each]
    gaps = [gap for connection in connections for gap in connection.gaps]
    return Measured(
        seconds=seconds,
        tokens=sum(timing.tokens for timing in timings),
        events=sum(timing.events for timing in timings),
        ttft=_cuts([timing.ttft for timing in timings]),
        gaps=_cuts(gaps),
        totals=_cuts([timing.total for timing in timings]),
        cpu=cpu,
        failures=[timing.failure for timing in timings if timing.failure][:5],
    )


def _key(load: Load, index: int, number: int) -> int:
    return (number if load.cycle else index) % len(load.keys)


def _cuts(values: list[float]) -> tuple[float, float]:
    return percentile(values, 50), percentile(values, 99)


def main() -> None:
    """Do what the argument says; `-` takes it from standard input."""
    asked = sys.stdin.read() if sys.argv[1] == "-" else sys.argv[1]
    measured = uvloop.run(run(Load(**json.loads(asked))))
    sys.stdout.write(json.dumps(dataclasses.asdict(measured)))


if __name__ == "__main__":
    main()
