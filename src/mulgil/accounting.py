"""What a piece of work is in the ledger: the numbers that its lease was charged, and how it ended."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from mulgil.admission.lease import Lease
from mulgil.errors import MulgilError, ShuttingDownError
from mulgil.generation import Generation
from mulgil.ledger.base import UsageRow

_ABORTED = "aborted"
_COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class Bill:
    """A request for embeddings that is under way.

    Attributes:
        lease: what it may use.
        request_id: of the HTTP request.
        model: the name that was asked for.
        prompt_tokens: of all inputs.
        asked: when the request was taken on, of `time.perf_counter`.
    """

    lease: Lease
    request_id: str
    model: str
    prompt_tokens: int
    asked: float


def row_of_generation(generation: Generation, error: MulgilError | None, *, refunded: bool) -> UsageRow:
    """The row of *generation*, which ended now, with *error* if it failed; one that is *refunded* has used nothing."""
    now, snapshot, account = time.perf_counter(), generation.snapshot, generation.lease.account
    return UsageRow(
        id=generation.id.partition("-")[2] or generation.id,
        request_id=generation.request_id,
        at=datetime.now(UTC),
        tenant=account.tenant,
        key_id=account.key,
        model=generation.model,
        prompt_tokens=0 if refunded else generation.prompt_tokens,
        cached_tokens=0 if refunded else snapshot.cached_tokens,
        completion_tokens=snapshot.completion_tokens,
        status=_status(generation, error),
        ttft=None if generation.first_token is None else generation.first_token - generation.asked,
        duration=now - generation.asked,
    )


def row_of_embedding(bill: Bill, error: BaseException | None, *, left: bool) -> UsageRow:
    """The row of *bill*, of which the work ended now: with *error*, or because its client has *left*."""
    account = bill.lease.account
    return UsageRow(
        id=bill.lease.id,
        request_id=bill.request_id,
        at=datetime.now(UTC),
        tenant=account.tenant,
        key_id=account.key,
        model=bill.model,
        prompt_tokens=0 if error is not None else bill.prompt_tokens,
        cached_tokens=0,
        completion_tokens=0,
        status=_code(error) if error is not None else _ABORTED if left else _COMPLETED,
        ttft=None,
        duration=time.perf_counter() - bill.asked,
    )


def _status(generation: Generation, error: MulgilError | None) -> str:
    if error is None:
        return "+".join(sorted({str(choice.finish_reason) for choice in generation.snapshot.choices}))
    if generation.abandoned and not isinstance(error, ShuttingDownError):
        return _ABORTED
    return _code(error)


def _code(error: BaseException) -> str:
    return getattr(error, "code", None) or type(error).__name__
