"""What every store of keys promises: the file, and a real Valkey."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from keyrecords import made, now
from redis.asyncio import Redis
from storeservers import StoreServer

from mulgil.auth.file import KeyFile
from mulgil.auth.keys import KeyRecord, ReplacedKey, digest
from mulgil.auth.source import KeyStore
from mulgil.errors import KeysUnavailableError
from mulgil.stores.redis_keys import RedisKeys


def database(server: StoreServer) -> str:
    """Of these tests alone, on a server that others use too."""
    return server.url.removesuffix("/0") + "/7"


async def emptied(server: StoreServer) -> RedisKeys:
    client = Redis.from_url(database(server))
    await client.flushdb()
    await client.aclose()
    return RedisKeys(database(server), timeout=5)


@pytest.fixture(params=["file", "redis"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[KeyStore]:
    kept: KeyStore = KeyFile(tmp_path / "keys.toml")
    if request.param == "redis":
        kept = await emptied(request.getfixturevalue("valkey"))
    await kept.add(made(id="first", created=now(days=-1))[1])
    yield kept
    await kept.close()


async def test_what_is_added_is_there(store: KeyStore) -> None:
    _, record = made(
        tenant="acme", tier="gold", models=("a", "モデル"), expires=now(days=1), disabled=True,
        replaced=ReplacedKey(digest=digest(b"old"), valid_until=now(hours=1)),
    )  # fmt: skip
    assert await store.add(record)
    assert await store.get(record.id) == record
    assert [found.id for found in await store.list()] == ["first", record.id]


async def test_an_id_that_is_taken_is_not_taken_again(store: KeyStore) -> None:
    before = await store.get("first")
    assert not await store.add(made(id="first", tenant="other")[1])
    assert await store.get("first") == before


@pytest.mark.parametrize("key_id", ["", "nobody", "../../etc/passwd", "\x00", "키"])
async def test_what_is_not_there_is_none(store: KeyStore, key_id: str) -> None:
    assert await store.get(key_id) is None
    assert await store.change(key_id, lambda record: record) is None
    assert await store.delete(key_id) is None
    assert len(await store.list()) == 1


async def test_a_change_is_there_and_so_is_all_that_was_not_changed(store: KeyStore) -> None:
    before = await store.get("first")
    assert before is not None
    after = await store.change("first", lambda record: record.model_copy(update={"tier": "gold"}))
    assert after == before.model_copy(update={"tier": "gold"})
    assert await store.get("first") == after


async def test_what_is_deleted_is_gone_and_given_back_once(store: KeyStore) -> None:
    before = await store.get("first")
    assert await store.delete("first") == before
    assert await store.delete("first") is None
    assert list(await store.list()) == []


async def test_changes_at_the_same_time_are_all_made(store: KeyStore) -> None:
    def one_more(record: KeyRecord) -> KeyRecord:
        return record.model_copy(update={"models": (*(record.models or ()), f"m{len(record.models or ())}")})

    await asyncio.gather(*(store.change("first", one_more) for _ in range(5)))
    record = await store.get("first")
    assert record is not None
    assert record.models == ("m0", "m1", "m2", "m3", "m4")


async def test_a_record_is_found_by_its_digest_and_the_one_before_and_by_none_that_is_gone(valkey: StoreServer) -> None:
    store = await emptied(valkey)
    old, record = made()
    new = digest(b"a new key")
    await store.add(record)
    assert await store.by_digest(record.digest) == record
    rotated = record.model_copy(
        update={"digest": new, "replaced": ReplacedKey(digest=record.digest, valid_until=now(hours=1))}
    )
    await store.change(record.id, lambda _: rotated)
    assert await store.by_digest(new) == await store.by_digest(digest(old.encode())) == rotated
    await store.change(record.id, lambda found: found.model_copy(update={"replaced": None}))
    assert await store.by_digest(record.digest) is None
    await store.delete(record.id)
    assert await store.by_digest(new) is None
    client = Redis.from_url(database(valkey))
    assert await client.dbsize() == 0, "nothing is left"
    await client.aclose()
    await store.close()


async def test_a_record_that_cannot_be_read_is_said_and_not_repeated(valkey: StoreServer) -> None:
    store = await emptied(valkey)
    client: Any = Redis.from_url(database(valkey))
    await client.hset("mulgil:1:{keys}:records", "key_1", '{"id": "key_1", "digest": "SECRET"}')
    for step in (store.get("key_1"), store.list(), store.delete("key_1")):
        with pytest.raises(KeysUnavailableError, match="digest") as refused:
            await step
        assert "SECRET" not in str(refused.value)
    await client.aclose()
    await store.close()


async def test_a_store_that_is_away_is_said(store_server: StoreServer) -> None:
    store = RedisKeys(store_server.url)
    await store.add(made(id="k")[1])
    store_server.kill()
    for step in (store.get("k"), store.list(), store.delete("k"), store.add(made()[1]), store.by_digest(digest(b"x"))):
        with pytest.raises(KeysUnavailableError):
            await step
    store_server.start()
    assert await store.get("k") is None, "it has no persistence, but it answers"
    await store.close()
