"""The composition root's part for what every request passes before its route."""

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from mulgil.api.admin_access import ADMIN_PATHS, AdminMiddleware
from mulgil.api.middleware import AuthenticationMiddleware, RequestContextMiddleware
from mulgil.api.page import PAGE_PATHS
from mulgil.auth.source import KeySource
from mulgil.auth.tickets import Tickets
from mulgil.rules import EXPOSED_HEADERS
from mulgil.settings import Settings
from mulgil.telemetry.observation import Observer

OPEN_PATHS = ("/health", "/health/", "/v1/models", "/v1/models/")


def add_middleware(app: FastAPI, settings: Settings, keys: KeySource, tickets: Tickets, observer: Observer) -> None:
    """From the inside out; CORS is the outermost, so that a browser can read errors too."""
    # The admin's own middleware guards its paths; without it they are as closed as any.
    guarded_elsewhere = ADMIN_PATHS if settings.admin_token else ()
    open_paths = (*OPEN_PATHS, *(PAGE_PATHS if settings.chat_page else ()), *guarded_elsewhere)
    app.add_middleware(AuthenticationMiddleware, keys=keys, open_paths=open_paths, tickets=tickets)
    if settings.admin_token:
        app.add_middleware(AdminMiddleware, token=settings.admin_token.get_secret_value(), keys=keys)
    paths = [path for route in app.routes if "{" not in (path := getattr(route, "path", "{"))]
    app.add_middleware(RequestContextMiddleware, observer=observer, routes=paths)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST", "PATCH", "DELETE", "OPTIONS"),
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
        )
