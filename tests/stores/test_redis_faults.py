"""What a Redis store does when Redis, or the way to it, does not do what it should."""

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis.asyncio
from storeservers import VALKEY, StoreServer, proxied, running

from mulgil.admission.policy import Charge, Limits
from mulgil.admission.store import Account, Balances, Decision, Report, Reservation, Settlement, StoreError
from mulgil.stores.guard import GuardedStore
from mulgil.stores.redis import PREFIX, RedisStore

FREE = Limits()


def account(key: str = "key") -> Account:
    return Account(secrets.token_hex(8), key)


@asynccontextmanager
async def stores(url: str, **options: Any) -> AsyncGenerator[RedisStore]:
    store = RedisStore(url, **options)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def admin(server: StoreServer) -> AsyncGenerator[Any]:
    async with redis.asyncio.Redis.from_url(server.url, decode_responses=True) as client:
        yield client


async def reserve(store: RedisStore, who: Account, lease: str, limits: Limits = FREE) -> Decision:
    return await store.reserve(Reservation(lease, who, Charge(10, 100), limits, FREE))


async def settle(store: RedisStore, who: Account, lease: str, made: int = 0, *, refund: bool = False) -> Balances:
    return await store.settle(Settlement(Report(lease, who, made), refund=refund))


async def counts(store: RedisStore, who: Account) -> tuple[int, int, int, int, int]:
    found = (await store.balances(who)).key
    return found.requests, found.input_tokens, found.output_tokens, found.held_tokens, found.concurrency


async def in_time(step: Any, *, within: float = 0.4) -> StoreError:
    """The error of a step, which comes when it is promised."""
    begin = time.monotonic()
    with pytest.raises(StoreError) as caught:
        await step
    # A deadline that does not hold lasts for many seconds; a busy machine may be a little late.
    assert time.monotonic() - begin < within + 1
    return caught.value


async def test_steps_go_on_when_the_server_forgets_the_scripts(valkey: StoreServer) -> None:
    who = account()
    async with stores(valkey.url) as store, admin(valkey) as client:
        for step in (
            reserve(store, who, "a"),
            store.renew([Report("a", who, 5)]),
            settle(store, who, "a", 9),
            store.balances(who),
            store.reset(account()),
        ):
            await client.script_flush()
            await step
        assert await counts(store, who) == (1, 10, 9, 0, 0)


async def test_50_steps_right_after_the_scripts_were_forgotten_all_succeed_once(valkey: StoreServer) -> None:
    who = account()
    async with stores(valkey.url) as store, admin(valkey) as client:
        await store.balances(who)
        await client.script_flush()
        decisions = await asyncio.gather(*(reserve(store, who, str(number)) for number in range(50)))
        assert all(decision.admitted for decision in decisions)
        await client.script_flush()
        others = [account() for _ in range(150)]
        reports = [Report(str(number), who, 1) for number in range(50)] + [Report("x", other, 1) for other in others]
        assert await store.renew(reports) == [True] * 50 + [False] * 150
        assert await counts(store, who) == (50, 500, 50, 4950, 50)


async def test_pooled_connections_outlive_a_restart_of_the_server(store_server: StoreServer) -> None:
    who = account()
    async with stores(store_server.url) as store:
        await asyncio.gather(*(reserve(store, who, str(number)) for number in range(20)))
        await asyncio.to_thread(store_server.stop)
        await asyncio.to_thread(store_server.start)
        decisions = await asyncio.gather(*(reserve(store, who, str(number)) for number in range(20)))
        assert all(decision.admitted for decision in decisions)


async def test_while_a_killed_server_is_away_steps_fail_at_once_and_then_work_again(store_server: StoreServer) -> None:
    who = account()
    async with stores(store_server.url) as store:
        await reserve(store, who, "a")
        store_server.kill()
        for step in (
            reserve(store, who, "b"),
            store.renew([Report("a", who, 5)]),
            settle(store, who, "a"),
            store.balances(who),
            store.ping(),
            store.reset(who),
        ):
            await in_time(step)
        await asyncio.to_thread(store_server.start)
        assert (await reserve(store, who, "c")).admitted


async def test_a_black_hole_fails_every_step_in_time_and_heals_without_a_new_store(valkey: StoreServer) -> None:
    who = account()
    async with proxied(valkey) as proxy, stores(proxy.url, timeout=0.2, connections=4) as store:
        assert (await reserve(store, who, "a")).admitted
        proxy.hole = True
        begin = time.monotonic()
        await asyncio.gather(*(in_time(reserve(store, who, f"b{n}"), within=0.2) for n in range(40)))
        await in_time(store.renew([Report("a", who, 5)]), within=0.2)
        await in_time(store.ping(), within=0.2)
        assert time.monotonic() - begin < 1
        proxy.hole = False
        assert (await settle(store, who, "a", 7)).key.output_tokens == 7
        assert await counts(store, who) == (1, 10, 7, 0, 0)


async def test_a_server_that_never_answers_new_connections_is_given_up_in_time() -> None:
    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(ignore, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        async with stores(f"redis://user:hush@127.0.0.1:{port}/1", timeout=0.2) as store:
            await in_time(store.balances(account()), within=0.2)
            await in_time(store.renew([Report("a", account(), 1)]), within=0.2)


async def test_a_step_whose_reply_was_lost_is_repeated_and_counted_once(valkey: StoreServer) -> None:
    who = account()
    async with proxied(valkey) as proxy, stores(proxy.url, timeout=0.1) as store:
        await store.ping()

        async def twice(step: Any) -> Any:
            proxy.deaf = True
            with pytest.raises(StoreError):
                await step()
            proxy.deaf = False
            return await step()

        assert (await twice(lambda: reserve(store, who, "a"))).admitted
        assert await counts(store, who) == (1, 10, 0, 100, 1)
        assert await twice(lambda: store.renew([Report("a", who, 30)])) == [True]
        assert await counts(store, who) == (1, 10, 30, 70, 1)
        await twice(lambda: settle(store, who, "a", 45))
        assert await counts(store, who) == (1, 10, 45, 0, 0)
        await reserve(store, who, "b")
        await twice(lambda: settle(store, who, "b", refund=True))
        assert await counts(store, who) == (1, 10, 45, 0, 0)


async def test_nothing_is_sent_twice(valkey: StoreServer) -> None:
    who = account()
    async with proxied(valkey) as proxy, stores(proxy.url, timeout=0.1) as store, admin(valkey) as client:
        await store.ping()
        await store.balances(who)
        before = (await client.info("commandstats"))["cmdstat_evalsha"]["calls"]
        proxy.deaf = True
        for number in range(5):
            with pytest.raises(StoreError):
                await reserve(store, who, str(number))
        assert (await client.info("commandstats"))["cmdstat_evalsha"]["calls"] - before == 5


async def _cancelled_at_random(store: RedisStore, who: tuple[Account, ...], chance: random.Random) -> None:
    """One request whose task is cancelled somewhere; then it gives back what it may have taken."""
    payer, lease = chance.choice(who), secrets.token_hex(8)

    async def request() -> None:
        await reserve(store, payer, lease)
        await store.renew([Report(lease, payer, 0)])
        await store.balances(payer)
        await asyncio.sleep(1)

    task = asyncio.create_task(request())
    await asyncio.sleep(chance.random() * 0.15)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await settle(store, payer, lease, refund=True)


@pytest.mark.parametrize("connections", [4, 64])
async def test_cancelled_commands_never_answer_another_callers_and_leave_nothing_behind(
    valkey: StoreServer, connections: int
) -> None:
    chance = random.Random(5)
    one, other = account("one"), account("other")
    async with proxied(valkey) as proxy, stores(proxy.url, timeout=5, connections=connections) as store:
        # Each account's numbers say whose they are.
        await store.reserve(Reservation("mark", one, Charge(1, 0), FREE, FREE))
        await store.reserve(Reservation("mark", other, Charge(1_000_000, 0), FREE, FREE))
        proxy.delay = 0.01  # each way

        async def prove() -> None:
            while True:
                for payer, prompt in ((one, 1), (other, 1_000_000)):
                    found = (await store.balances(payer)).key
                    assert found.input_tokens % 1_000_000 == prompt % 1_000_000 + 10 * (found.requests - 1)
                    assert (found.input_tokens >= 1_000_000) == (payer is other)

        proving = [asyncio.create_task(prove()) for _ in range(3)]
        for _ in range(10):
            await asyncio.gather(*(_cancelled_at_random(store, (one, other), chance) for _ in range(50)))
        for task in proving:
            assert not task.done(), task.exception()
            task.cancel()
        await asyncio.gather(*proving, return_exceptions=True)
        proxy.delay = 0
        for payer in (one, other):
            assert await counts(store, payer) == (1, 1 if payer is one else 1_000_000, 0, 0, 1)
        await asyncio.gather(*store._runner._flights)  # of those who were cancelled last
        pool: Any = store._runner._client.connection_pool
        assert not pool._in_use_connections
        assert len(pool._available_connections) <= connections


async def test_a_timed_out_connection_is_closed_and_not_used_again(valkey: StoreServer) -> None:
    who = account()
    async with proxied(valkey) as proxy, stores(proxy.url, timeout=0.1, connections=1) as store:
        await store.ping()
        assert proxy.connections == 1
        proxy.delay = 0.2
        with pytest.raises(StoreError):
            await store.balances(who)
        proxy.delay = 0
        await asyncio.sleep(0.3)  # the late reply comes to nobody
        assert (await reserve(store, who, "a")).key.requests == 1
        assert proxy.connections == 2


async def test_more_steps_than_connections_wait_for_their_turn(valkey: StoreServer) -> None:
    who = account()
    async with proxied(valkey) as proxy, stores(proxy.url, timeout=5, connections=3) as store:
        proxy.delay = 0.002
        decisions = await asyncio.gather(*(reserve(store, who, str(number)) for number in range(60)))
        assert all(decision.admitted for decision in decisions)
        assert proxy.connections == 3


async def test_the_steps_of_one_moment_share_a_round_trip(valkey: StoreServer) -> None:
    async with stores(valkey.url) as store:
        found = await asyncio.gather(*(reserve(store, account(), "lease") for _ in range(16)))
        assert [decision.key.requests for decision in found] == [1] * 16
        pool: Any = store._runner._client.connection_pool
        assert len(pool._available_connections) == 1


async def test_steps_that_fail_in_one_round_trip_have_failed_once(valkey: StoreServer) -> None:
    async with proxied(valkey) as proxy, stores(proxy.url, timeout=0.1) as store:
        guarded = GuardedStore(store, threshold=2)
        proxy.hole = True
        for still_available in (True, False):
            failures = await asyncio.gather(*(guarded.balances(account()) for _ in range(10)), return_exceptions=True)
            assert all(isinstance(failure, StoreError) for failure in failures)
            assert len({id(failure) for failure in failures}) == 10
            assert guarded.available is still_available


async def test_one_call_that_fails_does_not_make_those_fail_that_went_with_it(valkey: StoreServer) -> None:
    broken, sound = account(), account()
    async with stores(valkey.url) as store, admin(valkey) as client:
        keys, _ = store._names(broken)
        await client.set(keys[0], "no hash")
        failure, found = await asyncio.gather(
            reserve(store, broken, "one"), reserve(store, sound, "two"), return_exceptions=True
        )
        assert isinstance(failure, StoreError)
        assert "WRONGTYPE" in str(failure)
        assert isinstance(found, Decision)
        assert found.key.requests == 1


async def test_a_store_that_is_closed_fails_what_is_under_way(valkey: StoreServer) -> None:
    async with proxied(valkey) as proxy, stores(proxy.url, timeout=5) as store:
        await store.ping()
        proxy.hole = True
        steps = [asyncio.create_task(store.balances(account())) for _ in range(3)]
        await asyncio.sleep(0.05)
        await store.close()
        failures = await asyncio.gather(*steps, return_exceptions=True)
        assert [str(failure) for failure in failures] == ["the store was closed"] * 3


async def test_waiting_for_a_connection_counts_as_part_of_the_step(valkey: StoreServer) -> None:
    async with proxied(valkey) as proxy, stores(proxy.url, timeout=0.2, connections=1) as store:
        await store.ping()
        proxy.hole = True
        begin = time.monotonic()
        await asyncio.gather(*(in_time(store.ping(), within=0.2) for _ in range(10)))
        assert time.monotonic() - begin < 1.2  # ten one after the other would take 2 s


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (("config_set", "maxmemory", "1"), "OutOfMemory|OOM"),
        (("replicaof", "127.0.0.1", 1), "read.?only"),
        (("config_set", "min-replicas-to-write", "1"), "NOREPLICAS"),
    ],
    ids=["out of memory", "read-only replica", "too few replicas"],
)
async def test_a_server_that_refuses_writes_is_an_error_that_says_why_and_heals(
    store_server: StoreServer, before: tuple[Any, ...], reason: str
) -> None:
    who = account()
    after = {"maxmemory": "0", "min-replicas-to-write": "0"}
    async with stores(store_server.url) as store, admin(store_server) as client:
        await reserve(store, who, "a")
        command, *args = before
        await getattr(client, command)(*args)
        for step in (reserve(store, who, "b"), store.renew([Report("a", who, 1)])):
            with pytest.raises(StoreError, match=f"(?i){reason}"):
                await step
        if command == "replicaof":
            await client.replicaof("NO", "ONE")
        else:
            await client.config_set(args[0], after[str(args[0])])
        assert (await settle(store, who, "a", 5)).key.output_tokens == 5
        assert await counts(store, who) == (1, 10, 5, 0, 0)


async def test_a_wrong_password_is_an_error_without_the_password() -> None:
    with running(VALKEY, "--requirepass", "right") as server:
        for login in ("wrong-secret", "some-user:wrong-secret"):
            user, _, password = login.rpartition(":")
            url = f"redis://{user}:{password}@127.0.0.1:{server.port}/0"
            async with stores(url) as store:
                error = await in_time(reserve(store, account(), "a"))
                assert "wrong-secret" not in f"{error} {error.__cause__} {error!r}"
        async with stores(server.url) as store:
            assert "Auth" in str(await in_time(store.ping()))
        async with stores(f"redis://:right@127.0.0.1:{server.port}/0") as store:
            await store.ping()


async def test_a_user_of_the_servers_access_lists_works_with_odd_characters_in_its_password() -> None:
    with running(VALKEY) as server:
        async with admin(server) as client:
            password = "p@ss:w/rd?#%"
            rules = ("on", f">{password}", f"~{PREFIX}*", "+@all")
            await client.execute_command("ACL", "SETUSER", "gateway", *rules)
        async with stores(f"redis://gateway:p%40ss%3Aw%2Frd%3F%23%25@127.0.0.1:{server.port}/0") as store:
            assert (await reserve(store, account(), "a")).admitted


async def test_no_key_lives_longer_than_two_minutes_beyond_its_last_use(store_server: StoreServer) -> None:
    async with stores(store_server.url) as store, admin(store_server) as client:
        for number in range(1000):
            await reserve(store, Account(f"t{number % 10}", f"key {number}"), f"a{number}")
            if number % 3 == 0:
                await settle(store, Account(f"t{number % 10}", f"key {number}"), f"a{number}", 5)
            elif number % 3 == 1:
                await settle(store, Account(f"t{number % 10}", f"key {number}"), f"a{number}", refund=True)
        refused = await reserve(store, Account("fresh", "fresh"), "x", Limits(requests=0))
        assert not refused.admitted
        await store.balances(Account("fresh", "fresh"))
        names = [name async for name in client.scan_iter(count=1000)]
        assert len(names) > 600
        lives = [await client.pttl(name) for name in names]
        assert all(0 < life <= 120_000 for life in lives)
        assert all(name.startswith(PREFIX) for name in names)
        # Of a tenant that never was admitted, nothing is kept.
        assert len({name.partition("}")[0] for name in names}) == 10


async def test_leases_expire_by_the_servers_own_clock(valkey: StoreServer) -> None:
    who = account()
    async with stores(valkey.url, lease_ttl=0.3) as store:
        await reserve(store, who, "a", Limits(concurrency=1))
        await asyncio.sleep(0.2)
        assert await store.renew([Report("a", who, 10)]) == [True]
        await asyncio.sleep(0.2)
        assert not (await reserve(store, who, "b", Limits(concurrency=1))).admitted
        await asyncio.sleep(0.2)
        assert (await reserve(store, who, "b", Limits(concurrency=1))).admitted
        assert await store.renew([Report("a", who, 20)]) == [False]


async def test_a_key_with_a_full_window_is_small(valkey: StoreServer) -> None:
    who, now = account(), [1_800_000_000.0]
    async with stores(valkey.url, clock=lambda: now[0]) as store, admin(valkey) as client:
        for second in range(200):
            now[0] += 1
            await store.reserve(Reservation(str(second), who, Charge(4_321, 2_000), FREE, FREE))
            await settle(store, who, str(second), 1_234)
        names = [name async for name in client.scan_iter(match="*window:*", count=1000)]
        sizes = {name: await client.hlen(name) for name in names}
        full = [name for name, size in sizes.items() if size == 63]  # 61 seconds, their sum, their span
        assert max(sizes.values()) == 63
        assert max([await client.memory_usage(name) for name in full]) < 2_000


def test_a_url_that_is_none_is_refused_without_being_repeated() -> None:
    for url in (
        "http://user:hush@host",
        "redis+other://:hush@host",
        "unix+cluster:///hush",
        "redis+sentinel://:hush@host",
        "redis+cluster://:hush@host:port",
        "redis://:hush@host:99999",
        "hush",
        "",
    ):
        with pytest.raises(ValueError) as caught:
            RedisStore(url)
        assert "hush" not in str(caught.value)


async def test_time_in_which_our_own_loop_was_busy_is_not_blamed_on_the_store(valkey: StoreServer) -> None:
    who = account()
    async with stores(valkey.url, timeout=0.2) as store:
        step = asyncio.create_task(reserve(store, who, "a"))
        for _ in range(5):
            await asyncio.sleep(0)
            time.sleep(0.15)  # noqa: ASYNC251 - the very thing that is tested
        assert (await step).admitted
