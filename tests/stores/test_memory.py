"""The memory store forgets whom it has not seen for a while."""

import gc
import tracemalloc

from mulgil.admission.policy import Charge, Limits
from mulgil.admission.store import Account, Report, Reservation, Settlement
from mulgil.stores.memory import MemoryStore


async def once(store: MemoryStore, account: Account, lease_id: str, *, settled: bool = True) -> None:
    await store.reserve(Reservation(lease_id, account, Charge(10, 10), Limits(), Limits()))
    if settled:
        await store.settle(Settlement(Report(lease_id, account, 5)))


async def test_memory_does_not_grow_with_keys_that_were_used_once() -> None:
    time = [1_000_000.0]
    store = MemoryStore(now=lambda: time[0])

    async def a_crowd(number: int) -> None:
        for caller in range(500):
            time[0] += 0.3
            name = f"{number}-{caller}"
            await once(store, Account("shared", name), f"a{name}", settled=caller % 2 == 0)
            await once(store, Account(name, name), f"b{name}", settled=caller % 2 == 0)

    await a_crowd(0)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(1, 6):
        await a_crowd(number)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(store._tenants) < 500
    # Some 400 tenants and keys are within their window at any time; 5,000 came by.
    assert grown < 5_000_000


async def test_after_two_windows_nothing_is_left_but_who_asks() -> None:
    time = [1_000_000.0]
    store = MemoryStore(now=lambda: time[0])
    for number in range(1000):
        await once(store, Account("shared", str(number)), str(number), settled=number % 2 == 0)
    time[0] += 122
    for number in range(400):
        await once(store, Account("shared", "last"), f"last {number}")
    assert set(store._tenants["shared"]._keys) == {"last"}
    assert not store._tenants["shared"]._leases


async def test_a_key_that_only_renews_is_not_forgotten() -> None:
    time = [1_000_000.0]
    store = MemoryStore(now=lambda: time[0])
    running = Account("shared", "running")
    await once(store, running, "long", settled=False)
    for number in range(100):
        time[0] += 5
        await store.renew([Report("long", running, 0)])
        await once(store, Account("shared", f"other {number}"), str(number))
    assert (await store.balances(running)).key.concurrency == 1
