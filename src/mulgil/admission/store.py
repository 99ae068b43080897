"""The store port. Its grain is the atomic step: reserve, renew and settle are one step each, all or nothing.

Time comes from the store, so that replicas with any clocks agree. Every step is idempotent by lease
id: a step whose reply was lost may be repeated. A lease that is not renewed for `lease_ttl` seconds
expires: its hold and its place are dropped, what was last reported for it stays charged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mulgil.admission.policy import Balance, Charge, Limits, Shortage


@dataclass(frozen=True, slots=True)
class Account:
    """Whose budgets a request is charged to.

    Attributes:
        tenant: name of the tenant; its keys share its budgets.
        key: id of the key.
    """

    tenant: str
    key: str


@dataclass(frozen=True, slots=True)
class Reservation:
    """A request that wants to run.

    Attributes:
        lease_id: random, new for each request.
        account: who pays.
        charge: what it costs.
        key_limits, tenant_limits: what the two scopes may use.
    """

    lease_id: str
    account: Account
    charge: Charge
    key_limits: Limits
    tenant_limits: Limits


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a reservation.

    Attributes:
        shortages: the limits it does not fit; empty means admitted. A refused request changes nothing.
        key, tenant: the balances after the step.
    """

    shortages: tuple[Shortage, ...]
    key: Balance
    tenant: Balance

    @property
    def admitted(self) -> bool:
        """Whether the lease is open now."""
        return not self.shortages


@dataclass(frozen=True, slots=True)
class Report:
    """What a lease has made so far.

    Attributes:
        lease_id: of an open lease.
        account: of its reservation.
        output_tokens: made since the beginning, never less than reported before.
    """

    lease_id: str
    account: Account
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of a lease.

    Attributes:
        report: what it made in the end.
        refund: give everything back, the request and the prompt too, as if it had never been: the engine
            refused it before any work. `report.output_tokens` is 0 then. Of a lease that is not open
            (its reservation's reply was lost, or it is still on its way), this forbids the reservation.
    """

    report: Report
    refund: bool = False


@dataclass(frozen=True, slots=True)
class Balances:
    """Of a key and of its tenant."""

    key: Balance
    tenant: Balance


class StoreError(Exception):
    """The store did not do what it was asked, or did not say so in time; the step may have happened."""


class StoreClosedError(StoreError):
    """The store was not even asked: it did not answer lately, and nobody is to wait for it again so soon."""


class BudgetStore(Protocol):
    """Keeps windows, holds and leases."""

    async def reserve(self, reservation: Reservation) -> Decision:
        """Check every limit of both scopes and, when all fit, charge and hold: one atomic step.

        Repeated for a lease that is open, it changes nothing and says admitted.

        Raises:
            StoreError: no answer; to be settled with `refund`, since the step may have happened.
        """
        ...

    async def renew(self, reports: Sequence[Report]) -> list[bool]:
        """Prolong leases and move what they made from hold to window; False for one that is not open.

        Raises:
            StoreError: some or all may not have been renewed.
        """
        ...

    async def settle(self, settlement: Settlement) -> Balances:
        """Charge the rest, drop the hold, free the place. Of a lease that is not open: changes nothing.

        Raises:
            StoreError: to be repeated.
        """
        ...

    async def balances(self, account: Account) -> Balances:
        """What both scopes have used.

        Raises:
            StoreError: no answer.
        """
        ...

    async def reset(self, account: Account, *, tenant_too: bool = False) -> None:
        """Empty the windows of the key (and of the tenant); leases that are open stay as they are.

        Raises:
            StoreError: may not have happened.
        """
        ...

    async def ping(self) -> None:
        """A round trip.

        Raises:
            StoreError: no answer.
        """
        ...

    async def close(self) -> None:
        """Let go of every connection."""
        ...
