"""Budgets in this process: exact, and gone with it. For one gateway without Redis."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mulgil.admission.policy import BUCKET_LIFE
from mulgil.admission.store import Account, Balances, Decision, Report, Reservation, Settlement, StoreError
from mulgil.admission.window import INPUT, OUTPUT, REQUESTS, AccountClock, Usage, Window

TOMBSTONE_LIFE = 60_000
"""Milliseconds for which a lease that was given back cannot be reserved: longer than a command may linger."""

_SWEEP = 4


@dataclass(slots=True)
class _Lease:
    key: str
    held: int
    charged_at: int
    input_tokens: int
    expires: int
    reported: int = 0
    # False once a reset has emptied the window that the request was charged to.
    in_key_window: bool = True
    in_tenant_window: bool = True


class _Tenant:
    """One tenant with its keys; every step begins with `begin`.

    Attributes:
        touched: the store's time of its last step.
        used: whether there is anything to remember, be it only the time.
    """

    def __init__(self, store_time: int, lease_ttl: int) -> None:
        self._clock = AccountClock(store_time)
        self._lease_ttl = lease_ttl
        self._idle = BUCKET_LIFE * 1000 + lease_ttl
        self._leases: OrderedDict[str, _Lease] = OrderedDict()  # the first expires first
        self._tombstones: OrderedDict[str, int] = OrderedDict()
        self._keys: OrderedDict[str, Usage] = OrderedDict()  # the first is the longest unused
        self._usage = Usage()
        self._now = store_time
        self.touched = store_time
        self.used = False

    def begin(self, store_time: int) -> None:
        """Expire what has expired; drop keys that are not in use any more."""
        self.touched = store_time
        self._now = self._clock.now(store_time)
        self._usage.window.advance(self._now // 1000)
        while self._leases and (first := next(iter(self._leases.items())))[1].expires <= self._now:
            self._free(*first)
        while self._tombstones and (grave := next(iter(self._tombstones.items())))[1] <= self._now:
            del self._tombstones[grave[0]]
        for _ in range(min(_SWEEP, len(self._keys))):
            name, usage = next(iter(self._keys.items()))
            if usage.touched + self._idle > self._now:
                break
            # Its window is empty by now; a place that is still taken is freed when the lease expires.
            del self._keys[name]
            if usage.open:
                self._keys[name] = usage

    def reserve(self, reservation: Reservation) -> Decision:
        lease_id, charge, key = reservation.lease_id, reservation.charge, self._key(reservation.account.key)
        if lease_id in self._tombstones:
            raise StoreError("the lease was given back before it was reserved")
        if lease_id not in self._leases:
            shortages = (
                *key.shortages(charge, reservation.key_limits, "key", self._now),
                *self._usage.shortages(charge, reservation.tenant_limits, "tenant", self._now),
            )
            if shortages:
                return Decision(shortages, key.balance(self._now), self._usage.balance(self._now))
            second = self._now // 1000
            for usage in (key, self._usage):
                usage.window.charge(second, REQUESTS, 1)
                usage.window.charge(second, INPUT, charge.input_tokens)
                usage.held += charge.output_tokens
                usage.open += 1
            self._leases[lease_id] = _Lease(
                reservation.account.key, charge.output_tokens, second, charge.input_tokens, self._now + self._lease_ttl
            )
            self.used = True
        return Decision((), key.balance(self._now), self._usage.balance(self._now))

    def renew(self, report: Report) -> bool:
        lease = self._leases.get(report.lease_id)
        if lease is None:
            return False
        self._charge(lease, report.output_tokens)
        lease.expires = self._now + self._lease_ttl
        self._leases.move_to_end(report.lease_id)
        return True

    def settle(self, settlement: Settlement) -> None:
        lease_id = settlement.report.lease_id
        if lease := self._leases.get(lease_id):
            self._charge(lease, settlement.report.output_tokens)
            self._free(lease_id, lease)
            if settlement.refund:
                for counted, window in (
                    (lease.in_key_window, self._key(lease.key).window),
                    (lease.in_tenant_window, self._usage.window),
                ):
                    if counted:
                        window.give_back(lease.charged_at, REQUESTS, 1)
                        window.give_back(lease.charged_at, INPUT, lease.input_tokens)
        if settlement.refund:
            self._tombstones[lease_id] = self._now + TOMBSTONE_LIFE
            self._tombstones.move_to_end(lease_id)
            self.used = True

    def balances(self, key: str) -> Balances:
        return Balances(self._key(key).balance(self._now), self._usage.balance(self._now))

    def reset(self, key: str, *, tenant_too: bool) -> None:
        self._key(key).window = Window()
        if tenant_too:
            self._usage.window = Window()
        for lease in self._leases.values():
            lease.in_key_window = lease.in_key_window and lease.key != key
            lease.in_tenant_window = lease.in_tenant_window and not tenant_too
        self._key(key)
        self._usage.window.advance(self._now // 1000)

    def _key(self, name: str) -> Usage:
        """The usage of a key, up to date."""
        usage = self._keys.setdefault(name, Usage())
        usage.touched = self._now
        self._keys.move_to_end(name)
        usage.window.advance(self._now // 1000)
        return usage

    def _charge(self, lease: _Lease, made: int) -> None:
        """Move what was made since the last report from hold to window."""
        new = max(0, made - lease.reported)
        freed = min(new, lease.held)
        lease.reported += new
        lease.held -= freed
        for usage in (self._key(lease.key), self._usage):
            usage.window.charge(self._now // 1000, OUTPUT, new)
            usage.held -= freed

    def _free(self, lease_id: str, lease: _Lease) -> None:
        del self._leases[lease_id]
        for usage in (self._keys[lease.key], self._usage):
            usage.held -= lease.held
            usage.open -= 1


class MemoryStore:
    """A `BudgetStore` in memory. Keeps nothing of tenants and keys that have not been used for a while.

    Args:
        lease_ttl: seconds after which a lease that is not renewed expires.
        now: the time in seconds since any fixed moment.
    """

    def __init__(self, *, lease_ttl: float = 30.0, now: Callable[[], float] = time.monotonic) -> None:
        self._lease_ttl = round(lease_ttl * 1000)
        self._now = now
        self._idle = max(2 * BUCKET_LIFE * 1000, BUCKET_LIFE * 1000 + self._lease_ttl)
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()  # the first is the longest unused

    async def reserve(self, reservation: Reservation) -> Decision:
        return self._tenant(reservation.account.tenant).reserve(reservation)

    async def renew(self, reports: Sequence[Report]) -> list[bool]:
        return [self._tenant(report.account.tenant).renew(report) for report in reports]

    async def settle(self, settlement: Settlement) -> Balances:
        account = settlement.report.account
        tenant = self._tenant(account.tenant)
        tenant.settle(settlement)
        return tenant.balances(account.key)

    async def balances(self, account: Account) -> Balances:
        return self._tenant(account.tenant).balances(account.key)

    async def reset(self, account: Account, *, tenant_too: bool = False) -> None:
        self._tenant(account.tenant).reset(account.key, tenant_too=tenant_too)

    async def ping(self) -> None:
        """Nothing to ask."""

    async def close(self) -> None:
        """Nothing to let go of."""

    def _tenant(self, name: str) -> _Tenant:
        now = round(self._now() * 1000)
        tenant = self._tenants.get(name)
        if tenant is None or not tenant.used:
            tenant = self._tenants[name] = _Tenant(now, self._lease_ttl)
        self._tenants.move_to_end(name)
        tenant.begin(now)
        # Each step makes at most one tenant, so that these suffice.
        for _ in range(_SWEEP):
            idle_name, idle = next(iter(self._tenants.items()))
            if idle.touched + self._idle > now:
                break
            del self._tenants[idle_name]
        return tenant
