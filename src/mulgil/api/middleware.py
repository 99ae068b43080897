"""Pure ASGI middleware: the request's context, and who is calling. Serves http and websocket scopes."""

import logging
from collections.abc import Collection
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mulgil.api.context import attach, context_of
from mulgil.api.disconnect import ClientGone
from mulgil.api.errors import error_response
from mulgil.api.websocket_door import offered_key, refuse
from mulgil.auth.keys import Caller, bearer_token
from mulgil.auth.source import KeySource
from mulgil.auth.tickets import Ticket, Tickets
from mulgil.errors import AuthenticationError, InternalServerError, MulgilError, TicketNotFoundError

STREAM_PATH = "/v1/streams/"
TICKET_PATHS = ("/stream", "/ws/chat")
"""What a ticket opens, beside the stream that it is for."""

_WEBSOCKET_FAILED = 1011

log = logging.getLogger(__name__)


class RequestContextMiddleware:
    """Outermost but for CORS: gives every request an id, every response its headers, and no error a traceback."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        context = attach(scope)
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "websocket.accept":
                status = 101
            elif message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = context.id
                headers["openai-processing-ms"] = str(context.milliseconds)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except ClientGone:
            status = status or 499
        except Exception:
            log.exception("request %s failed", context.id)
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": _WEBSOCKET_FAILED})
                return
            if status:
                raise  # The response has begun: all that is left is to cut the connection.
            error = InternalServerError("The server had an error while processing your request.")
            await error_response(error)(scope, receive, send_with_headers)
        finally:
            log.info(
                "%s %s %s %s %d %d ms %s",
                context.id,
                context.client_id or "-",
                scope.get("method", "WS"),
                scope["path"].encode("unicode_escape").decode()[:256],
                status,
                context.milliseconds,
                context.caller.key_id if context.caller else "-",
            )


class AuthenticationMiddleware:
    """Default-deny: every route needs a key, but those on the open list. Runs before the body is read.

    Args:
        app: what is guarded.
        keys: finds the caller of a key.
        open_paths: paths that need no key; one that ends in `/` opens all below it, but for `/` itself.
        tickets: let a reader in where no key can be sent.
    """

    def __init__(
        self, app: ASGIApp, keys: KeySource, open_paths: Collection[str], tickets: Tickets | None = None
    ) -> None:
        self._app = app
        self._keys = keys
        self._tickets = tickets
        self._open = frozenset(open_paths)
        self._open_below = tuple(path for path in open_paths if path.endswith("/") and path != "/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and not self._is_open(scope["path"]):
            try:
                context_of(scope).caller = await self._authenticate(scope)
            except MulgilError as error:
                if scope["type"] == "websocket":
                    await refuse(error, scope, receive, send)
                else:
                    await error_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _ticket(self, scope: Scope) -> Ticket | None:
        """The ticket in the URL, where it opens this very path."""
        path, query = scope["path"], scope.get("query_string", b"")
        if self._tickets is None or b"ticket=" not in query or scope.get("method", "GET") != "GET":
            return None
        if path not in TICKET_PATHS and not path.startswith(STREAM_PATH):
            return None
        (sent,) = parse_qs(query.decode("latin-1")).get("ticket", [""])[:1]
        ticket = self._tickets.find(sent)
        if ticket is None:
            raise TicketNotFoundError("This ticket is wrong, or it is too late for it.")
        if path in TICKET_PATHS or path == f"{STREAM_PATH}{ticket.stream_id}":
            ticket.used = True
            return ticket
        return None

    def _is_open(self, path: str) -> bool:
        return path in self._open or path.startswith(self._open_below)

    async def _authenticate(self, scope: Scope) -> Caller:
        sent = [value for name, value in scope["headers"] if name == b"authorization"]
        if not sent and (ticket := self._ticket(scope)) is not None:
            context_of(scope).ticket = ticket
            return ticket.caller
        token = bearer_token(sent[0]) if len(sent) == 1 else None
        if not sent and scope["type"] == "websocket":
            token = offered_key(scope)
        caller = await self._keys.find(token or b"")
        if caller is not None:
            return caller
        if not token and (not sent or sent[0].strip().lower() in (b"", b"bearer")):
            raise AuthenticationError(
                "You didn't provide an API key. Send it in an Authorization header: 'Authorization: Bearer YOUR_KEY'.",
                code=None,
            )
        raise AuthenticationError("Incorrect API key provided.", code="invalid_api_key")
