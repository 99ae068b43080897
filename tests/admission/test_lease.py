"""A lease is taken in one step and closed exactly once, whatever happens around it."""

import asyncio
from collections.abc import Sequence

import pytest
from harness import eventually

from mulgil.admission.lease import Lease, Leases
from mulgil.admission.policy import Balance, Charge, Limits
from mulgil.admission.store import Account, Balances, Decision, Report, Reservation, Settlement, StoreError
from mulgil.errors import LimiterUnavailableError, RateLimitError, RequestExceedsLimitError
from mulgil.stores.fallback import FallbackStore
from mulgil.stores.guard import GuardedStore
from mulgil.stores.memory import MemoryStore

ACCOUNT = Account("tenant", "key")
LIMITS = Limits(requests=10, input_tokens=1000, output_tokens=1000, concurrency=3)


class TroubledStore(MemoryStore):
    """A memory store between which and its caller the network is cut or slow."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = False
        self.loses_replies = False
        self.delay = 0.0
        self.steps = 0

    async def _trouble(self) -> None:
        self.steps += 1
        await asyncio.sleep(self.delay)
        if self.cut:
            raise StoreError("cut")

    def _reply(self) -> None:
        if self.loses_replies:
            raise StoreError("reply lost")

    async def reserve(self, reservation: Reservation) -> Decision:
        await self._trouble()
        decision = await super().reserve(reservation)
        self._reply()
        return decision

    async def settle(self, settlement: Settlement) -> Balances:
        await self._trouble()
        balances = await super().settle(settlement)
        self._reply()
        return balances

    async def renew(self, reports: Sequence[Report]) -> list[bool]:
        await self._trouble()
        return await super().renew(reports)


def leases(store: TroubledStore | None = None, *, ttl: float = 30.0) -> tuple[Leases, TroubledStore]:
    store = store or TroubledStore()
    return Leases(store, ttl=ttl, renew_interval=0.01), store


def opened(subject: Leases, limits: Limits = LIMITS) -> Lease:
    return subject.open(ACCOUNT, limits, limits)


async def used(store: TroubledStore) -> Balance:
    return (await store.balances(ACCOUNT)).key


async def test_it_is_reserved_and_settled_with_what_was_made() -> None:
    subject, store = leases()
    lease = opened(subject)
    await lease.reserve(Charge(100, 50))
    assert (await used(store)).held_tokens == 50
    lease.made = lambda: 7
    await lease.settle()
    await lease.settle(refund=True)
    found = await used(store)
    assert (found.requests, found.input_tokens, found.output_tokens, found.held_tokens, found.concurrency) == (
        1, 100, 7, 0, 0,
    )  # fmt: skip
    assert subject.live == 0
    assert lease.headers()["x-ratelimit-remaining-output-tokens"] == "993"


async def test_a_refund_leaves_no_trace() -> None:
    subject, store = leases()
    lease = opened(subject)
    await lease.reserve(Charge(100, 50))
    await lease.settle(refund=True)
    assert await used(store) == Balance()


async def test_a_refusal_says_which_limit_and_when() -> None:
    subject, _ = leases()
    await opened(subject).reserve(Charge(100, 900))
    with pytest.raises(RateLimitError) as refusal:
        await opened(subject).reserve(Charge(100, 101))
    assert refusal.value.type == "tokens"
    assert "output tokens per minute: Limit 1000, Used 900, Requested 101" in refusal.value.message
    assert refusal.value.headers["retry-after"] == "1"
    assert refusal.value.headers["x-ratelimit-remaining-output-tokens"] == "100"


async def test_what_can_never_fit_does_not_even_ask_the_store() -> None:
    subject, store = leases()
    with pytest.raises(RequestExceedsLimitError):
        await opened(subject).reserve(Charge(1001, 1))
    assert store.steps == 0


async def test_a_caller_cancelled_during_the_reservation_leaves_nothing_reserved() -> None:
    subject, store = leases()
    store.delay = 0.02
    for pause in (0.0, 0.01, 0.02, 0.021):
        lease = opened(subject)
        reserving = asyncio.create_task(lease.reserve(Charge(10, 10)))
        await asyncio.sleep(pause)
        reserving.cancel()
        await asyncio.wait([reserving])
        if not reserving.cancelled():  # too late: whoever has the lease settles it
            await lease.settle(refund=True)
    await subject.drain()
    found = await used(store)
    assert (found.held_tokens, found.concurrency) == (0, 0)
    assert found.requests == found.input_tokens == 0
    assert subject.live == 0


async def test_a_caller_cancelled_during_settlement_settles_all_the_same() -> None:
    subject, store = leases()
    lease = opened(subject)
    await lease.reserve(Charge(10, 10))
    lease.made = lambda: 4
    store.delay = 0.02
    settling = asyncio.create_task(lease.settle())
    await asyncio.sleep(0.005)
    settling.cancel()
    await asyncio.wait([settling])
    await subject.drain()
    found = await used(store)
    assert (found.output_tokens, found.held_tokens, found.concurrency) == (4, 0, 0)


async def test_a_store_that_does_not_answer_refuses_and_what_it_did_unseen_is_undone() -> None:
    subject, store = leases()
    store.loses_replies = True
    with pytest.raises(LimiterUnavailableError) as refusal:
        await opened(subject).reserve(Charge(10, 10))
    assert refusal.value.status == 503
    store.loses_replies = False
    await subject.drain()
    assert await used(store) == Balance()


async def test_a_settlement_is_repeated_until_the_store_is_back_and_charged_once() -> None:
    subject, store = leases()
    lease = opened(subject)
    await lease.reserve(Charge(10, 10))
    lease.made = lambda: 5
    store.loses_replies = True
    await lease.settle()
    await eventually(lambda: subject.counters.settle_retries >= 2)
    store.loses_replies = False
    await subject.drain()
    assert (await used(store)).output_tokens == 5
    assert subject.counters.settled == 1


async def test_a_settlement_is_given_up_when_the_lease_would_have_expired() -> None:
    subject, store = leases(ttl=0.2)
    lease = opened(subject)
    await lease.reserve(Charge(10, 10))
    store.cut = True
    await lease.settle()
    await eventually(lambda: subject.counters.settle_failures == 1)
    assert not subject._tasks


async def test_open_leases_are_renewed_in_one_step_with_what_was_made() -> None:
    subject, store = leases()
    subject.start()
    open_leases = [opened(subject) for _ in range(3)]
    for lease in open_leases:
        await lease.reserve(Charge(1, 10))
        lease.made = lambda: 6
    before = store.steps
    await asyncio.sleep(0.1)
    assert store.steps - before <= 11
    found = await used(store)
    assert (found.output_tokens, found.held_tokens) == (18, 12)
    for lease in open_leases:
        await lease.settle()
    await subject.drain()


async def test_a_renewal_that_fails_is_tried_again_at_the_next_turn() -> None:
    subject, store = leases()
    subject.start()
    lease = opened(subject)
    await lease.reserve(Charge(1, 10))
    store.cut = True
    await asyncio.sleep(0.05)
    store.cut = False
    lease.made = lambda: 3
    await asyncio.sleep(0.05)
    assert (await used(store)).output_tokens == 3
    await lease.settle()
    await subject.drain()


async def test_after_some_failures_nobody_waits_for_the_store_any_more_and_one_success_ends_that() -> None:
    clock = [0.0]
    store = TroubledStore()
    guarded = GuardedStore(store, threshold=3, cooldown=1.0, now=lambda: clock[0])
    subject = Leases(guarded, ttl=0.1, renew_interval=60)
    store.cut = True
    for _ in range(3):
        with pytest.raises(LimiterUnavailableError):
            await opened(subject).reserve(Charge(1, 1))
    await subject.drain()
    assert not guarded.available
    asked = store.steps
    for _ in range(100):
        with pytest.raises(LimiterUnavailableError):
            await opened(subject).reserve(Charge(1, 1))
    assert store.steps == asked
    store.cut = False
    clock[0] += 1.5
    await opened(subject).reserve(Charge(1, 1))
    assert guarded.available


async def test_with_local_fallback_each_replica_keeps_its_share_and_settles_where_it_reserved() -> None:
    shared, local = TroubledStore(), MemoryStore()
    subject = Leases(FallbackStore(GuardedStore(shared), local, replicas=2), ttl=30, renew_interval=0.01)
    before = opened(subject)
    await before.reserve(Charge(10, 10))
    shared.cut = True
    during = [opened(subject) for _ in range(2)]
    await during[0].reserve(Charge(10, 10))
    with pytest.raises(RateLimitError, match="Limit 1,"):
        await during[1].reserve(Charge(10, 10))
    during[0].made = before.made = lambda: 2
    await during[0].settle()
    await before.settle()
    shared.cut = False
    await eventually(lambda: subject.counters.settled == 2)
    assert (await local.balances(ACCOUNT)).key.output_tokens == 2
    assert (await shared.balances(ACCOUNT)).key.output_tokens == 2


async def test_an_idle_outage_stays_an_outage() -> None:
    store = TroubledStore()
    guarded = GuardedStore(store, threshold=1, cooldown=60)
    subject = Leases(guarded, ttl=0.05, renew_interval=0.01)
    subject.start()
    store.cut = True
    with pytest.raises(LimiterUnavailableError):
        await opened(subject).reserve(Charge(1, 1))
    await asyncio.sleep(0.1)
    assert not guarded.available
    await subject.drain()


async def test_an_unknown_fault_of_the_store_is_told_and_does_not_end_the_care_for_leases(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Faulty(TroubledStore):
        faults = 2

        async def renew(self, reports: Sequence[Report]) -> list[bool]:
            if self.faults:
                self.faults -= 1
                raise ZeroDivisionError("a fault")
            return await super().renew(reports)

    store = Faulty()
    subject = Leases(GuardedStore(store), ttl=30, renew_interval=0.01)
    subject.start()
    lease = opened(subject)
    await lease.reserve(Charge(1, 10))
    lease.made = lambda: 4
    await asyncio.sleep(0.1)
    assert (await used(store)).output_tokens == 4
    assert "a fault" in caplog.text
    await lease.settle()
    await subject.drain()


async def test_with_local_fallback_a_request_larger_than_the_share_is_told_that_the_store_is_away() -> None:
    shared = TroubledStore()
    subject = Leases(FallbackStore(GuardedStore(shared), MemoryStore(), replicas=10), ttl=1, renew_interval=1)
    shared.cut = True
    with pytest.raises(LimiterUnavailableError):
        await opened(subject).reserve(Charge(1, 101))
    await opened(subject).reserve(Charge(1, 100))


async def test_with_local_fallback_what_the_shared_store_did_unseen_is_undone_when_it_is_back() -> None:
    shared = TroubledStore()
    subject = Leases(FallbackStore(GuardedStore(shared), MemoryStore(), replicas=2), ttl=30, renew_interval=1)
    shared.loses_replies = True
    during = opened(subject)
    await during.reserve(Charge(10, 10))
    assert (await used(shared)).requests == 1
    shared.loses_replies = False
    await during.settle()
    after = opened(subject)
    await after.reserve(Charge(10, 10))
    await after.settle()
    found = await used(shared)
    assert (found.requests, found.input_tokens, found.concurrency) == (1, 10, 0)
