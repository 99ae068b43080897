"""Keys of a shared store: what is remembered, for how long, and what happens while the store is away."""

import asyncio
import logging
import time

import pytest
from keyrecords import made, now

from mulgil.auth.cached import CachedKeys, Memory
from mulgil.auth.keys import KeyRecord, new_key
from mulgil.errors import KeysUnavailableError


class Book:
    """A directory that counts, and can be made slow or away."""

    def __init__(self, *records: KeyRecord) -> None:
        self.records = {record.digest: record for record in records}
        self.asked = 0
        self.away = False
        self.delay = 0.0

    async def by_digest(self, presented: str) -> KeyRecord | None:
        self.asked += 1
        await asyncio.sleep(self.delay)
        if self.away:
            raise KeysUnavailableError("The keys cannot be read.")
        return self.records.get(presented)


async def test_an_answer_is_remembered_whether_the_key_is_known_or_not() -> None:
    key, record = made()
    book = Book(record)
    keys = CachedKeys(book)
    for _ in range(5):
        assert await keys.find(key.encode()) == record.caller
    stranger = new_key().encode()
    for _ in range(5):
        assert await keys.find(stranger) is None
    assert book.asked == 2


async def test_a_change_takes_effect_when_what_is_remembered_is_not_fresh_any_more() -> None:
    key, record = made()
    book = Book(record)
    keys = CachedKeys(book, Memory(fresh=0.05))
    assert await keys.find(key.encode())
    book.records[record.digest] = record.model_copy(update={"disabled": True})
    assert await keys.find(key.encode())
    await asyncio.sleep(0.06)
    assert await keys.find(key.encode()) is None


async def test_expiry_is_exact_although_the_record_is_remembered() -> None:
    key, record = made(expires=now(seconds=0.1))
    keys = CachedKeys(Book(record), Memory(fresh=60))
    assert await keys.find(key.encode())
    await asyncio.sleep(0.11)
    assert await keys.find(key.encode()) is None


async def test_what_is_not_of_our_making_costs_no_round_trip() -> None:
    book = Book()
    keys = CachedKeys(book)
    for sent in (b"", b" ", b"caf\xe9", b"sk-mg-x", b"x" * 10_000):
        assert await keys.find(sent) is None
    assert book.asked == 0


async def test_what_is_remembered_is_bounded() -> None:
    pairs = [made() for _ in range(20)]
    keys = CachedKeys(Book(*(record for _, record in pairs)), Memory(known=5, unknown=7))
    for key, _ in pairs:
        await keys.find(key.encode())
        await keys.find(new_key().encode())
    assert (len(keys._known), len(keys._unknown), len(keys._asking)) == (5, 7, 0)


async def test_many_who_come_with_one_key_ask_once_and_none_who_leaves_ends_it_for_the_others() -> None:
    key, record = made()
    book = Book(record)
    book.delay = 0.02
    keys = CachedKeys(book)
    first, *others = [asyncio.create_task(keys.find(key.encode())) for _ in range(50)]
    await asyncio.sleep(0.005)
    first.cancel()
    assert await asyncio.gather(*others) == [record.caller] * 49
    assert book.asked == 1


async def test_while_the_store_is_away_known_keys_work_for_a_while_and_others_are_told_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    key, record = made()
    book = Book(record)
    keys = CachedKeys(book, Memory(fresh=0.02, grace=0.15, pause=0.02))
    stranger = new_key().encode()
    assert await keys.find(key.encode())
    assert await keys.find(stranger) is None
    book.away = True
    await asyncio.sleep(0.03)
    assert await keys.find(key.encode()) == record.caller
    with pytest.raises(KeysUnavailableError) as refused:
        await keys.find(stranger)
    assert (refused.value.status, refused.value.code) == (503, "keys_unavailable")
    assert "retry-after" in refused.value.headers
    await asyncio.sleep(0.15)
    with pytest.raises(KeysUnavailableError):
        await keys.find(key.encode())
    book.away = False
    await asyncio.sleep(0.03)
    assert await keys.find(key.encode()) == record.caller
    assert await keys.find(stranger) is None
    assert [entry.levelname for entry in caplog.records if entry.name == "mulgil.auth.cached"] == ["ERROR", "INFO"]


async def test_a_store_that_has_just_failed_is_left_alone() -> None:
    book = Book()
    book.away, book.delay = True, 0.1
    keys = CachedKeys(book, Memory(pause=10))
    with pytest.raises(KeysUnavailableError):
        await keys.find(new_key().encode())
    started = time.monotonic()
    for _ in range(100):
        with pytest.raises(KeysUnavailableError):
            await keys.find(new_key().encode())
    assert time.monotonic() - started < 0.1
    assert book.asked == 1


async def test_closing_ends_what_is_being_asked() -> None:
    book = Book()
    book.delay = 60
    keys = CachedKeys(book)
    asked = asyncio.create_task(keys.find(new_key().encode()))
    await asyncio.sleep(0.01)
    async with asyncio.timeout(1):
        await keys.close()
        with pytest.raises(asyncio.CancelledError):
            await asked
