"""Whatever steps come in whatever order: limits hold, sums are exact, and memory and Valkey agree on everything."""

import asyncio
import dataclasses
import secrets
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from storeservers import StoreServer

from mulgil.admission.policy import Charge, Limits
from mulgil.admission.store import Account, Balances, Decision, Report, Reservation, Settlement, StoreError
from mulgil.stores.memory import MemoryStore
from mulgil.stores.redis import RedisStore

T = TypeVar("T")

LEASE_TTL = 30.0
KEY_LIMITS = Limits(requests=5, input_tokens=60, output_tokens=80, concurrency=3)
TENANT_LIMITS = Limits(requests=8, input_tokens=100, output_tokens=120, concurrency=4)
ACCOUNTS = st.integers(0, 2)


@dataclass
class Lease:
    id: str
    account: Account
    output_tokens: int
    charge: "Entry"
    expires: int
    made: int = 0


@dataclass
class Entry:
    """One line of a tenant's log: so much was charged to that key at that moment."""

    at: int
    key: str
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


@dataclass
class Book:
    """The budgets of one tenant, kept the simple way: a log of everything, added up each time."""

    time: int
    seen: int
    log: list[Entry] = field(default_factory=list)
    open: dict[str, Lease] = field(default_factory=dict)

    def look(self, clock: int) -> None:
        if clock >= self.time or not self.log:
            self.time = clock
        else:
            self.time += max(0, clock - self.seen)
        self.seen = clock
        self.open = {name: lease for name, lease in self.open.items() if lease.expires > self.time}

    def counts(self, key: str | None) -> tuple[int, int, int, int, int]:
        log = [e for e in self.log if key in (None, e.key) and e.at // 1000 + 61 > self.time // 1000]
        leases = [lease for lease in self.open.values() if key in (None, lease.account.key)]
        return (
            sum(entry.requests for entry in log),
            sum(entry.input_tokens for entry in log),
            sum(entry.output_tokens for entry in log),
            sum(max(0, lease.output_tokens - lease.made) for lease in leases),
            len(leases),
        )


class Interleaving(RuleBasedStateMachine):
    """Two keys of one tenant and one of another; the same steps on both stores and in the books."""

    url: ClassVar[str]
    leases = Bundle("leases")
    closed = Bundle("closed")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.milliseconds = 1_800_000_000_123
        one, other = (f"{name} {secrets.token_hex(8)}" for name in ("one", "other"))
        self.accounts = (Account(one, "a"), Account(one, "b"), Account(other, "a"))
        self.memory = MemoryStore(lease_ttl=LEASE_TTL, now=self.clock)
        self.redis = RedisStore(self.url, lease_ttl=LEASE_TTL, timeout=5, clock=self.clock)
        self.books = {name: Book(self.milliseconds, self.milliseconds) for name in (one, other)}

    def clock(self) -> float:
        return self.milliseconds / 1000

    def run(self, step: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(step)

    def both(self, step: str, *args: Any) -> Any:
        """The answer of both stores, which is the same, or why there is none."""
        answers = []
        for store in (self.memory, self.redis):
            try:
                answers.append(self.run(getattr(store, step)(*args)))
            except StoreError as error:
                answers.append(str(error))
        assert answers[0] == answers[1]
        for book in self.books.values():
            book.look(self.milliseconds)
        return answers[0]

    @rule(target=leases, which=ACCOUNTS, prompt=st.integers(0, 40), output=st.integers(0, 50))
    def reserve(self, which: int, prompt: int, output: int) -> Any:
        account = self.accounts[which]
        book = self.books[account.tenant]
        book.look(self.milliseconds)
        fits = all(
            used + asked <= limit
            for counts, limits in ((book.counts(account.key), KEY_LIMITS), (book.counts(None), TENANT_LIMITS))
            for used, asked, limit in zip(
                (counts[0], counts[1], counts[2] + counts[3], counts[4]),
                (1, prompt, output, 1),
                dataclasses.astuple(limits),
                strict=True,
            )
        )
        lease_id = secrets.token_hex(8)
        decision: Decision = self.both(
            "reserve", Reservation(lease_id, account, Charge(prompt, output), KEY_LIMITS, TENANT_LIMITS)
        )
        assert decision.admitted == fits
        if not fits:
            return multiple()
        entry = Entry(book.time, account.key, 1, prompt)
        book.log.append(entry)
        book.open[lease_id] = lease = Lease(lease_id, account, output, entry, book.time + round(LEASE_TTL * 1000))
        return lease

    @rule(lease=leases)
    def reserve_again(self, lease: Lease) -> None:
        book = self.books[lease.account.tenant]
        book.look(self.milliseconds)
        if lease.id in book.open:
            charge = Charge(lease.charge.input_tokens, lease.output_tokens)
            assert self.both(
                "reserve", Reservation(lease.id, lease.account, charge, KEY_LIMITS, TENANT_LIMITS)
            ).admitted

    @rule(lease=leases, share=st.floats(0, 1), other=st.sampled_from(["", "unknown"]))
    def renew(self, lease: Lease, share: float, other: str) -> None:
        made = max(lease.made, int(lease.output_tokens * share))
        reports = [Report(name, lease.account, made) for name in (lease.id, other) if name]
        kept = self.both("renew", reports)
        book = self.books[lease.account.tenant]
        assert kept == [lease.id in book.open, False][: len(reports)]
        if kept[0]:
            self.charge(lease, made)
            lease.expires = book.time + round(LEASE_TTL * 1000)

    @rule(target=closed, lease=consumes(leases), share=st.floats(0, 1))
    def settle(self, lease: Lease, share: float) -> Lease:
        made = max(lease.made, int(lease.output_tokens * share))
        self.both("settle", Settlement(Report(lease.id, lease.account, made)))
        if lease.id in self.books[lease.account.tenant].open:
            self.charge(lease, made)
            del self.books[lease.account.tenant].open[lease.id]
        return lease

    @rule(target=closed, lease=consumes(leases))
    def refund(self, lease: Lease) -> Lease:
        self.both("settle", Settlement(Report(lease.id, lease.account, 0), refund=True))
        if self.books[lease.account.tenant].open.pop(lease.id, None):
            lease.charge.requests = lease.charge.input_tokens = 0
        refused = Reservation(lease.id, lease.account, Charge(0, 0), Limits(), Limits())
        assert "given back" in self.both("reserve", refused)
        return lease

    @rule(lease=closed, refund=st.booleans())
    def settle_again(self, lease: Lease, refund: bool) -> None:
        self.both("settle", Settlement(Report(lease.id, lease.account, lease.output_tokens), refund=refund))

    @rule(seconds=st.floats(0, 45))
    def wait(self, seconds: float) -> None:
        self.milliseconds += round(seconds * 1000)

    @rule(seconds=st.floats(0, 90))
    def set_back(self, seconds: float) -> None:
        self.milliseconds -= round(seconds * 1000)

    @rule(which=ACCOUNTS, tenant_too=st.booleans())
    def reset(self, which: int, tenant_too: bool) -> None:
        # Not through the books: what they check, a reset breaks on purpose.
        account = Account(self.accounts[which].tenant + " reset", self.accounts[which].key)
        charge = Reservation(secrets.token_hex(8), account, Charge(3, 5), KEY_LIMITS, TENANT_LIMITS)
        self.both("reserve", charge)
        for store in (self.memory, self.redis):
            self.run(store.reset(account, tenant_too=tenant_too))
        self.both("settle", Settlement(Report(charge.lease_id, account, 0), refund=tenant_too))
        self.both("balances", account)

    @invariant()
    def all_is_as_in_the_books(self) -> None:
        for tenant in self.books:
            # Asked each time: whom memory has not seen for two windows it forgets, and so would Redis,
            # but by its own clock, not by ours.
            self.both("balances", Account(f"{tenant} reset", "a"))
        for account in self.accounts:
            book = self.books[account.tenant]
            balances: Balances = self.both("balances", account)
            assert dataclasses.astuple(balances.key)[:5] == book.counts(account.key)
            assert dataclasses.astuple(balances.tenant)[:5] == book.counts(None)
            for balance, limits in ((balances.key, KEY_LIMITS), (balances.tenant, TENANT_LIMITS)):
                held = balance.output_tokens + balance.held_tokens
                used = (balance.requests, balance.input_tokens, held, balance.concurrency)
                assert all(0 <= one <= limit for one, limit in zip(used, dataclasses.astuple(limits), strict=True))
            assert balances.key.held_tokens >= 0

    def charge(self, lease: Lease, made: int) -> None:
        book = self.books[lease.account.tenant]
        book.log.append(Entry(book.time, lease.account.key, output_tokens=made - lease.made))
        lease.made = made

    def teardown(self) -> None:
        for book in self.books.values():
            for scope, limit in (("a", 80), ("b", 80), (None, 120)):
                log = [entry for entry in book.log if scope in (None, entry.key)]
                for first in log:
                    window = [entry for entry in log if first.at <= entry.at < first.at + 60_000]
                    assert sum(entry.output_tokens for entry in window) <= limit
        self.run(self.redis.close())
        self.loop.close()


@pytest.mark.timeout(120)
def test_any_interleaving_keeps_the_limits_and_both_stores_agree(valkey: StoreServer) -> None:
    Interleaving.url = valkey.unix_url
    run_state_machine_as_test(
        Interleaving,
        settings=settings(
            max_examples=50, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
