"""`GET /v1/doctor/stream`: a stream of known events, so that `mulgil doctor` sees what happens on the way."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import WebSocketRoute

from mulgil.api.body import BodyRules, validated
from mulgil.api.openapi import documented_stream
from mulgil.api.sse import Events, EventStream, Silence, event
from mulgil.errors import InvalidFieldError, OverloadedError
from mulgil.schemas.doctor import DoctorStreamQuery

_LONGEST = 600.0
_MOST_AT_ONCE = 32
_NEVER = 86_400.0
_WEBSOCKET = "/ws/chat"


@dataclass(frozen=True, slots=True)
class Wiring:
    """What this server does to its answers, so that the other end can tell what is missing there.

    Attributes:
        headers: names of headers that an answer may have.
        origins: whose pages may read answers.
        silence: how the silence of streams is filled.
    """

    headers: Sequence[str]
    origins: Sequence[str]
    silence: Silence


def routes(wiring: Wiring, rules: BodyRules) -> APIRouter:
    """The doctor's stream. It needs a key; it costs no engine and no budget."""
    router = APIRouter()
    running: set[asyncio.Event] = set()
    samples = {name: _sample(name) for name in wiring.headers}

    @router.get(
        "/v1/doctor/stream",
        summary="Stream events to test the way to a client",
        openapi_extra=documented_stream(DoctorStreamQuery),
    )
    async def stream(request: Request) -> Response:
        asked = validated(DoctorStreamQuery, dict(request.query_params), rules)
        if asked.seconds > _LONGEST:
            reason = f"with 'events' and 'idle_s' it makes a stream longer than {_LONGEST:g} seconds"
            raise InvalidFieldError(f"Invalid 'gap_ms': {reason}.", param="gap_ms", code="invalid_value")
        if len(running) >= _MOST_AT_ONCE:
            raise OverloadedError(f"{_MOST_AT_ONCE} test streams are running already.")
        left = asyncio.Event()
        running.add(left)

        def on_left() -> None:
            left.set()
            running.discard(left)

        told = _told(request, wiring) | {"headers": sorted(samples), "max_body_bytes": rules.max_bytes}
        silence = wiring.silence if asked.pings else replace(wiring.silence, ping=_NEVER)
        return EventStream(Events(_frames(asked, told, left), on_left), silence, headers=samples)

    return router


def _told(request: Request, wiring: Wiring) -> dict[str, Any]:
    origin = request.headers.get("origin")
    return {
        "event": "hello",
        "http_version": request.scope["http_version"],
        "cors": None if origin is None else bool({"*", origin} & set(wiring.origins)),
        "websocket": any(isinstance(one, WebSocketRoute) and one.path == _WEBSOCKET for one in request.app.routes),
        "ping_interval": wiring.silence.ping,
    }


async def _frames(asked: DoctorStreamQuery, told: dict[str, Any], left: asyncio.Event) -> AsyncGenerator[bytes]:
    began = time.perf_counter()
    yield event(told)
    for index in range(asked.events):
        pause = asked.gap_ms / 1000 + (asked.idle_s if index == asked.events // 2 else 0)
        try:
            await asyncio.wait_for(left.wait(), pause)
        except TimeoutError:
            at = round((time.perf_counter() - began) * 1000, 1)
            yield event({"event": "tick", "index": index, "at_ms": at, "padding": "." * asked.padding})
        else:
            return


def _sample(name: str) -> str:
    """A value that no client minds on a good answer."""
    return {"x-should-retry": "true", "retry-after-ms": "1000"}.get(name, "1s" if "-reset-" in name else "1")
