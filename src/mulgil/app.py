"""The composition root: builds every object of the process and hands each what it needs."""

import asyncio
import importlib
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.middleware.cors import CORSMiddleware

from mulgil import __version__
from mulgil.admission.lease import Leases
from mulgil.admission.store import BudgetStore
from mulgil.api import admin, chat, errors, health, models, openapi
from mulgil.api.admin_access import ADMIN_PATHS, AdminMiddleware
from mulgil.api.body import BodyRules
from mulgil.api.middleware import AuthenticationMiddleware, RequestContextMiddleware
from mulgil.audit import Audit
from mulgil.auth.cached import CachedKeys
from mulgil.auth.file import FileKeys, KeyFile
from mulgil.auth.registrar import Registrar
from mulgil.auth.source import KeyChain, KeySource, OpenDoor, StaticKeys
from mulgil.engine.base import Engine
from mulgil.engine.simulated import SimulatedEngine
from mulgil.engine.supervisor import Supervisor
from mulgil.errors import EngineUnavailableError
from mulgil.gateway import Gateway
from mulgil.schemas.base import RequestLimits
from mulgil.schemas.chat import ChatCompletion, ChatCompletionRequest
from mulgil.schemas.models import Model, ModelList
from mulgil.settings import Settings, unknown_variables
from mulgil.stores.fallback import FallbackStore
from mulgil.stores.guard import GuardedStore
from mulgil.stores.memory import MemoryStore
from mulgil.stores.redis import RedisStore
from mulgil.stores.redis_keys import RedisKeys
from mulgil.tiers import load_tiers

OPEN_PATHS = ("/health", "/health/", "/v1/models", "/v1/models/")
EXPOSED_HEADERS = (
    "x-request-id",
    "openai-processing-ms",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    *(
        f"x-ratelimit-{what}-{budget}"
        for what in ("limit", "remaining", "reset")
        for budget in ("requests", "tokens", "input-tokens", "output-tokens")
    ),
)

EngineBuilder = Callable[[], Awaitable[Engine]]


@dataclass(frozen=True, slots=True)
class Mulgil:
    """The objects of one process."""

    app: FastAPI
    supervisor: Supervisor
    gateway: Gateway
    keys: KeyChain
    leases: Leases
    store: GuardedStore


def create_app() -> FastAPI:
    """The ASGI application with the settings of the environment: the factory for gunicorn and uvicorn.

    Raises:
        ValueError: the settings cannot be served, or a `MULGIL_` variable is none.
    """
    if unknown := unknown_variables():
        raise ValueError(f"no such setting: {', '.join(unknown)}")
    return build(Settings()).app


def build(
    settings: Settings,
    *,
    engine: EngineBuilder | None = None,
    store: BudgetStore | None = None,
    on_start_failed: Callable[[], None] = lambda: signal.raise_signal(signal.SIGTERM),
) -> Mulgil:
    """Wire up a process.

    Args:
        settings: the configuration.
        engine: makes the engine, instead of the one that the settings name.
        store: keeps the budgets, instead of the one that the settings name.
        on_start_failed: called when the engine cannot be started; by default the process ends.

    Raises:
        ValueError: the settings cannot be served.
    """
    settings.check()
    supervisor = Supervisor(
        engine or (lambda: build_engine(settings)),
        check_interval=settings.engine_check_interval,
        on_start_failed=on_start_failed,
    )
    keys = build_keys(settings)
    guarded = GuardedStore(store or build_store(settings))
    leases = Leases(
        with_fallback(guarded, settings), ttl=settings.lease_ttl, renew_interval=settings.lease_renew_interval
    )
    tiers = load_tiers(settings.config)
    gateway = Gateway(supervisor.engine, settings.model_names, leases, tiers)
    rules = body_rules(settings)

    app = FastAPI(
        title="Mulgil",
        version=__version__,
        description="An OpenAI-compatible gateway around one in-process vLLM engine.",
        lifespan=lambda _: running(supervisor, gateway, keys, leases, guarded),
        docs_url=None,  # the documentation page loads its scripts from a third party
        redoc_url=None,
        redirect_slashes=False,  # a redirect would send the body, and the key, once more
    )
    app.include_router(chat.routes(gateway, rules))
    app.include_router(models.routes(settings.model_names))
    app.include_router(health.routes(lambda: supervisor.health, lambda: guarded.available, lambda: gateway.running))
    errors.install(app)
    described: list[type[BaseModel]] = [ChatCompletionRequest, ChatCompletion, Model, ModelList]
    if settings.admin_token and keys.store:
        audit = Audit(settings.audit_log)
        app.include_router(admin.routes(Registrar(keys.store, tiers, audit), guarded, audit, rules))
        described += admin.MODELS
    openapi.install(app, described)
    add_middleware(app, settings, keys)
    return Mulgil(app, supervisor, gateway, keys, leases, guarded)


@asynccontextmanager
async def running(
    supervisor: Supervisor, gateway: Gateway, keys: KeyChain, leases: Leases, store: GuardedStore
) -> AsyncGenerator[None]:
    """The life of a process: what is started is ended in the other order, each part whatever the others do."""
    async with AsyncExitStack() as closings:
        closings.push_async_callback(store.close)
        closings.push_async_callback(keys.close)
        closings.push_async_callback(supervisor.stop)
        closings.push_async_callback(leases.drain)
        closings.push_async_callback(gateway.drain)
        supervisor.start()
        leases.start()
        keys.start()
        yield


def body_rules(settings: Settings) -> BodyRules:
    """What a request body may be."""
    limits = RequestLimits(
        max_output_tokens=settings.max_output_tokens,
        max_choices=settings.max_choices,
        max_messages=settings.max_messages,
    )
    return BodyRules(
        max_bytes=settings.max_body_bytes,
        max_depth=settings.max_json_depth,
        unknown_fields=settings.unknown_fields,
        limits=limits,
    )


def add_middleware(app: FastAPI, settings: Settings, keys: KeySource) -> None:
    """From the inside out; CORS is the outermost, so that a browser can read errors too."""
    # The admin's own middleware guards its paths; without it they are as closed as any.
    guarded_elsewhere = ADMIN_PATHS if settings.admin_token else ()
    app.add_middleware(AuthenticationMiddleware, keys=keys, open_paths=(*OPEN_PATHS, *guarded_elsewhere))
    if settings.admin_token:
        app.add_middleware(AdminMiddleware, token=settings.admin_token.get_secret_value(), keys=keys)
    app.add_middleware(RequestContextMiddleware)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST", "PATCH", "DELETE", "OPTIONS"),
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
        )


def build_store(settings: Settings) -> BudgetStore:
    """The store of budgets that the settings name: shared by replicas in Redis, or of this process alone."""
    if settings.redis_url is None:
        return MemoryStore(lease_ttl=settings.lease_ttl)
    return RedisStore(
        settings.redis_url.get_secret_value(),
        timeout=settings.store_timeout,
        connections=settings.store_connections,
        lease_ttl=settings.lease_ttl,
    )


def with_fallback(guarded: GuardedStore, settings: Settings) -> BudgetStore:
    """*guarded*, or with `limiter_on_failure=local` also a store of this process behind it."""
    if settings.limiter_on_failure == "closed":
        return guarded
    return FallbackStore(guarded, MemoryStore(lease_ttl=settings.lease_ttl), replicas=settings.replicas)


def build_keys(settings: Settings) -> KeyChain:
    """The sources of keys that the settings name, those first that no failure can reach.

    Raises:
        ValueError: an entry of `api_keys` is no key, or the file of keys cannot be read.
    """
    fixed = OpenDoor() if settings.insecure else StaticKeys(key.get_secret_value() for key in settings.api_keys)
    stores = build_key_stores(settings)
    sources = [FileKeys(store) if isinstance(store, KeyFile) else CachedKeys(store) for store in stores]
    return KeyChain([fixed, *sources], stores)


def build_key_stores(settings: Settings) -> list[KeyFile | RedisKeys]:
    """Where keys are kept; the first one is where new keys go."""
    stores: list[KeyFile | RedisKeys] = []
    if settings.keys_file:
        stores.append(KeyFile(settings.keys_file))
    if settings.redis_url:
        stores.append(RedisKeys(settings.redis_url.get_secret_value(), timeout=settings.store_timeout))
    return stores


def check_engine_args(settings: Settings) -> None:
    """Let vLLM's own list judge `engine_args`; slow, since vLLM is imported for it.

    Raises:
        ValueError: vLLM does not have one of them, or is not installed.
    """
    if settings.engine_args and settings.engine == "vllm":
        try:
            importlib.import_module("mulgil.engine.vllm").VLLMEngine(settings)
        except ImportError as error:
            raise ValueError(f"engine_args cannot be checked, since vLLM cannot be imported: {error}") from error


async def build_engine(settings: Settings) -> Engine:
    """The engine that the settings name, not started.

    Raises:
        EngineUnavailableError: vLLM is not installed, or does not know an engine argument.
    """
    if settings.engine == "simulated":
        return SimulatedEngine(
            max_model_len=settings.max_model_len or 8_192,
            default_max_tokens=settings.default_max_tokens,
            ttft=settings.simulated_ttft,
            gap=settings.simulated_gap,
        )
    try:
        # Here and in a thread: the import takes many seconds, and the server answers meanwhile.
        adapter = await asyncio.to_thread(importlib.import_module, "mulgil.engine.vllm")
    except ImportError as error:
        raise EngineUnavailableError(
            f"vLLM cannot be imported ({error}). Install mulgil[cpu] or mulgil[gpu], or use --engine simulated."
        ) from error
    try:
        engine: Engine = adapter.VLLMEngine(settings)
    except ValueError as error:
        raise EngineUnavailableError(str(error)) from error
    return engine
