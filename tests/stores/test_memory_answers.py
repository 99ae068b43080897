"""Answers in memory stay within their bounds."""

import gc
import random
import tracemalloc

from mulgil.stores.memory_answers import MemoryAnswers


async def kept(store: MemoryAnswers, *keys: str) -> list[str]:
    return [key for key in keys if await store.get(key) is not None]


async def test_the_least_recently_used_go_first() -> None:
    store = MemoryAnswers(most_entries=3, most_bytes=1_000_000)
    for key in "abc":
        await store.put(key, b"x", 60)
    await store.get("a")
    await store.put("d", b"x", 60)
    assert await kept(store, *"abcd") == ["a", "c", "d"]
    assert store.held is not None
    assert store.held[0] == 3


async def test_an_entry_that_is_larger_than_all_there_may_be_is_not_kept() -> None:
    store = MemoryAnswers(most_entries=3, most_bytes=1_000)
    await store.put("a", b"x" * 1_001, 60)
    assert store.held == (0, 0)


async def test_one_that_is_replaced_is_counted_once() -> None:
    store = MemoryAnswers(most_entries=3, most_bytes=1_000_000)
    for size in (10, 1_000, 100):
        await store.put("a", b"x" * size, 60)
    await store.put("b", b"x" * 100, 60)
    assert store.held is not None
    one = store.held[1] // 2
    await store.put("a", b"x" * 100, 60)
    assert store.held == (2, 2 * one)


async def test_one_that_is_over_its_time_is_gone_with_its_bytes() -> None:
    time = [0.0]
    store = MemoryAnswers(most_entries=3, most_bytes=1_000_000, now=lambda: time[0])
    await store.put("a", b"x", 60)
    time[0] = 59.9
    assert await store.get("a") == b"x"
    time[0] = 60.0
    assert await store.get("a") is None
    assert store.held == (0, 0)


async def test_memory_stays_within_its_bound_whatever_is_kept() -> None:
    chance = random.Random(1)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    store = MemoryAnswers(most_entries=5_000, most_bytes=1_000_000)
    for number in range(20_000):
        await store.put(f"{number:064x}", bytes(chance.choice((10, 300, 5_000))), 60)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert store.held is not None
    assert store.held[1] <= 1_000_000
    assert grown < 1_300_000
