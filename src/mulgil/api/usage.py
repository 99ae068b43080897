"""`GET /v1/usage`: what a key has used; `GET /admin/usage`: what everybody has."""

from typing import Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from mulgil.api.admin_access import require_admin
from mulgil.api.context import caller_of
from mulgil.api.errors import JSONBody
from mulgil.api.openapi import documented
from mulgil.errors import UnknownParameterError
from mulgil.ledger.reports import DIMENSIONS, Line, Query, Report, UsageReports, query
from mulgil.prices import written
from mulgil.schemas.usage_report import UsageReport

_OF_A_KEY = ("model", "status", "day", "month")
_FILTERS = ("tenant", "key", "model")
_WORDS = {
    "by": "What the numbers are told apart by, comma-separated: some of {among}. Default: {default}.",
    "since": "2030-01-31, 2030-01-31T12:00:00Z, or how long ago: 30d, 12h. Default: the first day of this month.",
    "until": "The same. Default: now.",
}


def routes(reports: UsageReports) -> APIRouter:
    """The route of users: each key is told its own numbers."""
    router = APIRouter()

    @router.get("/v1/usage", summary="What this key has used", openapi_extra=_described(_OF_A_KEY, "day,model"))
    async def of_this_key(request: Request) -> Response:
        caller = caller_of(request.scope)
        asked = _query(request, "day,model", _OF_A_KEY, {"tenant": caller.tenant, "key": caller.key_id})
        return _reply(await reports.answer(asked))

    return router


def admin_routes(reports: UsageReports) -> APIRouter:
    """The route of the admin. It is to be guarded by an `AdminMiddleware`."""
    router = APIRouter(prefix="/admin", dependencies=[Depends(require_admin)])

    @router.get(
        "/usage", summary="What was used", openapi_extra=_described(DIMENSIONS, "tenant,model", filters=_FILTERS)
    )
    async def of_all(request: Request) -> Response:
        having = {name: request.query_params.get(name) for name in _FILTERS}
        return _reply(await reports.answer(_query(request, "tenant,model", DIMENSIONS, having, filters=_FILTERS)))

    return router


def _query(
    request: Request,
    by: str,
    among: tuple[str, ...],
    having: dict[str, str | None],
    *,
    filters: tuple[str, ...] = (),
) -> Query:
    sent = request.query_params
    if unknown := sorted(set(sent) - {"by", "since", "until", *filters}):
        raise UnknownParameterError(f"Unknown parameter: '{unknown[0][:64]}'.", param=unknown[0][:64])
    return query(sent.get("by", by), sent.get("since"), sent.get("until"), having, among=among)


def _reply(report: Report) -> Response:
    body = UsageReport(
        since=report.query.since,
        until=report.query.until,
        by=list(report.query.by),
        data=[{**_totals(line), "labels": line.labels} for line in report.lines],
        total=_totals(report.total),
    )
    return JSONBody(body.model_dump(mode="json"), headers={"cache-control": "no-store"})


def _totals(line: Line) -> dict[str, Any]:
    return {
        "requests": line.requests,
        "prompt_tokens": line.prompt_tokens,
        "cached_tokens": line.cached_tokens,
        "completion_tokens": line.completion_tokens,
        "total_tokens": line.prompt_tokens + line.completion_tokens,
        "cost": written(line.cost),
    }


def _described(among: tuple[str, ...], default: str, *, filters: tuple[str, ...] = ()) -> dict[str, Any]:
    words = {name: text.format(among=", ".join(among), default=default) for name, text in _WORDS.items()}
    words |= {name: f"Of this {name} alone." for name in filters}
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string"}, "description": text} for name, text in words.items()
    ]
    return {"parameters": parameters, **documented(response=UsageReport)}
