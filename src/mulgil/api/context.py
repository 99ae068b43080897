"""What is known about one request, from its first byte to its last."""

import secrets
import time
from dataclasses import dataclass, field

from starlette.types import Scope

from mulgil.auth.keys import Caller

_SCOPE_KEY = "mulgil.request"


@dataclass(slots=True)
class RequestContext:
    """Travels in the ASGI scope; made by the outermost middleware.

    Attributes:
        id: `req_…`, ours; the client sees it in every response.
        started: of `time.perf_counter`.
        caller: set when the request is authenticated.
    """

    id: str = field(default_factory=lambda: f"req_{secrets.token_hex(16)}")
    started: float = field(default_factory=time.perf_counter)
    caller: Caller | None = None

    @property
    def milliseconds(self) -> int:
        """Time since the request came."""
        return round((time.perf_counter() - self.started) * 1000)


def attach(scope: Scope) -> RequestContext:
    """Give *scope* a fresh context."""
    context = scope[_SCOPE_KEY] = RequestContext()
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
