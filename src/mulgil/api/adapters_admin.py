"""`/admin/adapters`: LoRA adapters that are loaded and unloaded while the server runs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fastapi import APIRouter, Depends
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from mulgil.api.admin_access import require_admin
from mulgil.api.body import BodyRules, read_checked, validated
from mulgil.api.context import context_of
from mulgil.api.errors import JSONBody
from mulgil.api.openapi import documented
from mulgil.audit import Actor, Audit
from mulgil.engine.base import Engine
from mulgil.engine.lora import Adapter
from mulgil.engine.lora_registry import AdapterRegistry
from mulgil.schemas.admin import AdapterList, AdapterView, LoadAdapterRequest, UnloadedAdapter

MODELS: tuple[type[BaseModel], ...] = (LoadAdapterRequest, AdapterView, AdapterList, UnloadedAdapter)
"""For the description of an application that has these routes."""


def routes(adapters: AdapterRegistry, engine: Callable[[], Engine], audit: Audit, rules: BodyRules) -> APIRouter:
    """The routes of adapters. They are to be guarded by an `AdminMiddleware`.

    Args:
        adapters: what is served.
        engine: gives the engine, or raises `EngineUnavailableError`.
        audit: is told of every change.
        rules: for bodies; unknown fields are refused whatever they say.
    """
    rules = replace(rules, unknown_fields="reject")
    router = APIRouter(prefix="/admin/adapters", dependencies=[Depends(require_admin)])

    def view(adapter: Adapter) -> AdapterView:
        return AdapterView(
            name=adapter.name,
            path=str(adapter.path),
            version=adapter.version,
            source=adapters.source(adapter.name),
        )

    @router.get("", summary="List the adapters", openapi_extra=documented(response=AdapterList))
    async def list_adapters() -> Response:
        served = [adapter for name in adapters.names if (adapter := adapters.find(name))]
        return _reply(AdapterList(data=[view(adapter) for adapter in served]))

    @router.post(
        "",
        summary="Load an adapter, or replace one",
        openapi_extra=documented(request=LoadAdapterRequest, response=AdapterView),
    )
    async def load_adapter(request: Request) -> Response:
        asked = await read_checked(request, rules, lambda body: validated(LoadAdapterRequest, body, rules))
        loaded = await adapters.load(engine, asked.name, Path(asked.path))
        told = {"adapter": loaded.name, "path": str(loaded.path), "version": loaded.version}
        audit.write(_actor(request), "adapter.load", **told)
        return _reply(view(loaded))

    @router.delete("/{name}", summary="Unload an adapter", openapi_extra=documented(response=UnloadedAdapter))
    async def unload_adapter(request: Request, name: str) -> Response:
        gone = await adapters.unload(engine, name)
        audit.write(_actor(request), "adapter.unload", adapter=gone.name, version=gone.version)
        return _reply(UnloadedAdapter(name=gone.name))

    return router


def _actor(request: Request) -> Actor:
    return Actor("admin", context_of(request.scope).id)


def _reply(body: BaseModel) -> Response:
    return JSONBody(body.model_dump(mode="json"), headers={"cache-control": "no-store"})
