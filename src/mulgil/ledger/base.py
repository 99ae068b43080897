"""The ledger's port, and its row. All that the use cases know of it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from mulgil.tiers import Tier


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What one piece of work has used, once it is settled. The numbers are those that its lease was charged.

    Attributes:
        id: random, ours, unique: a row that is written twice is there once. Of a generation the part of the answer's
            id after the dash.
        request_id: of the HTTP request, `req_…`; the turns of a WebSocket are counted behind it, `req_….1`.
        at: when it ended; aware.
        tenant: who pays.
        key_id: with which key.
        model: by the name that was asked for.
        prompt_tokens: the cached ones included.
        cached_tokens: those that came out of the prefix cache.
        completion_tokens: of all choices.
        status: the finish reason (several: joined by `+`), `aborted`, or the code of the error.
        ttft: seconds until the first token; None where none was made.
        duration: seconds until the end; both count from when the gateway took the request on, its wait included.
        variant: of the model that was to answer; None where it has none.
        fallback: what answered instead of the model; None where nothing had to.
    """

    id: str
    request_id: str
    at: datetime
    tenant: str
    key_id: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    status: str
    ttft: float | None
    duration: float
    variant: str | None = None
    fallback: str | None = None

    @property
    def total_tokens(self) -> int:
        """Of prompt and answer."""
        return self.prompt_tokens + self.completion_tokens


class Ledger(Protocol):
    """Takes rows, and knows who may spend no more."""

    async def check(self, tenant: str, key_id: str, tier: Tier) -> None:
        """Let a request pass unless a quota of its key or its tenant is used up. Waits for nothing but, the first
        time in a day that a key with a quota comes, for what it has spent.

        Raises:
            InsufficientQuotaError: it is used up.
        """
        ...

    def note(self, row: UsageRow) -> None:
        """Take *row* over. Never waits, never fails."""
        ...

    def start(self) -> None:
        """Begin what goes on in the background; called in the event loop."""
        ...

    async def close(self) -> None:
        """Bring all rows to where they are safe, and let go of every connection."""
        ...


class NoLedger:
    """Where usage is not kept."""

    async def check(self, tenant: str, key_id: str, tier: Tier) -> None:
        pass

    def note(self, row: UsageRow) -> None:
        pass

    def start(self) -> None:
        pass

    async def close(self) -> None:
        pass
