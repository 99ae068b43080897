"""What `AnswerStore` promises, kept by every adapter."""

import asyncio
import secrets
from collections.abc import AsyncGenerator

import pytest
from storeservers import StoreServer

from mulgil.cache.store import AnswerStore
from mulgil.stores.memory_answers import MemoryAnswers
from mulgil.stores.redis_answers import RedisAnswers


@pytest.fixture(params=["memory", "valkey", "redis_6"])
async def store(request: pytest.FixtureRequest) -> AsyncGenerator[AnswerStore]:
    found: AnswerStore = MemoryAnswers(most_entries=100, most_bytes=1_000_000)
    if request.param != "memory":
        server: StoreServer = request.getfixturevalue(request.param)
        found = RedisAnswers(server.url, most_bytes=10_000)
    yield found
    await found.close()


def new_key() -> str:
    return secrets.token_hex(32)


async def test_what_is_kept_comes_back_byte_for_byte(store: AnswerStore) -> None:
    one, other = new_key(), new_key()
    value = bytes(range(256)) * 4
    await store.put(one, value, 60)
    assert await store.get(one) == value
    assert await store.get(other) is None


async def test_the_last_value_is_the_one_that_counts(store: AnswerStore) -> None:
    key = new_key()
    await store.put(key, b"first", 60)
    await store.put(key, b"last", 60)
    assert await store.get(key) == b"last"


async def test_a_value_is_gone_after_its_time(store: AnswerStore) -> None:
    key = new_key()
    await store.put(key, b"x", 0.05)
    assert await store.get(key) == b"x"
    await asyncio.sleep(0.1)
    assert await store.get(key) is None


async def test_many_at_once_do_not_meet(store: AnswerStore) -> None:
    keys = [new_key() for _ in range(50)]
    await asyncio.gather(*(store.put(key, key.encode(), 60) for key in keys))
    assert await asyncio.gather(*(store.get(key) for key in keys)) == [key.encode() for key in keys]
