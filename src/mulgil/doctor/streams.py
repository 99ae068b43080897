"""The gateway's test stream, read as a client reads it, with the moment at which each event came."""

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import orjson

DONE = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class Tick:
    """One event: when the gateway says that it sent it, and when it came, both in seconds since the start of each."""

    sent: float
    came: float


@dataclass(slots=True)
class Stream:
    """One test stream as it came.

    Attributes:
        status: of the response; 0 where none came.
        http_version: that the client spoke.
        tls_version: that the client spoke; None without TLS.
        headers: of the response, in lower case, as they came.
        headers_after: seconds until they came.
        hello: what the gateway says about itself in the first event.
        ticks: the events.
        pings: comment lines.
        whole: the stream was read to its own end.
        ended_after: seconds until it ended.
        quiet_for: seconds from the last event to the end.
        broken_by: what the client's library says about an end that came too early.
    """

    status: int = 0
    http_version: str = ""
    tls_version: str | None = None
    headers: httpx2.Headers = field(default_factory=httpx2.Headers)
    headers_after: float = 0.0
    hello: dict[str, Any] = field(default_factory=dict)
    ticks: list[Tick] = field(default_factory=list)
    pings: int = 0
    whole: bool = False
    ended_after: float = 0.0
    quiet_for: float = 0.0
    broken_by: str = ""

    @property
    def gaps(self) -> list[float]:
        """Seconds between one event and the next."""
        return [after.came - before.came for before, after in itertools.pairwise(self.ticks)]

    @property
    def together(self) -> float:
        """The share of the events that came with the one before although they were sent apart."""
        pairs = list(itertools.pairwise(self.ticks))
        gathered = [1 for one, two in pairs if two.came - one.came < (two.sent - one.sent) / 4]
        return len(gathered) / len(pairs) if pairs else 0.0

    @property
    def largest_delay(self) -> float:
        """Seconds that some event was held back for longer than another."""
        on_the_way = [tick.came - tick.sent for tick in self.ticks]
        return max(on_the_way) - min(on_the_way) if on_the_way else 0.0


async def read_stream(
    client: httpx2.AsyncClient, url: str, *, accept_encoding: str = "gzip, deflate", **query: str | float
) -> Stream:
    """Ask *url* for a test stream and read it to its end, whatever that is."""
    found = Stream()
    began = last = time.perf_counter()
    headers = {"accept": "text/event-stream", "accept-encoding": accept_encoding}
    try:
        async with client.stream("GET", url, params=query, headers=headers) as answer:
            found.headers_after = time.perf_counter() - began
            found.status, found.headers, found.http_version = answer.status_code, answer.headers, answer.http_version
            found.tls_version = _tls_version(answer)
            if answer.status_code != 200:
                await answer.aread()
            else:
                lines = _Lines()
                async for data in answer.aiter_bytes():
                    now = time.perf_counter()
                    if _note(found, lines.complete(data), now - began):
                        last = now
    except httpx2.HTTPError as error:
        found.broken_by = f"{type(error).__name__}: {error}".rstrip(": ")
    ended = time.perf_counter()
    found.ended_after, found.quiet_for = ended - began, ended - last
    return found


class _Lines:
    def __init__(self) -> None:
        self._rest = b""

    def complete(self, data: bytes) -> Iterator[bytes]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        return iter(whole)


def _note(found: Stream, lines: Iterator[bytes], came: float) -> bool:
    """Enter *lines* into *found*; whether there was an event among them."""
    any_event = False
    for line in lines:
        if line.startswith(b":"):
            found.pings += 1
        elif line == DONE:
            found.whole = True
        elif line.startswith(b"data: "):
            any_event = True
            told = orjson.loads(line.removeprefix(b"data: "))
            if told.get("event") == "hello":
                found.hello = told
            else:
                found.ticks.append(Tick(told["at_ms"] / 1000, came))
    return any_event


def _tls_version(answer: httpx2.Response) -> str | None:
    connection = answer.extensions.get("network_stream")
    encrypted = connection.get_extra_info("ssl_object") if connection is not None else None
    version: str | None = encrypted.version() if encrypted is not None else None
    return version
