"""The cache keeps within its bounds, and fails nobody."""

import logging

import pytest

from mulgil.admission.store import StoreError
from mulgil.cache.control import ANY, CacheControl
from mulgil.cache.responses import CacheRules, ResponseCache
from mulgil.cache.sealing import Seal
from mulgil.engine.snapshot import ChoiceSnapshot, Snapshot
from mulgil.stores.memory_answers import MemoryAnswers

SEAL = Seal(b"the secret of the tests")
ANSWER = Snapshot((ChoiceSnapshot("hello", 1, "stop"),))


class Clock:
    """A time that the test sets."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Away:
    """A store that does not answer."""

    held = None

    def __init__(self) -> None:
        self.asked = 0

    async def get(self, key: str) -> bytes | None:
        self.asked += 1
        raise StoreError("away")

    async def put(self, key: str, value: bytes, ttl: float) -> None:
        self.asked += 1
        raise StoreError("away")

    async def close(self) -> None:
        pass


def memory() -> MemoryAnswers:
    return MemoryAnswers(most_entries=10, most_bytes=100_000)


async def test_an_answer_is_found_until_it_is_too_old_for_the_client_or_the_cache() -> None:
    clock = Clock()
    cache = ResponseCache(memory(), SEAL, CacheRules(ttl=100), clock)
    await cache.keep("key", 3, ANSWER)
    found = await cache.find("key", ANY)
    assert found is not None
    assert (found.choices, found.prompt_tokens) == (ANSWER.choices, 3)
    clock.now += 60
    assert await cache.find("key", CacheControl(max_age=60)) == found
    assert await cache.find("key", CacheControl(max_age=59)) is None
    clock.now += 41
    assert await cache.find("key", ANY) is None


async def test_an_answer_from_a_gateway_whose_clock_is_ahead_is_new() -> None:
    clock = Clock()
    store = memory()
    await ResponseCache(store, SEAL, CacheRules(), lambda: clock.now + 50).keep("key", 3, ANSWER)
    assert await ResponseCache(store, SEAL, CacheRules(), clock).find("key", CacheControl(max_age=1)) is not None


async def test_an_answer_that_is_too_large_is_not_kept() -> None:
    store = memory()
    cache = ResponseCache(store, SEAL, CacheRules(most_bytes=1_000))
    await cache.keep("small", 3, ANSWER)
    await cache.keep("large", 3, Snapshot((ChoiceSnapshot("x" * 1_000, 1, "stop"),)))
    assert await cache.find("small", ANY) is not None
    assert await cache.find("large", ANY) is None
    assert cache.counters.too_large == 1


async def test_an_entry_that_is_none_of_ours_is_ignored_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    store = memory()
    cache = ResponseCache(store, SEAL, CacheRules())
    await store.put("key", b"anything", 10)
    assert await cache.find("key", ANY) is None
    assert cache.counters.ignored == 1
    assert "ignored" in caplog.text
    await cache.keep("key", 3, ANSWER)
    assert await cache.find("key", ANY) is not None


async def test_a_store_that_is_away_fails_nobody_and_is_left_alone_for_a_moment(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    store = Away()
    cache = ResponseCache(store, SEAL, CacheRules())
    for _ in range(5):
        assert await cache.find("key", ANY) is None
        await cache.keep("key", 3, ANSWER)
    assert store.asked == 1
    assert cache.counters.unavailable == 1
    assert "away" in caplog.text
