"""What is known about one request, from its first byte to its last."""

import re
import secrets
import time
from dataclasses import dataclass, field

from starlette.types import Scope

from mulgil.auth.keys import Caller
from mulgil.auth.tickets import Ticket
from mulgil.telemetry.observation import Observation, Observer, Unobserved

_SCOPE_KEY = "mulgil.request"
_LOGGABLE_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_RETRIES = re.compile(rb"[0-9]{1,3}")


@dataclass(slots=True)
class RequestContext:
    """Travels in the ASGI scope; made by the outermost middleware.

    Attributes:
        id: `req_…`, ours; the client sees it in every response.
        client_id: the `x-request-id` that the client sent, if it can stand in a log; only ever logged.
        started: of `time.perf_counter`.
        caller: set when the request is authenticated.
        ticket: what authenticated it, where that was no key.
        observed: notes when what happened to it.
    """

    id: str = field(default_factory=lambda: f"req_{secrets.token_hex(16)}")
    client_id: str | None = None
    started: float = field(default_factory=time.perf_counter)
    caller: Caller | None = None
    ticket: Ticket | None = None
    observed: Observation = field(default_factory=Observation)

    @property
    def milliseconds(self) -> int:
        """Time since the request came."""
        return round((time.perf_counter() - self.started) * 1000)


def attach(scope: Scope, observer: Observer | None = None) -> RequestContext:
    """Give *scope* a fresh context, which *observer* is told of."""
    sent, tried = "", b""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            sent = sent or value.decode("latin-1")
        elif name == b"x-stainless-retry-count":
            tried = value
    context = scope[_SCOPE_KEY] = RequestContext(client_id=sent if _LOGGABLE_ID.fullmatch(sent) else None)
    context.observed = observed = Observation(
        observer or Unobserved(),
        context.id,
        method=scope.get("method", "GET"),
        path=scope["path"],
        client_id=context.client_id,
        retries=int(tried) if _RETRIES.fullmatch(tried) else None,
    )
    observed.stages.append(("authenticate", context.started))
    observed.observer.begin(observed, scope["headers"])
    return context


def context_of(scope: Scope) -> RequestContext:
    """The context of *scope*."""
    context: RequestContext = scope[_SCOPE_KEY]
    return context


def observed_of(scope: Scope) -> Observation:
    """What is noted of the request of *scope*."""
    return context_of(scope).observed


def caller_of(scope: Scope) -> Caller:
    """Who is calling; only asked behind the authentication."""
    caller = context_of(scope).caller
    assert caller is not None, "this route is on the open list"
    return caller
