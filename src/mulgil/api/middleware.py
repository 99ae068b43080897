"""Pure ASGI middleware: the request's context, and who is calling. Serves http and websocket scopes."""

import logging
from collections.abc import Collection
from urllib.parse import parse_qs

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mulgil.api.context import RequestContext, attach, context_of, observed_of
from mulgil.api.disconnect import ClientGone
from mulgil.api.errors import error_response
from mulgil.api.websocket_door import offered_key, refuse
from mulgil.auth.keys import Caller, bearer_token
from mulgil.auth.source import KeySource
from mulgil.auth.tickets import Ticket, Tickets
from mulgil.errors import AuthenticationError, InternalServerError, MulgilError, TicketNotFoundError
from mulgil.telemetry.observation import Observation, Observer

STREAM_PATH = "/v1/streams/"
TICKET_PATHS = ("/stream", "/ws/chat")
"""What a ticket opens, beside the stream that it is for."""

_WEBSOCKET_FAILED = 1011
_EVENT_STREAM = "text/event-stream"
_CLIENT_GONE = 499  # nginx's; nobody gets to see it

log = logging.getLogger(__name__)


class RequestContextMiddleware:
    """Outermost but for CORS: gives every request an id, every response its headers, and no error a traceback.

    Args:
        app: what is inside.
        observer: is told of every request.
        routes: paths without parameters, by which a request that got no further is told.
    """

    def __init__(self, app: ASGIApp, observer: Observer | None = None, routes: Collection[str] = ()) -> None:
        self._app = app
        self._observer = observer
        self._routes = frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        context = attach(scope, self._observer)
        exchange, observed = _Exchange(context, receive, send), context.observed
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except ClientGone:
            observed.hung_up = True
        except Exception:
            log.exception("request %s failed", context.id)
            observed.error = "internal_error"
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": _WEBSOCKET_FAILED})
                return
            if observed.status:
                raise  # The response has begun: all that is left is to cut the connection.
            error = InternalServerError("The server had an error while processing your request.")
            await error_response(error)(scope, receive, exchange.send)
        finally:
            observed.status = observed.status or _CLIENT_GONE
            observed.route = self._route(scope)
            observed.answered()

    def _route(self, scope: Scope) -> str | None:
        """The template of the path; None where there is no such route."""
        if (route := scope.get("route")) is not None:
            return str(route.path)
        return scope["path"] if scope["path"] in self._routes else None


class _Exchange:
    """What goes from a client to the application and back."""

    def __init__(self, context: RequestContext, receive: Receive, send: Send) -> None:
        self._context = context
        self._receive = receive
        self._send = send
        self._whole = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self._whole:
            self._context.observed.hung_up = True
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            self._whole = not message.get("more_body", False)
        elif message["type"] == "http.response.start":
            self._begin(message)
        elif message["type"] == "websocket.accept":
            self._context.observed.answers(101, "socket")
        await self._send(message)

    def _begin(self, message: Message) -> None:
        observed, headers = self._context.observed, MutableHeaders(scope=message)
        headers["x-request-id"] = self._context.id
        headers["openai-processing-ms"] = str(self._context.milliseconds)
        if observed.trace_headers:
            headers.update(observed.trace_headers)
        is_stream = headers.get("content-type", "").startswith(_EVENT_STREAM)
        observed.answers(message["status"], "stream" if is_stream else "reply")


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
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        observed = observed_of(scope)
        if not self._is_open(scope["path"]):
            try:
                context_of(scope).caller = caller = await self._authenticate(scope)
                _note(observed, caller)
            except MulgilError as error:
                observed.error = error.code or error.type
                if scope["type"] == "websocket":
                    await refuse(error, scope, receive, send)
                else:
                    await error_response(error)(scope, receive, send)
                return
        observed.begin("read")
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


def _note(observed: Observation, caller: Caller) -> None:
    observed.tenant, observed.tier = caller.tenant, caller.tier
    observed.key, observed.key_prefix = caller.key_id, caller.prefix
