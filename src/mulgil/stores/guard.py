"""Spares everybody the wait for a store that does not answer."""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

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

T = TypeVar("T")

log = logging.getLogger(__name__)


class GuardedStore:
    """A circuit breaker around a `BudgetStore`, itself a `BudgetStore`. Raises nothing but `StoreError`.

    After *threshold* failures in a row it is open: steps fail at once, without being sent. Steps that failed for
    one and the same cause, as those of one round trip do, have failed once. Every
    *cooldown* seconds one step is let through, and the first that succeeds closes it.
    """

    def __init__(
        self,
        store: BudgetStore,
        *,
        threshold: int = 3,
        cooldown: float = 1.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._threshold = threshold
        self._cooldown = cooldown
        self._now = now
        self._failures = 0
        self._last_cause: BaseException | None = None
        self._next_try = 0.0

    @property
    def available(self) -> bool:
        """Whether the store answers, as far as we know."""
        return self._failures < self._threshold

    async def reserve(self, reservation: Reservation) -> Decision:
        return await self._attempt(lambda: self._store.reserve(reservation))

    async def renew(self, reports: Sequence[Report]) -> list[bool]:
        return await self._attempt(lambda: self._store.renew(reports))

    async def settle(self, settlement: Settlement) -> Balances:
        return await self._attempt(lambda: self._store.settle(settlement))

    async def balances(self, account: Account) -> Balances:
        return await self._attempt(lambda: self._store.balances(account))

    async def reset(self, account: Account, *, tenant_too: bool = False) -> None:
        await self._attempt(lambda: self._store.reset(account, tenant_too=tenant_too))

    async def ping(self) -> None:
        await self._attempt(self._store.ping)

    async def close(self) -> None:
        await self._store.close()

    async def _attempt(self, step: Callable[[], Awaitable[T]]) -> T:
        if not self.available:
            if self._now() < self._next_try:
                raise StoreClosedError("the budget store did not answer lately")
            self._next_try = self._now() + self._cooldown
        try:
            result = await step()
        except StoreError as error:
            self._count_failure(error.__cause__)
            raise
        except Exception as error:
            # A fault of ours, or of the client library; the care for all other leases must not end with it.
            log.exception("the budget store failed in an unknown way")
            self._count_failure()
            raise StoreError(f"the store failed with {type(error).__name__}") from error
        self._failures = 0
        return result

    def _count_failure(self, cause: BaseException | None = None) -> None:
        if cause is None or cause is not self._last_cause:
            self._failures += 1
        self._last_cause = cause
        self._next_try = self._now() + self._cooldown
