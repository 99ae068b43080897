"""`/health/live`, `/health/ready`, `/health`: for orchestrators and load balancers; they need no key."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from mulgil import __version__
from mulgil.api.errors import JSONBody
from mulgil.engine.supervisor import Health
from mulgil.loop_lag import LoopLag


def routes(
    health: Callable[[], Health],
    limiter_available: Callable[[], bool],
    running: Callable[[], int],
    lag: LoopLag,
    embeddings: Callable[[], Health] | None = None,
) -> APIRouter:
    """The health routes.

    Args:
        health: the engine's state.
        limiter_available: whether the budget store answers. It does not make the server unready: all
            replicas share it, and would leave the load balancer at once.
        running: requests under way.
        lag: how late the event loop is.
        embeddings: the embedding engine's state, where there is one. It does not make the server unready:
            chat does not need it.
    """
    router = APIRouter()

    def of_embeddings() -> dict[str, Any]:
        if embeddings is None:
            return {}
        state = embeddings()
        return {"embeddings": {"status": state.state, "reason": state.reason, "since": int(state.since)}}

    def report(healthy: bool, state: Health, **more: Any) -> Response:
        limiter = "available" if limiter_available() else "unavailable"
        body = {
            "status": state.state,
            "reason": state.reason,
            "since": int(state.since),
            "limiter": limiter,
            **more,
            **of_embeddings(),
        }
        headers = {"cache-control": "no-store"} | ({} if healthy else {"retry-after": "1"})
        return JSONBody(body, status_code=200 if healthy else 503, headers=headers)

    @router.get("/health/live", summary="Whether a restart would not help")
    async def live() -> Response:
        state = health()
        return report(state.state != "failed", state)

    @router.get("/health/ready", summary="Whether new requests can be served")
    async def ready() -> Response:
        state = health()
        return report(state.state == "ready", state)

    @router.get("/health", summary="Readiness and details")
    async def details() -> Response:
        state = health()
        late = {"last": _milliseconds(lag.last), "worst": _milliseconds(lag.worst)}
        return report(state.state == "ready", state, version=__version__, running=running(), loop_lag_ms=late)

    return router


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1_000, 1)
