"""`/admin`: keys, and the balances of keys and tenants."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from fastapi import APIRouter, Depends
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from mulgil.admission.policy import Balance
from mulgil.admission.store import Account, BudgetStore, StoreError
from mulgil.api.admin_access import require_admin
from mulgil.api.body import BodyRules, read_checked, validated
from mulgil.api.context import context_of
from mulgil.api.errors import JSONBody
from mulgil.api.openapi import documented
from mulgil.audit import Actor, Audit
from mulgil.auth.keys import KeyRecord
from mulgil.auth.registrar import Grant, Issued, Registrar
from mulgil.errors import LimiterUnavailableError
from mulgil.schemas.admin import (
    BalanceView,
    ChangeKeyRequest,
    CreateKeyRequest,
    DeletedKey,
    IssuedKey,
    KeyBalance,
    KeyList,
    KeyView,
    LimitsView,
    RotateKeyRequest,
    TenantBalance,
)
from mulgil.tiers import DEFAULT, TierLimits

T = TypeVar("T")

MODELS: tuple[type[BaseModel], ...] = (
    CreateKeyRequest, ChangeKeyRequest, RotateKeyRequest, KeyView, IssuedKey, KeyList, DeletedKey, KeyBalance,
    TenantBalance,
)  # fmt: skip
"""For the description of an application that has these routes."""


def routes(registrar: Registrar, budgets: BudgetStore, audit: Audit, rules: BodyRules) -> APIRouter:
    """The admin routes. They are to be guarded by an `AdminMiddleware`.

    Args:
        registrar: makes and changes keys.
        budgets: tells and resets balances.
        audit: is told of resets; the registrar tells it the rest.
        rules: for bodies; unknown fields are refused whatever they say.
    """
    router = APIRouter(prefix="/admin", dependencies=[Depends(require_admin)])
    router.include_router(_key_routes(registrar, replace(rules, unknown_fields="reject")))
    router.include_router(_budget_routes(registrar, budgets, audit))
    return router


def _key_routes(registrar: Registrar, rules: BodyRules) -> APIRouter:
    router = APIRouter()

    @router.get("/keys", summary="List the keys", openapi_extra=documented(response=KeyList))
    async def list_keys() -> Response:
        return _reply(KeyList(data=[_view(record) for record in await registrar.list()]))

    @router.post("/keys", summary="Make a key", openapi_extra=documented(request=CreateKeyRequest, response=IssuedKey))
    async def create_key(request: Request) -> Response:
        asked = await read_checked(request, rules, lambda body: validated(CreateKeyRequest, body, rules))
        return _reply(_issued(await registrar.create(_actor(request), Grant(**asked.given()))))

    @router.get("/keys/{key_id}", summary="Show a key", openapi_extra=documented(response=KeyView))
    async def show_key(key_id: str) -> Response:
        return _reply(_view(await registrar.get(key_id)))

    @router.patch(
        "/keys/{key_id}", summary="Change a key", openapi_extra=documented(request=ChangeKeyRequest, response=KeyView)
    )
    async def change_key(request: Request, key_id: str) -> Response:
        asked = await read_checked(request, rules, lambda body: validated(ChangeKeyRequest, body, rules))
        return _reply(_view(await registrar.change(_actor(request), key_id, asked.changes())))

    @router.post("/keys/{key_id}/disable", summary="Disable a key", openapi_extra=documented(response=KeyView))
    async def disable_key(request: Request, key_id: str) -> Response:
        return _reply(_view(await registrar.change(_actor(request), key_id, {"disabled": True})))

    @router.post("/keys/{key_id}/enable", summary="Enable a key", openapi_extra=documented(response=KeyView))
    async def enable_key(request: Request, key_id: str) -> Response:
        return _reply(_view(await registrar.change(_actor(request), key_id, {"disabled": False})))

    @router.post(
        "/keys/{key_id}/rotate",
        summary="Replace a key; the old one works for a while",
        openapi_extra=documented(request=RotateKeyRequest, response=IssuedKey),
    )
    async def rotate_key(request: Request, key_id: str) -> Response:
        asked = await read_checked(request, rules, lambda body: validated(RotateKeyRequest, body, rules))
        grace = timedelta(seconds=asked.grace_seconds)
        return _reply(_issued(await registrar.rotate(_actor(request), key_id, grace)))

    @router.delete("/keys/{key_id}", summary="Delete a key", openapi_extra=documented(response=DeletedKey))
    async def delete_key(request: Request, key_id: str) -> Response:
        return _reply(DeletedKey(id=(await registrar.delete(_actor(request), key_id)).id))

    return router


def _budget_routes(registrar: Registrar, budgets: BudgetStore, audit: Audit) -> APIRouter:
    router = APIRouter()

    @router.get("/keys/{key_id}/balance", summary="A key's balance", openapi_extra=documented(response=KeyBalance))
    async def key_balance(key_id: str) -> Response:
        record = await registrar.get(key_id)
        found = await _asked(lambda: budgets.balances(Account(record.tenant, record.id)))
        tier = registrar.tiers.get(record.tier) or registrar.tiers[DEFAULT]
        return _reply(
            KeyBalance(
                key_id=record.id,
                tenant=record.tenant,
                key=_balance(found.key),
                key_limits=_limits(tier),
                of_tenant=_balance(found.tenant),
                tenant_limits=_limits(tier.tenant or tier),
            )
        )

    @router.post("/keys/{key_id}/reset", summary="Empty a key's windows", openapi_extra=documented(response=KeyView))
    async def reset_key(request: Request, key_id: str) -> Response:
        record = await registrar.get(key_id)
        await _asked(lambda: budgets.reset(Account(record.tenant, record.id)))
        audit.write(_actor(request), "balance.reset", key_id=record.id, tenant=record.tenant)
        return _reply(_view(record))

    @router.get(
        "/tenants/{tenant}/balance", summary="A tenant's balance", openapi_extra=documented(response=TenantBalance)
    )
    async def tenant_balance(tenant: str) -> Response:
        found = await _asked(lambda: budgets.balances(Account(tenant, "")))
        return _reply(TenantBalance(tenant=tenant, of_tenant=_balance(found.tenant)))

    return router


async def _asked(step: Callable[[], Awaitable[T]]) -> T:
    try:
        return await step()
    except StoreError as error:
        raise LimiterUnavailableError("The budgets cannot be read or written at the moment.") from error


def _actor(request: Request) -> Actor:
    return Actor("admin", context_of(request.scope).id)


def _reply(body: BaseModel) -> Response:
    return JSONBody(body.model_dump(mode="json"), headers={"cache-control": "no-store"})


def _view(record: KeyRecord) -> KeyView:
    return KeyView(**record.view(datetime.now(UTC)))


def _issued(issued: Issued) -> IssuedKey:
    return IssuedKey(**issued.record.view(datetime.now(UTC)), key=issued.key)


def _balance(balance: Balance) -> BalanceView:
    return BalanceView(**asdict(balance))


def _limits(limits: TierLimits) -> LimitsView:
    return LimitsView(**{name: getattr(limits, name) for name in LimitsView.model_fields})
