"""`GET /metrics`, for who has the admin token."""

from fastapi import APIRouter, Depends
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response

from mulgil.api.admin_access import require_admin
from mulgil.telemetry.exposition import exposed


def routes(registry: CollectorRegistry) -> APIRouter:
    """The route. It is to be guarded by an `AdminMiddleware`."""
    router = APIRouter(dependencies=[Depends(require_admin)])

    @router.get("/metrics", summary="What Prometheus reads", include_in_schema=False)
    async def metrics(request: Request) -> Response:
        body, content_type = exposed(registry, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type, "cache-control": "no-store"})

    return router
