"""What is known about one request, from its first byte to its last."""

import re
import secrets
import time
from dataclasses import dataclass, field

from starlette.types import Scope

from mulgil.auth.keys import Caller
from mulgil.auth.tickets import Ticket

_SCOPE_KEY = "mulgil.request"
_LOGGABLE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


@dataclass(slots=True)
class RequestContext:
    """Travels in the ASGI scope; made by the outermost middleware.

    Attributes:
        id: `req_…`, ours; the client sees it in every response.
        client_id: the `x-request-id` that the client sent, if it can stand in a log; only ever logged.
        started: of `time.perf_counter`.
        caller: set when the request is authenticated.
        ticket: what authenticated it, where that was no key.
    """

    id: str = field(default_factory=lambda: f"req_{secrets.token_hex(16)}")
    client_id: str | None = None
    started: float = field(default_factory=time.perf_counter)
    caller: Caller | None = None
    ticket: Ticket | None = None

    @property
    def milliseconds(self) -> int:
        """Time since the request came."""
        return round((time.perf_counter() - self.started) * 1000)


def attach(scope: Scope) -> RequestContext:
    """Give *scope* a fresh context."""
    sent = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
    context = scope[_SCOPE_KEY] = RequestContext(client_id=sent if _LOGGABLE_ID.fullmatch(sent) else None)
    return context


def context_of(scope: Scope) -> RequestContext:
    """The context of *scope*."""
    context: RequestContext = scope[_SCOPE_KEY]
    return context


def caller_of(scope: Scope) -> Caller:
    """Who is calling; only asked behind the authentication."""
    caller = context_of(scope).caller
    assert caller is not None, "this route is on the open list"
    return caller
