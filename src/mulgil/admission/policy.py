"""Limits and charges: pure arithmetic, no clock, no store.

A request is checked in four dimensions (requests, input tokens, output tokens, concurrency) and two
scopes (its key, and its tenant, whose keys share the tenant's limits).
"""

from dataclasses import dataclass
from typing import Literal

from mulgil.tiers import Tier, TierLimits

Dimension = Literal["requests", "input_tokens", "output_tokens", "concurrency"]
Scope = Literal["key", "tenant"]

WINDOW = 60
"""Seconds of every window. Buckets are one second wide and leave when they are wholly older than
this, so what is counted covers 60 to 61 seconds: never less than promised."""

BUCKET_LIFE = WINDOW + 1
"""A bucket of second s leaves at s + BUCKET_LIFE."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one scope may use; None is no limit.

    Attributes:
        requests: in any 60 s.
        input_tokens: prompt tokens in any 60 s.
        output_tokens: made in any 60 s, together with what requests under way may still make.
        concurrency: requests under way at the same time.
    """

    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    concurrency: int | None = None


def limits_of_tier(tier: Tier) -> tuple[Limits, Limits]:
    """Of a key of this tier, and of its tenant."""

    def of(limits: TierLimits) -> Limits:
        return Limits(
            requests=limits.requests_per_minute,
            input_tokens=limits.input_tokens_per_minute,
            output_tokens=limits.output_tokens_per_minute,
            concurrency=limits.concurrent_requests,
        )

    return of(tier), of(tier.tenant or tier)


@dataclass(frozen=True, slots=True)
class Charge:
    """What one request costs.

    Attributes:
        input_tokens: exact prompt tokens; charged at once.
        output_tokens: the most it can make, `n * max_tokens`; put on hold, and charged as they are made.
    """

    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Balance:
    """What one scope has used, at one moment.

    Attributes:
        requests, input_tokens, output_tokens: charged in the window.
        held_tokens: output tokens on hold for requests under way.
        concurrency: requests under way.
        requests_reset, input_tokens_reset, output_tokens_reset: seconds until the window is empty again,
            0 when it is. Holds count as charged now.
    """

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    held_tokens: int = 0
    concurrency: int = 0
    requests_reset: float = 0.0
    input_tokens_reset: float = 0.0
    output_tokens_reset: float = 0.0


@dataclass(frozen=True, slots=True)
class Shortage:
    """One limit that a request does not fit at the moment.

    Attributes:
        scope, dimension: which limit.
        limit: its value.
        used: charged and, for output tokens, held.
        asked: by this request.
        wait: seconds until this very request fits if nothing else happens, rounded up to a millisecond;
            None when that depends on requests under way (concurrency, or tokens on hold).
    """

    scope: Scope
    dimension: Dimension
    limit: int
    used: int
    asked: int
    wait: float | None


def impossible(charge: Charge, limits: Limits, scope: Scope) -> Shortage | None:
    """The limit that *charge* could not fit even if nothing else were running, if there is one."""
    asked: tuple[tuple[Dimension, int, int | None], ...] = (
        ("requests", 1, limits.requests),
        ("input_tokens", charge.input_tokens, limits.input_tokens),
        ("output_tokens", charge.output_tokens, limits.output_tokens),
        ("concurrency", 1, limits.concurrency),
    )
    for dimension, amount, limit in asked:
        if limit is not None and amount > limit:
            return Shortage(scope, dimension, limit, 0, amount, None)
    return None
