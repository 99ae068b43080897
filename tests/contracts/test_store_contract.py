"""What `BudgetStore` promises, kept by every adapter."""

import asyncio
import itertools
import random
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest
from storeservers import StoreServer

from mulgil.admission.policy import Balance, Charge, Limits
from mulgil.admission.store import (
    Account,
    Balances,
    BudgetStore,
    Decision,
    Report,
    Reservation,
    Settlement,
    StoreError,
)
from mulgil.stores.memory import MemoryStore
from mulgil.stores.redis import RedisStore

LEASE_TTL = 30.0
FREE = Limits()


class Clock:
    """A time that the test sets; at first in the middle of a second."""

    def __init__(self) -> None:
        self.milliseconds = 1_800_000_000_400

    def __call__(self) -> float:
        return self.milliseconds / 1000

    def advance(self, seconds: float) -> None:
        self.milliseconds += round(seconds * 1000)


@dataclass
class Subject:
    """A store, its clock, and short words for its steps."""

    store: BudgetStore
    clock: Clock
    tenant: str = field(default_factory=lambda: f"tenant {secrets.token_hex(8)} }}{{ \u0000 \ud55c")

    def account(self, key: str = "one") -> Account:
        return Account(self.tenant, key)

    async def reserve(
        self,
        lease: str,
        limits: Limits = FREE,
        *,
        key: str = "one",
        charge: tuple[int, int] = (10, 100),
        tenant_limits: Limits = FREE,
    ) -> Decision:
        return await self.store.reserve(
            Reservation(self.lease(lease), self.account(key), Charge(*charge), limits, tenant_limits)
        )

    async def renew(self, lease: str, made: int, *, key: str = "one") -> bool:
        return (await self.store.renew([Report(self.lease(lease), self.account(key), made)]))[0]

    async def settle(self, lease: str, made: int = 0, *, key: str = "one", refund: bool = False) -> Balances:
        return await self.store.settle(Settlement(Report(self.lease(lease), self.account(key), made), refund=refund))

    async def balances(self, key: str = "one") -> Balances:
        return await self.store.balances(self.account(key))

    async def counts(self, key: str = "one") -> tuple[int, int, int, int, int]:
        """Requests, input, output, held, concurrency of a key; its tenant's have to be the same."""
        balances = await self.balances(key)
        assert balances.key == balances.tenant
        return counts(balances.key)

    def lease(self, name: str) -> str:
        return f"{name}-{self.tenant}"


def counts(balance: Balance) -> tuple[int, int, int, int, int]:
    return balance.requests, balance.input_tokens, balance.output_tokens, balance.held_tokens, balance.concurrency


@pytest.fixture(params=["memory", "valkey", "valkey on a unix socket", "redis 6.2"])
async def subject(request: pytest.FixtureRequest) -> AsyncGenerator[Subject]:
    clock = Clock()
    store: BudgetStore
    if request.param == "memory":
        store = MemoryStore(lease_ttl=LEASE_TTL, now=clock)
    else:
        server: StoreServer = request.getfixturevalue("redis_6" if request.param == "redis 6.2" else "valkey")
        url = server.unix_url if "unix" in request.param else server.url
        store = RedisStore(url, lease_ttl=LEASE_TTL, timeout=5, clock=clock)
    yield Subject(store, clock)
    await store.close()


async def test_an_admitted_request_is_charged_its_prompt_and_holds_its_worst_case_in_both_scopes(
    subject: Subject,
) -> None:
    decision = await subject.reserve("a", charge=(7, 300))
    assert decision.admitted
    assert decision.key == decision.tenant
    assert counts(decision.key) == (1, 7, 0, 300, 1) == await subject.counts()


async def test_nothing_is_used_at_first(subject: Subject) -> None:
    assert await subject.balances() == Balances(Balance(), Balance())


async def test_settling_charges_what_was_made_and_frees_hold_and_place(subject: Subject) -> None:
    await subject.reserve("a", charge=(7, 300))
    balances = await subject.settle("a", 120)
    assert counts(balances.key) == counts(balances.tenant) == (1, 7, 120, 0, 0)


async def test_renewing_moves_what_was_made_from_hold_to_window(subject: Subject) -> None:
    await subject.reserve("a", charge=(7, 300))
    assert await subject.renew("a", 100)
    assert await subject.counts() == (1, 7, 100, 200, 1)
    assert await subject.renew("a", 140)
    assert await subject.counts() == (1, 7, 140, 160, 1)
    await subject.settle("a", 150)
    assert await subject.counts() == (1, 7, 150, 0, 0)


async def test_repeated_steps_change_nothing(subject: Subject) -> None:
    for _ in range(3):
        assert (await subject.reserve("a", Limits(concurrency=1), charge=(7, 300))).admitted
        assert await subject.counts() == (1, 7, 0, 300, 1)
    for _ in range(3):
        await subject.renew("a", 100)
        assert await subject.counts() == (1, 7, 100, 200, 1)
    for _ in range(3):
        await subject.settle("a", 150)
        assert await subject.counts() == (1, 7, 150, 0, 0)


async def test_an_older_report_takes_nothing_back(subject: Subject) -> None:
    await subject.reserve("a")
    await subject.renew("a", 50)
    await subject.renew("a", 20)
    assert await subject.counts() == (1, 10, 50, 50, 1)


async def test_what_was_made_is_charged_even_above_the_hold(subject: Subject) -> None:
    await subject.reserve("a", charge=(1, 100))
    await subject.renew("a", 130)
    assert await subject.counts() == (1, 1, 130, 0, 1)
    await subject.settle("a", 140)
    assert await subject.counts() == (1, 1, 140, 0, 0)


@pytest.mark.parametrize(
    ("limits", "dimension", "amounts"),
    [
        (Limits(requests=2), "requests", (2, 1)),
        (Limits(input_tokens=29), "input_tokens", (20, 10)),
        (Limits(output_tokens=299), "output_tokens", (200, 100)),
        (Limits(concurrency=2), "concurrency", (2, 1)),
    ],
)
@pytest.mark.parametrize("scope", ["key", "tenant"])
async def test_each_limit_of_each_scope_refuses_what_does_not_fit(
    subject: Subject, limits: Limits, dimension: str, amounts: tuple[int, int], scope: str
) -> None:
    of_key, of_tenant = (limits, FREE) if scope == "key" else (FREE, limits)
    for lease in "ab":
        assert (await subject.reserve(lease, of_key, tenant_limits=of_tenant)).admitted
    before = await subject.balances()
    refused = await subject.reserve("c", of_key, tenant_limits=of_tenant)
    (shortage,) = refused.shortages
    assert (shortage.scope, shortage.dimension, (shortage.used, shortage.asked)) == (scope, dimension, amounts)
    assert shortage.limit == getattr(limits, dimension)
    assert Balances(refused.key, refused.tenant) == before == await subject.balances()
    assert not await subject.renew("c", 1)


@pytest.mark.parametrize(
    "limits",
    [Limits(requests=3), Limits(input_tokens=30), Limits(output_tokens=300), Limits(concurrency=3)],
    ids=str,
)
async def test_what_fits_exactly_is_admitted(subject: Subject, limits: Limits) -> None:
    for lease in "abc":
        assert (await subject.reserve(lease, limits, tenant_limits=limits)).admitted
    assert not (await subject.reserve("d", limits, tenant_limits=limits)).admitted


async def test_all_shortages_are_named(subject: Subject) -> None:
    limits = Limits(requests=1, input_tokens=10, output_tokens=100, concurrency=1)
    await subject.reserve("a", limits, tenant_limits=limits)
    refused = await subject.reserve("b", limits, tenant_limits=limits)
    dimensions = ("requests", "input_tokens", "output_tokens", "concurrency")
    named = [(shortage.scope, shortage.dimension) for shortage in refused.shortages]
    assert named == list(itertools.product(("key", "tenant"), dimensions))


async def test_a_tenants_keys_share_its_limits_but_not_each_others(subject: Subject) -> None:
    one, both = Limits(requests=2), Limits(requests=3)
    assert (await subject.reserve("a", one, key="one", tenant_limits=both)).admitted
    assert (await subject.reserve("b", one, key="one", tenant_limits=both)).admitted
    assert (await subject.reserve("c", one, key="two", tenant_limits=both)).admitted
    refused = await subject.reserve("d", one, key="two", tenant_limits=both)
    assert [shortage.scope for shortage in refused.shortages] == ["tenant"]
    balances = await subject.balances("two")
    assert (balances.key.requests, balances.tenant.requests) == (1, 3)


async def test_tenants_know_nothing_of_each_other(subject: Subject) -> None:
    other = Subject(subject.store, subject.clock)
    limits = Limits(requests=1)
    assert (await subject.reserve("a", limits, tenant_limits=limits)).admitted
    assert (await other.reserve("a", limits, tenant_limits=limits)).admitted
    await subject.settle("a", 5)
    assert await other.counts() == (1, 10, 0, 100, 1)


async def test_of_many_at_the_same_time_exactly_the_limit_is_admitted(subject: Subject) -> None:
    decisions = await asyncio.gather(
        *(subject.reserve(str(number), Limits(requests=10), key=str(number % 3)) for number in range(50)),
        *(subject.reserve(f"x{number}", tenant_limits=Limits(requests=40), key="x") for number in range(50)),
    )
    admitted = [decision.admitted for decision in decisions]
    assert admitted[:50].count(True) == 30
    assert admitted[50:].count(True) == 10


async def test_a_charge_is_counted_for_60_to_61_seconds(subject: Subject) -> None:
    limits = Limits(requests=1)
    begin = subject.clock.milliseconds
    await subject.reserve("a", limits)
    await subject.settle("a", 5)
    subject.clock.milliseconds = begin // 1000 * 1000 + 60_999
    assert not (await subject.reserve("b", limits)).admitted
    assert await subject.counts() == (1, 10, 5, 0, 0)
    subject.clock.milliseconds += 1
    assert await subject.counts() == (0, 0, 0, 0, 0)
    assert (await subject.reserve("c", limits)).admitted


async def test_no_60_seconds_ever_see_more_than_the_limit(subject: Subject) -> None:
    chance, limits, admitted = random.Random(7), Limits(requests=5), []
    for number in range(400):
        subject.clock.advance(chance.choice((0.001, 0.25, 1.0, 3.0, 10.0)))
        if (await subject.reserve(str(number), limits)).admitted:
            admitted.append(subject.clock.milliseconds)
            await subject.settle(str(number))
    assert len(admitted) > 50
    assert max(sum(1 for at in admitted if start <= at < start + 60_000) for start in admitted) == 5


async def test_resets_say_when_each_window_is_empty_again(subject: Subject) -> None:
    await subject.reserve("a", charge=(10, 100))  # at …0.4: leaves at …61.0
    assert (await subject.balances()).key.requests_reset == 60.6
    subject.clock.advance(5)
    held = (await subject.balances()).key
    assert (held.requests_reset, held.input_tokens_reset, held.output_tokens_reset) == (55.6, 55.6, 60.6)
    await subject.settle("a", 5)
    subject.clock.advance(20)
    settled = (await subject.balances()).key
    assert (settled.requests_reset, settled.input_tokens_reset, settled.output_tokens_reset) == (35.6, 35.6, 40.6)
    subject.clock.advance(40.6)
    assert await subject.balances() == Balances(Balance(), Balance())


async def test_a_lease_that_is_not_renewed_loses_hold_and_place_but_not_its_charges(subject: Subject) -> None:
    await subject.reserve("a", charge=(10, 100))
    subject.clock.advance(LEASE_TTL - 1)
    await subject.renew("a", 40)
    subject.clock.advance(LEASE_TTL - 0.001)
    assert await subject.counts() == (1, 10, 40, 60, 1)
    subject.clock.advance(0.001)
    assert await subject.counts() == (1, 10, 40, 0, 0)


async def test_an_expired_lease_makes_room_for_the_next_request(subject: Subject) -> None:
    limits = Limits(concurrency=1, output_tokens=100)
    await subject.reserve("a", limits, tenant_limits=limits)
    assert not (await subject.reserve("b", limits, tenant_limits=limits, key="two")).admitted
    subject.clock.advance(LEASE_TTL)
    assert (await subject.reserve("b", limits, tenant_limits=limits, key="two")).admitted
    assert counts((await subject.balances("one")).key)[3:] == (0, 0)


async def test_steady_traffic_does_not_keep_an_abandoned_lease_alive(subject: Subject) -> None:
    await subject.reserve("abandoned", Limits(concurrency=2))
    for number in range(40):
        subject.clock.advance(1)
        await subject.reserve(str(number), Limits(concurrency=2))
        await subject.settle(str(number))
    assert (await subject.balances()).key.concurrency == 0


async def test_a_late_renewal_or_settlement_of_an_expired_lease_changes_nothing(subject: Subject) -> None:
    await subject.reserve("a")
    subject.clock.advance(LEASE_TTL)
    assert not await subject.renew("a", 50)
    await subject.settle("a", 90)
    assert await subject.counts() == (1, 10, 0, 0, 0)


async def test_settling_what_was_never_reserved_changes_nothing(subject: Subject) -> None:
    await subject.settle("never", 90)
    assert await subject.counts() == (0, 0, 0, 0, 0)


async def test_a_refund_gives_everything_back(subject: Subject) -> None:
    await subject.reserve("kept", charge=(3, 50))
    subject.clock.advance(2)
    await subject.reserve("a", charge=(10, 100))
    subject.clock.advance(1)
    balances = await subject.settle("a", refund=True)
    assert counts(balances.key) == (1, 3, 0, 50, 1)
    assert balances.key.requests_reset == 57.6


async def test_a_refund_comes_out_of_the_bucket_that_was_charged(subject: Subject) -> None:
    limits = Limits(requests=2)
    await subject.reserve("early", limits)
    subject.clock.advance(10)
    await subject.reserve("late", limits)
    await subject.settle("early", refund=True)
    subject.clock.advance(51)
    assert (await subject.balances()).key.requests == 1
    subject.clock.advance(10)
    assert (await subject.balances()).key.requests == 0


async def test_a_refund_after_the_charge_has_left_gives_nothing_back(subject: Subject) -> None:
    await subject.reserve("a")
    for _ in range(4):
        subject.clock.advance(20)
        await subject.renew("a", 0)
    await subject.reserve("b")
    await subject.settle("a", refund=True)
    assert await subject.counts() == (1, 10, 0, 100, 1)


async def test_a_refunded_lease_cannot_be_reserved_by_a_step_that_comes_late(subject: Subject) -> None:
    await subject.settle("a", refund=True)
    with pytest.raises(StoreError, match="given back"):
        await subject.reserve("a")
    assert await subject.counts() == (0, 0, 0, 0, 0)
    await subject.reserve("b")
    await subject.settle("b", refund=True)
    with pytest.raises(StoreError, match="given back"):
        await subject.reserve("b")
    assert await subject.counts() == (0, 0, 0, 0, 0)


async def test_a_refund_repeated_gives_back_once(subject: Subject) -> None:
    await subject.reserve("kept")
    await subject.reserve("a")
    for _ in range(3):
        await subject.settle("a", refund=True)
    assert await subject.counts() == (1, 10, 0, 100, 1)


async def test_one_batch_renews_leases_of_many_accounts_and_names_the_lost_ones(subject: Subject) -> None:
    others = [Subject(subject.store, subject.clock) for _ in range(3)]
    reports = []
    for number, other in enumerate([subject, *others, subject]):
        await other.reserve(f"lease {number}", key=f"key {number % 2}", charge=(1, 50))
        reports.append(Report(other.lease(f"lease {number}"), other.account(f"key {number % 2}"), number))
    reports.insert(2, Report("lost", subject.account(), 9))
    assert await subject.store.renew(reports) == [True, True, False, True, True, True]
    assert await subject.store.renew([]) == []
    balances = await subject.balances("key 0")
    assert (balances.key.output_tokens, balances.key.held_tokens) == (4, 96)
    assert (await others[2].balances("key 1")).key.output_tokens == 3


async def test_a_batch_may_be_large(subject: Subject) -> None:
    for number in range(450):
        await subject.reserve(str(number), charge=(0, 10), key=str(number % 2))
    reports = [Report(subject.lease(str(number)), subject.account(str(number % 2)), 3) for number in range(450)]
    assert await subject.store.renew(reports) == [True] * 450
    assert counts((await subject.balances("0")).tenant) == (450, 0, 1350, 3150, 450)


async def test_a_stream_longer_than_the_window_is_charged_when_it_makes_its_tokens(subject: Subject) -> None:
    await subject.reserve("a", charge=(10, 1000))
    for minute in range(1, 5):
        for part in range(6):
            subject.clock.advance(10)
            await subject.renew("a", (minute - 1) * 60 + (part + 1) * 10)
    # Of the last 60 seconds, and of the second in which they began.
    assert await subject.counts() == (0, 0, 70, 760, 1)
    await subject.settle("a", 240)
    assert await subject.counts() == (0, 0, 70, 0, 0)


async def test_a_reset_empties_the_keys_window_and_leaves_open_leases(subject: Subject) -> None:
    await subject.reserve("a")
    await subject.renew("a", 30)
    await subject.store.reset(subject.account())
    balances = await subject.balances()
    assert counts(balances.key) == (0, 0, 0, 70, 1)
    assert counts(balances.tenant) == (1, 10, 30, 70, 1)
    await subject.store.reset(subject.account(), tenant_too=True)
    assert await subject.counts() == (0, 0, 0, 70, 1)
    await subject.settle("a", 50)
    assert await subject.counts() == (0, 0, 20, 0, 0)


async def test_a_refund_after_a_reset_takes_nothing_from_others(subject: Subject) -> None:
    await subject.reserve("a")
    await subject.store.reset(subject.account())
    await subject.reserve("b")
    balances = await subject.settle("a", refund=True)
    assert counts(balances.key) == counts(balances.tenant) == (1, 10, 0, 100, 1)


async def test_a_clock_that_is_set_back_loses_no_charge_and_time_goes_on(subject: Subject) -> None:
    limits = Limits(requests=1)
    await subject.reserve("a", limits)
    subject.clock.advance(-3600)
    refused = await subject.reserve("b", limits)
    assert [shortage.wait for shortage in refused.shortages] == [60.6]
    subject.clock.advance(60.599)
    assert not (await subject.reserve("b", limits)).admitted
    assert (await subject.balances()).key.concurrency == 0  # the lease expired meanwhile
    subject.clock.advance(0.001)
    assert (await subject.reserve("b", limits)).admitted


async def test_a_clock_that_is_set_back_and_right_again_forgets_nothing(subject: Subject) -> None:
    limits = Limits(requests=1)
    await subject.reserve("a", limits)
    subject.clock.advance(-3600)
    subject.clock.advance(5)
    await subject.reserve("b", limits)
    subject.clock.advance(3600)
    assert [shortage.wait for shortage in (await subject.reserve("c", limits)).shortages] == [55.6]


async def test_amounts_up_to_2_53_are_exact(subject: Subject) -> None:
    huge = 2**53
    limits = Limits(input_tokens=huge, output_tokens=huge)
    assert (await subject.reserve("a", limits, charge=(huge - 1, huge - 1))).admitted
    assert await subject.renew("a", huge - 7)
    assert await subject.counts() == (1, huge - 1, huge - 7, 6, 1)
    refused = await subject.reserve("b", limits, charge=(2, 2))
    assert [(shortage.used, shortage.asked) for shortage in refused.shortages] == [(huge - 1, 2)] * 2
    assert (await subject.reserve("b", limits, charge=(1, 1))).admitted


async def test_a_limit_of_0_admits_nothing_and_knows_no_moment(subject: Subject) -> None:
    refused = await subject.reserve("a", Limits(requests=0, output_tokens=0))
    assert [shortage.wait for shortage in refused.shortages] == [None, None]
    assert await subject.counts() == (0, 0, 0, 0, 0)


async def test_a_lowered_limit_refuses_until_enough_has_left(subject: Subject) -> None:
    for lease in "abcd":
        await subject.reserve(lease, charge=(10, 0))
        await subject.settle(lease)
        subject.clock.advance(10)
    (shortage,) = (await subject.reserve("e", Limits(requests=2))).shortages
    assert (shortage.used, shortage.limit) == (4, 2)
    assert shortage.wait == 40.6  # until the third has left


async def test_the_wait_for_output_counts_present_holds_as_staying(subject: Subject) -> None:
    limits = Limits(output_tokens=100)
    await subject.reserve("done", limits, charge=(0, 40))
    await subject.settle("done", 40)
    subject.clock.advance(3)
    await subject.reserve("running", limits, charge=(0, 60))
    (fits,) = (await subject.reserve("a", limits, charge=(0, 40))).shortages
    assert (fits.used, fits.wait) == (100, 57.6)
    (unknown,) = (await subject.reserve("a", limits, charge=(0, 41))).shortages
    assert (unknown.used, unknown.wait) == (100, None)


async def test_waiting_exactly_as_told_admits_and_a_millisecond_less_does_not(subject: Subject) -> None:
    # Exact to the millisecond because whole buckets leave, at whole seconds.
    chance, refusals = random.Random(11), 0
    limits = Limits(requests=12, input_tokens=300, output_tokens=500)
    while refusals < 50:
        key = secrets.token_hex(4)
        for number in range(chance.randint(5, 20)):
            name = f"{key}{number}"
            if (await subject.reserve(name, limits, key=key, charge=_random_charge(chance))).admitted:
                await subject.settle(name, chance.randint(0, 50), key=key)
            subject.clock.advance(chance.choice((0.0, 0.3, 1.0, 4.7)))
        charge = (chance.randint(0, 300), chance.randint(0, 500))
        refused = await subject.reserve(f"{key}x", limits, key=key, charge=charge)
        if refused.admitted:
            continue
        refusals += 1
        wait = max(shortage.wait or 0.0 for shortage in refused.shortages)
        assert wait > 0
        start = subject.clock.milliseconds
        for _ in range(3):  # asking again does not push the moment further away
            subject.clock.milliseconds += chance.randint(0, max(0, round(wait * 1000) - 1) // 4)
            again = await subject.reserve(f"{key}y", limits, key=key, charge=charge)
            left = max(shortage.wait or 0.0 for shortage in again.shortages)
            assert round(left * 1000) == start + round(wait * 1000) - subject.clock.milliseconds
        subject.clock.milliseconds = start + round(wait * 1000) - 1
        assert not (await subject.reserve(f"{key}x", limits, key=key, charge=charge)).admitted
        subject.clock.milliseconds += 1
        assert (await subject.reserve(f"{key}x", limits, key=key, charge=charge)).admitted


def _random_charge(chance: random.Random) -> tuple[int, int]:
    return chance.randint(0, 60), chance.randint(50, 100)


async def test_it_answers_a_ping(subject: Subject) -> None:
    await subject.store.ping()
