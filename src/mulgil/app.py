"""The composition root: builds every object of the process and hands each what it needs."""

import asyncio
import importlib
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from mulgil import __version__
from mulgil.api import chat, errors, health, models, openapi
from mulgil.api.body import BodyRules
from mulgil.api.middleware import AuthenticationMiddleware, RequestContextMiddleware
from mulgil.auth.source import KeySource, OpenDoor, StaticKeys
from mulgil.engine.base import Engine
from mulgil.engine.simulated import SimulatedEngine
from mulgil.engine.supervisor import Supervisor
from mulgil.errors import EngineUnavailableError
from mulgil.gateway import Gateway
from mulgil.schemas.base import RequestLimits
from mulgil.schemas.chat import ChatCompletion, ChatCompletionRequest
from mulgil.schemas.models import Model, ModelList
from mulgil.settings import Settings

OPEN_PATHS = ("/health", "/health/", "/v1/models", "/v1/models/")
EXPOSED_HEADERS = ("x-request-id", "openai-processing-ms", "retry-after", "retry-after-ms", "x-should-retry")

EngineBuilder = Callable[[], Awaitable[Engine]]


@dataclass(frozen=True, slots=True)
class Mulgil:
    """The objects of one process."""

    app: FastAPI
    supervisor: Supervisor
    gateway: Gateway


def create_app() -> FastAPI:
    """The ASGI application with the settings of the environment: the factory for gunicorn and uvicorn."""
    return build(Settings()).app


def build(
    settings: Settings,
    *,
    engine: EngineBuilder | None = None,
    on_start_failed: Callable[[], None] = lambda: signal.raise_signal(signal.SIGTERM),
) -> Mulgil:
    """Wire up a process.

    Args:
        settings: the configuration.
        engine: makes the engine, instead of the one that the settings name.
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
    gateway = Gateway(supervisor.engine, settings.model_names)
    rules = BodyRules(
        max_bytes=settings.max_body_bytes,
        max_depth=settings.max_json_depth,
        unknown_fields=settings.unknown_fields,
        limits=RequestLimits(
            max_output_tokens=settings.max_output_tokens,
            max_choices=settings.max_choices,
            max_messages=settings.max_messages,
        ),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        supervisor.start()
        try:
            yield
        finally:
            await gateway.drain()
            await supervisor.stop()

    app = FastAPI(
        title="Mulgil",
        version=__version__,
        description="An OpenAI-compatible gateway around one in-process vLLM engine.",
        lifespan=lifespan,
        docs_url=None,  # the documentation page loads its scripts from a third party
        redoc_url=None,
        redirect_slashes=False,  # a redirect would send the body, and the key, once more
    )
    app.include_router(chat.routes(gateway, rules))
    app.include_router(models.routes(settings.model_names))
    app.include_router(health.routes(lambda: supervisor.health, lambda: gateway.running))
    errors.install(app)
    openapi.install(app, (ChatCompletionRequest, ChatCompletion, Model, ModelList))
    add_middleware(app, settings)
    return Mulgil(app, supervisor, gateway)


def add_middleware(app: FastAPI, settings: Settings) -> None:
    """From the inside out; CORS is the outermost, so that a browser can read errors too."""
    app.add_middleware(AuthenticationMiddleware, keys=build_keys(settings), open_paths=OPEN_PATHS)
    app.add_middleware(RequestContextMiddleware)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST", "DELETE", "OPTIONS"),
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
        )


def build_keys(settings: Settings) -> KeySource:
    """The source of keys that the settings name."""
    if settings.insecure:
        return OpenDoor()
    return StaticKeys(entry.get_secret_value() for entry in settings.api_keys)


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
