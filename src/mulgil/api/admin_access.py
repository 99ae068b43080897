"""Who may enter `/admin` and `/metrics`: whoever has the admin token, and nobody else."""

import hmac
import re

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from mulgil.api.context import caller_of
from mulgil.api.middleware import AuthenticationMiddleware
from mulgil.auth.keys import Caller, digest
from mulgil.auth.source import KeySource
from mulgil.errors import AdminOnlyError

ADMIN_PATHS = ("/admin", "/admin/", "/metrics")
"""For the open list of the users' authentication, beside an `AdminMiddleware` that guards them."""

ADMIN = Caller(key_id="admin", tenant="admin")
"""Recognised as this very object, which no record of a key can make."""

_ADMIN_PATH = re.compile(r"/admin(/|$)|/metrics$")


class AdminToken:
    """A `KeySource` of one token. It tells users that they are the wrong ones.

    Args:
        token: opens.
        users: whose keys do not.
    """

    def __init__(self, token: str, users: KeySource) -> None:
        self._digest = digest(token.encode()).encode()
        self._users = users

    async def find(self, key: bytes) -> Caller | None:
        if hmac.compare_digest(digest(key).encode(), self._digest):
            return ADMIN
        if key and await self._users.find(key) is not None:
            raise AdminOnlyError("This is the key of a user. The admin routes need the admin token.")
        return None

    def start(self) -> None:
        pass

    async def close(self) -> None:
        pass


class AdminMiddleware:
    """Outside of the users' authentication: takes `/admin`, all below it, and `/metrics` upon itself.

    Args:
        app: what is guarded.
        token: the admin token.
        keys: the users' keys.
    """

    def __init__(self, app: ASGIApp, token: str, keys: KeySource) -> None:
        self._others = app
        self._guarded = AuthenticationMiddleware(app, AdminToken(token, keys), open_paths=())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_admin_path = scope["type"] in ("http", "websocket") and _ADMIN_PATH.match(scope["path"])
        await (self._guarded if is_admin_path else self._others)(scope, receive, send)


async def require_admin(request: Request) -> None:
    """Holds even where a mount or a root path lets a request reach a route by another path.

    Raises:
        AdminOnlyError: somebody else.
    """
    if caller_of(request.scope) is not ADMIN:
        raise AdminOnlyError("The admin routes need the admin token.")
