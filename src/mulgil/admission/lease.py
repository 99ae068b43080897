"""A lease: what one request may use, taken in one step and closed exactly once.

    open() → reserve() → … renewed in the background … → settle()

Whatever happens to the client or to the request's task, what was reserved is settled by tasks that
belong to `Leases` and that no request can cancel.
"""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mulgil.admission.allowance import explanation, go_duration, kind, longest, rate_limit_headers
from mulgil.admission.policy import Charge, Limits, Shortage, impossible
from mulgil.admission.store import (
    Account,
    Balances,
    BudgetStore,
    Decision,
    Report,
    Reservation,
    Settlement,
    StoreClosedError,
    StoreError,
)
from mulgil.errors import LimiterUnavailableError, RateLimitError, RequestExceedsLimitError

T = TypeVar("T")

log = logging.getLogger(__name__)

_UNKNOWN_WAIT = 1.0
_FIRST_RETRY = 0.1
_LONGEST_RETRY = 2.0


@dataclass(slots=True)
class LeaseCounters:
    """What happened to leases since the process began."""

    reserved: int = 0
    refused: int = 0
    unavailable: int = 0
    settled: int = 0
    settle_retries: int = 0
    settle_failures: int = 0
    lost: int = 0
    refusals: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Those that were refused, by scope and dimension of the limit that they were told of."""

    def refuse(self, shortage: Shortage) -> None:
        """Count one that *shortage* was told to."""
        self.refused += 1
        self.refusals[shortage.scope, shortage.dimension] += 1


class Lease:
    """The budgets of one request. Made by `Leases.open`.

    Attributes:
        made: gives the output tokens made so far; set by who makes them.
    """

    def __init__(self, leases: "Leases", account: Account, key_limits: Limits, tenant_limits: Limits) -> None:
        self.id = secrets.token_hex(12)
        self.account = account
        self.made: Callable[[], int] = lambda: 0
        self._leases = leases
        self._key_limits = key_limits
        self._tenant_limits = tenant_limits
        self._balances: Balances | None = None
        self._closed = False

    async def reserve(self, charge: Charge) -> None:
        """Take *charge* from every budget, or nothing from any.

        Raises:
            RateLimitError: a budget is used up; says when this very request fits.
            RequestExceedsLimitError: it can never fit.
            LimiterUnavailableError: the budgets cannot be asked.
        """
        for limits, scope in ((self._key_limits, "key"), (self._tenant_limits, "tenant")):
            if never := impossible(charge, limits, scope):  # type: ignore[arg-type]  # the literals above
                self._leases.counters.refuse(never)
                raise RequestExceedsLimitError(
                    f"{explanation(never)} The request is larger than the limit itself.", kind=kind(never)
                )
        reservation = Reservation(self.id, self.account, charge, self._key_limits, self._tenant_limits)
        decision = await self._leases.reserve(self, reservation)
        self._balances = Balances(decision.key, decision.tenant)
        if decision.shortages:
            raise self._refusal(decision)

    async def settle(self, *, refund: bool = False) -> None:
        """Close it with what `made` says now. Only the first call counts.

        Done when it returns, unless the store does not answer: then it is repeated in the background
        until the lease would have expired anyway.
        """
        if self._closed:
            return
        self._closed = True
        settled = await self._leases.settle(self, Settlement(self.report(), refund=refund))
        self._balances = settled or self._balances

    def report(self) -> Report:
        """What it has made so far."""
        return Report(self.id, self.account, self.made())

    def headers(self) -> dict[str, str]:
        """`x-ratelimit-…` as of the last step; empty before the first."""
        if self._balances is None:
            return {}
        return rate_limit_headers((self._key_limits, self._balances.key), (self._tenant_limits, self._balances.tenant))

    def _refusal(self, decision: Decision) -> RateLimitError:
        worst = longest(decision.shortages)
        self._leases.counters.refuse(worst)
        known = [shortage.wait for shortage in decision.shortages if shortage.wait is not None]
        unknown = len(known) < len(decision.shortages)
        wait = max([*known, _UNKNOWN_WAIT] if unknown else known)
        return RateLimitError(
            f"{explanation(worst)} Please try again in {go_duration(wait)}.",
            kind=kind(worst),
            retry_after=wait,
            budgets=self.headers(),
        )


class Leases:
    """All leases of this process.

    Args:
        store: where budgets are kept.
        ttl: seconds after which the store drops a lease that is not renewed.
        renew_interval: seconds between two renewals of all open leases, in one batch.
    """

    def __init__(self, store: BudgetStore, *, ttl: float, renew_interval: float) -> None:
        self._store = store
        self._ttl = ttl
        self._renew_interval = renew_interval
        self._open: dict[str, Lease] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._renewal: asyncio.Task[None] | None = None
        self.counters = LeaseCounters()

    def open(self, account: Account, key_limits: Limits, tenant_limits: Limits) -> Lease:
        """A lease that has nothing reserved yet, and so needs no closing."""
        return Lease(self, account, key_limits, tenant_limits)

    @property
    def live(self) -> int:
        """Leases that hold something in the store, as far as we know."""
        return len(self._open)

    def start(self) -> None:
        """Begin to renew."""
        self._renewal = asyncio.create_task(self._keep_renewing())

    async def drain(self, *, within: float = 3.0) -> None:
        """Stop renewing; wait until what is being settled is settled, but not for ever."""
        if self._renewal is not None:
            self._renewal.cancel()
        deadline = time.monotonic() + within
        while self._tasks and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=left)
        for task in self._tasks:
            task.cancel()

    async def reserve(self, lease: Lease, reservation: Reservation) -> Decision:
        """The store's decision; a caller that is cancelled meanwhile leaves nothing reserved."""
        step = self._spawn(self._store.reserve(reservation))
        try:
            decision = await asyncio.shield(step)
        except asyncio.CancelledError:
            self._spawn(self._undo(lease, step))
            raise
        except StoreError as error:
            self.counters.unavailable += 1
            if not isinstance(error, StoreClosedError):
                # The step may have happened.
                self._spawn(lease.settle(refund=True))
            raise LimiterUnavailableError(
                "The budgets of this key cannot be checked at the moment.", retry_after=_UNKNOWN_WAIT
            ) from error
        if decision.admitted:
            self.counters.reserved += 1
            self._open[lease.id] = lease
        return decision

    async def settle(self, lease: Lease, settlement: Settlement) -> Balances | None:
        """The balances after *settlement*; None when it had to be put off."""
        self._open.pop(lease.id, None)
        step = self._spawn(self._store.settle(settlement))
        try:
            balances = await asyncio.shield(step)
        except StoreError:
            self._spawn(self._keep_settling(settlement))
            return None
        self.counters.settled += 1
        return balances

    async def _undo(self, lease: Lease, step: asyncio.Task[Decision]) -> None:
        await asyncio.wait([step])
        refused = step.exception() is None and not step.result().admitted
        if not (refused or isinstance(step.exception(), StoreClosedError)):
            await lease.settle(refund=True)

    async def _keep_settling(self, settlement: Settlement) -> None:
        pause, deadline = _FIRST_RETRY, time.monotonic() + self._ttl
        while time.monotonic() < deadline:
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_RETRY)
            self.counters.settle_retries += 1
            try:
                await self._store.settle(settlement)
            except StoreError:
                continue
            self.counters.settled += 1
            return
        self.counters.settle_failures += 1
        log.error("a lease of %s could not be settled before it expired", settlement.report.account.key)

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(self._renew_interval)
            leases = list(self._open.values())
            if not leases:
                continue  # an empty step would pass for a sign of life of the store
            try:
                kept = await self._store.renew([lease.report() for lease in leases])
            except StoreError as error:
                log.warning("%d leases could not be renewed: %s", len(leases), error)
                continue
            for lease, alive in zip(leases, kept, strict=True):
                if not alive and self._open.pop(lease.id, None) is not None:
                    self.counters.lost += 1
                    log.warning("a lease of %s expired while its generation runs", lease.account.key)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
