"""Tickets: what a page puts into a URL instead of its key, since an EventSource can send no header."""

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from mulgil.auth.keys import Caller

_MOST = 20_000


@dataclass(slots=True)
class Ticket:
    """Lets its holder in for one purpose, as long as what it is for lasts.

    Attributes:
        caller: who asked for it.
        use_by: Unix time by which it must have been used for the first time.
        stream_id: the one stream that it opens; None until there is one.
        used: it has been used.
        starting: held while the stream of a ticket without one is started, so that it starts once.
    """

    caller: Caller
    use_by: float
    stream_id: str | None = None
    used: bool = False
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)


class Tickets:
    """All tickets of a process, by their SHA-256; no ticket is kept as it is.

    Args:
        ttl: seconds within which a ticket must be used for the first time.
        now: the time, for tests.
    """

    def __init__(self, *, ttl: float = 60.0, now: Callable[[], float] = time.time) -> None:
        self._ttl = ttl
        self._now = now
        self._tickets: dict[bytes, Ticket] = {}

    def mint(self, caller: Caller, stream_id: str | None = None) -> tuple[str, float]:
        """A new ticket, and the Unix time by which it must be used."""
        self._sweep()
        ticket = f"tk-{secrets.token_urlsafe(32)}"
        use_by = self._now() + self._ttl
        self._tickets[_digest(ticket)] = Ticket(caller, use_by, stream_id)
        return ticket, use_by

    def find(self, ticket: str) -> Ticket | None:
        """The ticket, if there is such a one and it came in time. Whoever lets it in marks it as used."""
        found = self._tickets.get(_digest(ticket))
        if found is None or not (found.used or self._now() <= found.use_by):
            return None
        return found

    def forget(self, stream_id: str) -> None:
        """The stream is gone, and its tickets with it."""
        for key in [key for key, ticket in self._tickets.items() if ticket.stream_id == stream_id]:
            del self._tickets[key]

    def _sweep(self) -> None:
        late = [key for key, one in self._tickets.items() if not one.used and self._now() > one.use_by]
        for key in late:
            del self._tickets[key]
        # The oldest first; a page whose ticket is gone asks for another.
        for key in list(self._tickets)[: max(0, len(self._tickets) - _MOST + 1)]:
            del self._tickets[key]


def _digest(ticket: str) -> bytes:
    return hashlib.sha256(ticket.encode("utf-8", "surrogatepass")).digest()
