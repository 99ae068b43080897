"""The composition root: builds every object of the process and hands each what it needs."""

import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping

from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from mulgil import __version__
from mulgil.adapters import (
    build_caching,
    build_catalogue,
    build_engine,
    build_keys,
    build_loras,
    build_store,
    build_upstreams,
    make_ready,
    with_fallback,
)
from mulgil.admission.gates import Gates
from mulgil.admission.lease import Leases
from mulgil.admission.store import BudgetStore
from mulgil.answers.answering import Answers
from mulgil.api import (
    adapters_admin,
    admin,
    chat,
    completions,
    doctor,
    embeddings,
    errors,
    health,
    metrics,
    models,
    openapi,
    page,
    streams,
    tokenize,
    usage,
    websocket,
)
from mulgil.api.sse import Silence
from mulgil.api.websocket import SocketRules
from mulgil.audit import Audit
from mulgil.auth.registrar import Registrar
from mulgil.auth.tickets import Tickets
from mulgil.config_file import load_tiers
from mulgil.embedders import build_embeddings
from mulgil.engine.base import Engine
from mulgil.engine.supervisor import Supervisor
from mulgil.gateway import Gateway
from mulgil.kept import KeptStreams
from mulgil.ledgers import build_usage
from mulgil.loop_lag import LoopLag
from mulgil.middleware_stack import add_middleware
from mulgil.observing import Sources, build_metrics_port, build_observer, read_from
from mulgil.process import Mulgil, running
from mulgil.rules import EXPOSED_HEADERS, body_rules, keep_rules, patience_of
from mulgil.schemas.chat import ChatCompletion, ChatCompletionRequest
from mulgil.schemas.completions import Completion, CompletionRequest
from mulgil.schemas.embedding import EmbeddingList, EmbeddingRequest
from mulgil.schemas.models import Model, ModelList
from mulgil.schemas.streams import Stream, StreamDeleted, Ticket
from mulgil.schemas.tokenize import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest
from mulgil.schemas.usage_report import UsageReport
from mulgil.settings import Settings, unknown_variables
from mulgil.stores.guard import GuardedStore
from mulgil.telemetry import logs
from mulgil.telemetry.metrics import RequestMetrics
from mulgil.telemetry.traces import build_tracing
from mulgil.tiers import Tier
from mulgil.turns import build_queue

EngineBuilder = Callable[[], Awaitable[Engine]]


def create_app() -> FastAPI:
    """The ASGI application with the settings of the environment: the factory for gunicorn and uvicorn.

    Raises:
        ValueError: the settings cannot be served, or a `MULGIL_` variable is none.
    """
    if unknown := unknown_variables():
        raise ValueError(f"no such setting: {', '.join(unknown)}")
    settings = Settings()
    if not logging.getLogger().hasHandlers():
        logs.configure(settings.log_level, settings.log_format)
    return build(settings).app


def build(
    settings: Settings,
    *,
    engine: EngineBuilder | None = None,
    store: BudgetStore | None = None,
    on_engine_failed: Callable[[], None] = lambda: signal.raise_signal(signal.SIGTERM),
) -> Mulgil:
    """Wire up a process.

    Args:
        settings: the configuration.
        engine: makes the engine, instead of the one that the settings name.
        store: keeps the budgets, instead of the one that the settings name.
        on_engine_failed: called when no engine can be had; by default the process ends.

    Raises:
        ValueError: the settings cannot be served.
    """
    check_servable(settings)
    tracing, adapters = build_tracing(os.environ, __version__), build_loras(settings)
    supervisor = Supervisor(
        engine or (lambda: build_engine(settings, tracing)),
        patience=patience_of(settings),
        on_failed=on_engine_failed,
        prove=lambda built: make_ready(built, adapters, canary=settings.engine_canary),
    )
    keys = build_keys(settings)
    guarded = GuardedStore(store or build_store(settings))
    leases = Leases(
        with_fallback(guarded, settings), ttl=settings.lease_ttl, renew_interval=settings.lease_renew_interval
    )
    tiers = load_tiers(settings.config)
    kept_usage = build_usage(settings, tiers)
    gates = Gates(tiers, leases, build_queue(settings, supervisor.engine), kept_usage.ledger)
    upstreams = build_upstreams(settings)
    gateway = Gateway(
        supervisor.engine,
        build_catalogue(settings, adapters, upstreams),
        gates,
        upstreams,
        rebuilt=lambda: supervisor.rebuilt(within=settings.queue_timeout),
    )
    caching = build_caching(settings, gateway.catalogue.options)
    answers = Answers(gateway, gates, caching)
    embedding = build_embeddings(settings, leases, tiers, kept_usage.ledger, after=supervisor.until_ready)

    mulgil: Mulgil
    app = FastAPI(
        title="Mulgil",
        version=__version__,
        description="An OpenAI-compatible gateway around one in-process vLLM engine.",
        lifespan=lambda _: running(mulgil),
        docs_url=None,  # the documentation page loads its scripts from a third party
        redoc_url=None,
        redirect_slashes=False,  # a redirect would send the body, and the key, once more
    )
    registry, lag, tickets = CollectorRegistry(), LoopLag(), Tickets(ttl=settings.ticket_ttl)
    kept = KeptStreams(gateway, tickets, keep_rules(settings))
    # By the names of the configuration: adapters that are loaded later are all one series.
    metrics_of = RequestMetrics(registry, gateway.catalogue.names + settings.embedding_names, tiers)
    observer = build_observer(settings, metrics_of, tracing)
    told_by = Sources(settings, observer, supervisor, gateway, caching.cache, kept, embedding, leases, guarded, lag)
    read_from(registry, told_by, __version__)
    mulgil = Mulgil(
        app=app,
        supervisor=supervisor,
        adapters=adapters,
        upstreams=upstreams,
        gateway=gateway,
        answers=answers,
        streams=kept,
        embeddings=embedding,
        keys=keys,
        leases=leases,
        store=guarded,
        lag=lag,
        usage=kept_usage,
        registry=registry,
        tracing=tracing,
        metrics_port=build_metrics_port(settings, registry),
    )
    app.state.mulgil = mulgil  # for servers that are only given the application
    described = add_routes(mulgil, settings, tickets)
    errors.install(app)
    openapi.install(app, described + add_admin_routes(mulgil, settings, tiers))
    add_middleware(app, settings, keys, tickets, observer)
    return mulgil


def check_servable(settings: Settings) -> None:
    """Refuse settings of no gateway.

    Raises:
        ValueError: something is missing or contradicts something else, or they are those of another machine.
    """
    settings.check()
    if settings.node_rank:
        raise ValueError("'node_rank' names a machine that answers no requests: start it with `mulgil serve`")


def add_routes(mulgil: Mulgil, settings: Settings, tickets: Tickets) -> list[type[BaseModel]]:
    """Give the application every route of its users; the wire types that describe them."""
    app, gateway, answers, embedding = mulgil.app, mulgil.gateway, mulgil.answers, mulgil.embeddings
    rules = body_rules(settings)
    silence = Silence(settings.ping_interval, settings.heartbeat_interval)
    app.include_router(chat.routes(answers, rules, silence, mulgil.streams))
    app.include_router(completions.routes(answers, rules, silence))
    app.include_router(streams.routes(mulgil.streams, tickets, rules, silence))
    app.include_router(websocket.routes(gateway, rules, SocketRules(settings.cors_origins, settings.websocket_idle)))
    app.include_router(tokenize.routes(gateway, rules, embedding.gateway if embedding else None))
    app.include_router(models.routes(lambda: gateway.catalogue.names + settings.embedding_names))
    app.include_router(doctor.routes(doctor.Wiring(EXPOSED_HEADERS, settings.cors_origins, silence), rules))
    app.include_router(
        health.routes(
            lambda: mulgil.health,
            lambda: mulgil.store.available,
            lambda: mulgil.running,
            mulgil.lag,
            (lambda: embedding.supervisor.health) if embedding else None,
        )
    )
    if settings.chat_page:
        app.include_router(page.routes())
    if settings.admin_token:
        app.include_router(metrics.routes(mulgil.registry))
    described: list[type[BaseModel]] = [
        ChatCompletionRequest,
        ChatCompletion,
        CompletionRequest,
        Completion,
        TokenizeRequest,
        Tokenized,
        DetokenizeRequest,
        Detokenized,
        Model,
        ModelList,
        Stream,
        StreamDeleted,
        Ticket,
    ]
    if mulgil.usage.reports:
        app.include_router(usage.routes(mulgil.usage.reports))
        described.append(UsageReport)
    if embedding:
        app.include_router(embeddings.routes(embedding.gateway, rules))
        described += [EmbeddingRequest, EmbeddingList]
    return described


def add_admin_routes(mulgil: Mulgil, settings: Settings, tiers: Mapping[str, Tier]) -> list[type[BaseModel]]:
    """Give it the routes of its operator, where there is a token for them; the types that describe them."""
    if not settings.admin_token or not mulgil.keys.store:
        return []
    audit = Audit(settings.audit_log)
    registrar = Registrar(mulgil.keys.store, tiers, audit)
    mulgil.app.include_router(admin.routes(registrar, mulgil.store, audit, body_rules(settings)))
    if mulgil.usage.reports:
        mulgil.app.include_router(usage.admin_routes(mulgil.usage.reports))
    loading = adapters_admin.routes(mulgil.adapters, mulgil.supervisor.engine, audit, body_rules(settings))
    mulgil.app.include_router(loading)
    return [*admin.MODELS, *adapters_admin.MODELS]
