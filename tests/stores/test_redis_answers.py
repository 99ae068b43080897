"""Answers that gateways share in Redis: whatever lies there, and whatever happens to it, no request suffers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from cached import cached, generations
from harness import Server, settings
from pydantic import SecretStr
from storeservers import StoreServer, proxied

SECRET = SecretStr("the secret of the tests")


def shared_by(server: StoreServer, **changes: Any) -> dict[str, Any]:
    return {"response_cache_url": SecretStr(server.url), "response_cache_secret": SECRET} | changes


async def told(server: Server, content: str = "hello") -> tuple[str, str]:
    """Where the answer was from, and the answer."""
    reply = await server.chat(content, temperature=0)
    assert reply.status_code == 200, reply.text
    return reply.headers["x-mulgil-cache"], reply.json()["choices"][0]["message"]["content"]


async def test_what_one_gateway_has_made_another_tells(store_server: StoreServer, tmp_path: Path) -> None:
    async with cached(tmp_path, **shared_by(store_server)) as one, cached(tmp_path, **shared_by(store_server)) as other:
        made = await told(one)
        assert made[0] == "miss"
        assert await told(other) == ("hit", made[1])
        assert generations(other) == 0


async def test_one_that_has_another_secret_or_serves_another_way_does_not(
    store_server: StoreServer, tmp_path: Path
) -> None:
    async with cached(tmp_path, **shared_by(store_server)) as one:
        await told(one)
    for other_way in ({"response_cache_secret": SecretStr("another secret, as long")}, {"default_max_tokens": 99}):
        async with cached(tmp_path, **shared_by(store_server, **other_way)) as other:
            assert (await told(other))[0] == "miss"


async def test_a_hundred_at_once_are_one_generation(store_server: StoreServer, tmp_path: Path) -> None:
    async with cached(tmp_path, **shared_by(store_server)) as server:
        found = await asyncio.gather(*(told(server) for _ in range(100)))
        assert generations(server) == 1
        assert len({text for _, text in found}) == 1


async def test_entries_that_were_changed_cut_off_or_are_anothers_are_ignored(
    store_server: StoreServer, tmp_path: Path
) -> None:
    async with (
        cached(tmp_path, **shared_by(store_server)) as server,
        redis.asyncio.Redis.from_url(store_server.url) as client,
    ):
        right = (await told(server))[1]
        await told(server, "another question")
        one, other = sorted(await client.keys("mulgil:1:answer:*"))
        values: dict[Any, Any] = {key: await client.get(key) for key in (one, other)}
        for forged in (
            values[one][:-5],
            values[one] + b" ",
            values[one].replace(b'"prompt_tokens":', b'"prompt_tokenz":'),
            b"",
            b"x" * 3_000_000,
            None,
        ):
            for key in (one, other):
                await client.delete(key)
                if forged is None:
                    await client.rpush(key, "a list")
                else:
                    await client.set(key, forged)
            where, text = await told(server)
            assert (where, text) == ("miss", right)
            # It has taken the place of what was there.
            assert await told(server) == ("hit", right)
            await told(server, "another question")
        # Each in the place of the other.
        for key, value in ((one, values[other]), (other, values[one])):
            await client.set(key, value)
        assert await told(server) == ("miss", right)
        assert server.mulgil.answers._cache.counters.ignored >= 5


async def test_entries_have_a_time_to_live_and_say_nothing_of_whom_they_are_for(
    store_server: StoreServer, tmp_path: Path
) -> None:
    async with (
        cached(tmp_path, **shared_by(store_server, response_cache_ttl=100)) as server,
        redis.asyncio.Redis.from_url(store_server.url) as client,
    ):
        await told(server, "a question")
        (key,) = await client.keys("*answer*")
        assert 90 < await client.ttl(key) <= 100
        assert b"question" not in key
        assert b"default" not in key


async def test_a_store_that_goes_away_costs_answers_and_no_request(store_server: StoreServer, tmp_path: Path) -> None:
    async with cached(tmp_path, **shared_by(store_server)) as server:
        await told(server)
        store_server.kill()
        for _ in range(3):
            assert (await told(server))[0] == "miss"
        assert server.mulgil.answers._cache.counters.unavailable >= 1


async def test_a_store_that_does_not_answer_holds_nobody_for_long(valkey: StoreServer, tmp_path: Path) -> None:
    async with proxied(valkey) as proxy:
        given: dict[str, Any] = {
            "response_cache_url": SecretStr(proxy.url),
            "response_cache_secret": SECRET,
            "store_timeout": 0.1,
        }
        async with cached(tmp_path, **given) as server:
            proxy.hole = True
            async with asyncio.timeout(3):
                assert [(await told(server))[0] for _ in range(5)] == ["miss"] * 5
            assert server.mulgil.answers._cache.counters.unavailable <= 5


@pytest.mark.parametrize("secret", [None, SecretStr("short")])
def test_without_a_secret_answers_are_not_shared(secret: SecretStr | None) -> None:
    chosen = settings(response_cache_url=SecretStr("redis://127.0.0.1:1/0"), response_cache_secret=secret)
    with pytest.raises(ValueError, match="response_cache_secret"):
        chosen.check()
