"""Keys of a file and of Redis, as a running gateway sees them."""

import asyncio
import time
from pathlib import Path

import pytest
from harness import KEY, MODEL, Server, chat_body, serving, settings
from keyrecords import made, now
from pydantic import SecretStr
from storeservers import StoreServer

from mulgil.auth.file import KeyFile
from mulgil.auth.keys import digest
from mulgil.stores.redis_keys import RedisKeys


async def status(server: Server, key: str) -> int:
    return (await asked(server, key))[0]


async def asked(server: Server, key: str) -> tuple[int, str | None]:
    """Status and code."""
    headers = {"authorization": f"Bearer {key}"}
    answer = await server.client.post("/v1/chat/completions", json=chat_body(), headers=headers)
    return answer.status_code, None if answer.status_code == 200 else answer.json()["error"]["code"]


async def becomes(server: Server, key: str, wanted: int) -> float:
    """Seconds until *key* is answered so."""
    started = time.monotonic()
    async with asyncio.timeout(5):
        while await status(server, key) != wanted:
            await asyncio.sleep(0.02)
    return time.monotonic() - started


@pytest.mark.usefixtures("no_errors_logged")
async def test_edits_of_the_file_take_effect_within_two_seconds_without_a_restart(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.toml")
    key, record = made()
    await file.add(record)
    async with serving(settings(keys_file=file.path)) as server:
        assert await status(server, key) == 200
        assert await status(server, KEY) == 200, "those of MULGIL_API_KEYS work beside it"
        another, second = made(tenant="acme")
        await file.add(second)
        assert await becomes(server, another, 200) < 2
        await file.change(record.id, lambda old: old.model_copy(update={"disabled": True}))
        assert await becomes(server, key, 401) < 2
        assert await asked(server, key) == (401, "invalid_api_key")


async def test_a_broken_edit_changes_nothing(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.toml")
    key, record = made()
    await file.add(record)
    async with serving(settings(api_keys=(), keys_file=file.path)) as server:
        file.path.write_text("[[keys]")
        await asyncio.sleep(1.2)
        assert await status(server, key) == 200


async def test_a_key_may_use_its_models_only(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.toml")
    (right, allowed), (wrong, other) = made(models=(MODEL,)), made(models=("another",))
    await file.add(allowed)
    await file.add(other)
    async with serving(settings(keys_file=file.path)) as server:
        assert await asked(server, right) == (200, None)
        assert await asked(server, wrong) == (403, "model_not_allowed")


async def test_keys_in_redis_are_shared_and_changes_take_effect_within_seconds(store_server: StoreServer) -> None:
    store = RedisKeys(store_server.url)
    key, record = made()
    expiring, expires = made(expires=now(seconds=1))
    await store.add(record)
    await store.add(expires)
    chosen = settings(api_keys=(), redis_url=SecretStr(store_server.url))
    async with serving(chosen) as first, serving(chosen) as second:
        for server in (first, second):
            assert await status(server, key) == await status(server, expiring) == 200
        rotated = record.model_copy(update={"digest": digest(b"the new key")})
        await store.change(record.id, lambda _: rotated)
        for server in (first, second):
            assert await becomes(server, key, 401) < 3
            assert await status(server, expiring) == 401
    await store.close()


async def test_while_redis_is_away_known_keys_are_let_in_and_unknown_ones_are_told_within_half_a_second(
    store_server: StoreServer,
) -> None:
    store = RedisKeys(store_server.url)
    (known, first), (unknown, second) = made(), made()
    await store.add(first)
    await store.add(second)
    await store.close()
    chosen = settings(redis_url=SecretStr(store_server.url), limiter_on_failure="local")
    async with serving(chosen) as server:
        assert await status(server, known) == 200
        store_server.kill()
        for _ in range(3):
            started = time.monotonic()
            assert await asked(server, unknown) == (503, "keys_unavailable")
            assert time.monotonic() - started < 0.5
            assert await status(server, known) == 200
        assert await status(server, KEY) == 200
        assert await status(server, "sk-mg-whatever") == 401, "what cannot be a key of ours needs no look-up"
