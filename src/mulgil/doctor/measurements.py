"""Everything that is measured at one URL."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2

from mulgil.doctor.streams import Stream, read_stream

_EVENTS = 20
_GAP_MS = 100
_PROGRESS_INTERVAL = 5.0


class CannotMeasureError(Exception):
    """There is no gateway at the URL that lets us in; says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where to measure, and as whom.

    Attributes:
        url: the base URL, as clients have it: ends in `/v1`.
        key: an API key.
        idle: seconds of silence to try.
        origin: the page on whose behalf a browser would ask.
    """

    url: str
    key: str
    idle: float
    origin: str

    @property
    def stream_url(self) -> str:
        return f"{self.url}/doctor/stream"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back on a request: status and headers; 0 and none where the connection broke."""

    status: int
    headers: httpx2.Headers
    error: dict[str, Any] | None = None

    @property
    def is_the_gateways(self) -> bool:
        """Written by the gateway, not by something on the way."""
        return self.error is not None and self.headers.get("x-request-id", "").startswith("req_")


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found at one URL.

    Attributes:
        paced: a stream of steady pace.
        brotli: one asked for with other encodings; only its headers count.
        silent: one with a silence in its middle, and nothing in it.
        pinged: one with a silence that has comment lines.
        not_found: the answer to a request that the gateway refuses.
        large: the answer to a body as large as the gateway takes.
        preflight: what a browser asks first; None where the gateway lets no page in.
        websocket: the answer to an upgrade; None where the gateway has no WebSocket.
        alpn: the HTTP version that a browser would speak; None without TLS.
    """

    paced: Stream
    brotli: Stream
    silent: Stream
    pinged: Stream
    not_found: Answer
    large: Answer
    preflight: Answer | None
    websocket: Answer | None
    alpn: str | None


async def measure(target: Target, report: Callable[[str], None]) -> Measured:
    """Measure; takes as long as the silence, and a few seconds.

    Raises:
        CannotMeasureError: there is nothing to measure.
    """
    async with httpx2.AsyncClient(
        headers={"authorization": f"Bearer {target.key}", "origin": target.origin},
        timeout=httpx2.Timeout(30.0, connect=10.0, read=target.idle + 30),
        limits=httpx2.Limits(max_keepalive_connections=0),
    ) as client:
        report(f"reading {_EVENTS} events, {_GAP_MS} ms apart, from {target.url}")
        paced = await read_stream(client, target.stream_url, events=_EVENTS, gap_ms=_GAP_MS)
        await _check_reached(client, target, paced)
        report("asking for errors, a large body, other encodings, a WebSocket")
        brotli = await read_stream(client, target.stream_url, accept_encoding="br, zstd", events=2, gap_ms=50)
        not_found = await _ask(client, "GET", f"{target.url}/doctor/nothing-is-here")
        large = await _ask(
            client,
            "POST",
            f"{target.url}/tokenize",
            content=b" " * paced.hello.get("max_body_bytes", 1024),
            headers={"content-type": "application/json"},
        )
        preflight = await _preflight(client, target) if paced.hello.get("cors") else None
        websocket = await _upgrade(client, target) if paced.hello.get("websocket") else None
        alpn = await _alpn(httpx2.URL(target.url))
        silent, pinged = await _silences(client, target, report)
    return Measured(paced, brotli, silent, pinged, not_found, large, preflight, websocket, alpn)


async def _check_reached(client: httpx2.AsyncClient, target: Target, paced: Stream) -> None:
    if paced.status == 0:
        raise CannotMeasureError(f"{target.url} cannot be reached: {paced.broken_by}")
    if paced.status == 200 and (paced.hello or paced.headers.get("content-encoding")):
        return
    if paced.status == 401:
        raise CannotMeasureError(f"{target.url} does not take this key (401)")
    answer = await _ask(client, "GET", target.stream_url)
    if paced.status == 404 and answer.is_the_gateways:
        raise CannotMeasureError(f"there is a Mulgil at {target.url}, but the URL should end in /v1, or it is too old")
    words = (answer.error or {}).get("message", "it does not look like a Mulgil")
    raise CannotMeasureError(f"{target.stream_url} answers {paced.status}: {words}")


async def _silences(client: httpx2.AsyncClient, target: Target, report: Callable[[str], None]) -> tuple[Stream, Stream]:
    """Both at once: without comment lines, and with them."""
    both = asyncio.gather(
        *(
            read_stream(client, target.stream_url, events=2, gap_ms=0, idle_s=target.idle, pings=pings)
            for pings in ("false", "true")
        )
    )
    waited = 0.0
    while not both.done():
        report(f"staying silent: {waited:.0f} of {target.idle:g} s")
        await asyncio.wait({both}, timeout=_PROGRESS_INTERVAL)
        waited += _PROGRESS_INTERVAL
    silent, pinged = both.result()
    return silent, pinged


async def _ask(client: httpx2.AsyncClient, method: str, url: str, **rest: Any) -> Answer:
    try:
        answer = await client.request(method, url, **rest)
    except httpx2.HTTPError:
        return Answer(0, httpx2.Headers())
    error = None
    with contextlib.suppress(ValueError):
        body = answer.json()
        error = body.get("error") if isinstance(body, dict) else None
    return Answer(answer.status_code, answer.headers, error if isinstance(error, dict) else None)


async def _preflight(client: httpx2.AsyncClient, target: Target) -> Answer:
    asked = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type,x-stainless-lang",
    }
    return await _ask(client, "OPTIONS", f"{target.url}/chat/completions", headers=asked)


async def _upgrade(client: httpx2.AsyncClient, target: Target) -> Answer:
    handshake = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "bXVsZ2lsIGRvY3RvciAgIQ==",
    }
    url = f"{target.url.removesuffix('/v1')}/ws/chat"
    try:
        async with client.stream("GET", url, headers=handshake) as answer:
            return Answer(answer.status_code, answer.headers)
    except httpx2.HTTPError:
        return Answer(0, httpx2.Headers())


async def _alpn(url: httpx2.URL) -> str | None:
    if url.scheme != "https":
        return None
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        async with asyncio.timeout(10):
            _, writer = await asyncio.open_connection(url.host, url.port or 443, ssl=context)
    except (OSError, TimeoutError):
        return None
    chosen: str | None = writer.get_extra_info("ssl_object").selected_alpn_protocol()
    writer.close()
    return chosen or "http/1.1"
