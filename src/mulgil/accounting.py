"""What a piece of work is in the ledger: the numbers that its lease was charged, and how it ended."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from mulgil.admission.lease import Lease
from mulgil.errors import MulgilError, ShuttingDownError
from mulgil.generation import Generation
from mulgil.ledger.base import UsageRow
from mulgil.telemetry.observation import Observation

_ABORTED = "aborted"
_COMPLETED = "completed"
_CACHED = "cached"


@dataclass(frozen=True, slots=True)
class Bill:
    """A request for embeddings that is under way.

    Attributes:
        lease: what it may use.
        observed: the request.
        model: the name that was asked for.
        prompt_tokens: of all inputs.
    """

    lease: Lease
    observed: Observation
    model: str
    prompt_tokens: int


def row_of_generation(generation: Generation, error: MulgilError | None, *, refunded: bool) -> UsageRow:
    """The row of *generation*, which ended now, with *error* if it failed; one that is *refunded* has used nothing."""
    observed, snapshot, account = generation.observed, generation.snapshot, generation.lease.account
    nothing = refunded or generation.free
    return UsageRow(
        id=generation.id.partition("-")[2] or generation.id,
        request_id=observed.id,
        at=datetime.now(UTC),
        tenant=account.tenant,
        key_id=account.key,
        model=generation.model,
        prompt_tokens=0 if nothing else generation.prompt_tokens,
        cached_tokens=0 if nothing else snapshot.cached_tokens,
        completion_tokens=0 if generation.free else snapshot.completion_tokens,
        status=_status(generation, error),
        ttft=observed.first_token_after,
        duration=time.perf_counter() - observed.began,
        variant=observed.variant,
        fallback=observed.fallback,
    )


def row_of_embedding(bill: Bill, error: BaseException | None, *, left: bool) -> UsageRow:
    """The row of *bill*, of which the work ended now: with *error*, or because its client has *left*."""
    account = bill.lease.account
    return UsageRow(
        id=bill.lease.id,
        request_id=bill.observed.id,
        at=datetime.now(UTC),
        tenant=account.tenant,
        key_id=account.key,
        model=bill.model,
        prompt_tokens=0 if error is not None else bill.prompt_tokens,
        cached_tokens=0,
        completion_tokens=0,
        status=_code(error) if error is not None else _ABORTED if left else _COMPLETED,
        ttft=None,
        duration=time.perf_counter() - bill.observed.began,
    )


def _status(generation: Generation, error: MulgilError | None) -> str:
    if error is None and generation.free:
        return _CACHED
    if error is None:
        return "+".join(sorted({str(choice.finish_reason) for choice in generation.snapshot.choices}))
    if generation.abandoned and not isinstance(error, ShuttingDownError):
        return _ABORTED
    return _code(error)


def _code(error: BaseException) -> str:
    return getattr(error, "code", None) or type(error).__name__
