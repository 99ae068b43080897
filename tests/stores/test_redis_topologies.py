"""Cluster, Sentinel and TLS: real ones, on the loopback."""

import asyncio
import contextlib
import secrets
import shutil
import ssl
import subprocess
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from storeservers import VALKEY, StoreServer, free_port, proxied, running

from mulgil.admission.policy import Charge, Limits
from mulgil.admission.store import Account, Report, Reservation, Settlement, StoreError
from mulgil.stores.redis import RedisStore

LIMITS = Limits(requests=100, input_tokens=1000, output_tokens=1000, concurrency=3)
SLOTS = 16384


def reservation(account: Account, lease: str) -> Reservation:
    return Reservation(lease, account, Charge(10, 100), LIMITS, LIMITS)


async def command(server: StoreServer, *words: Any) -> Any:
    client: Any  # partly untyped
    async with redis.asyncio.Redis.from_url(server.url, decode_responses=True) as client:
        return await client.execute_command(*words)


async def until(condition: Any, *, within: float = 20.0) -> None:
    async with asyncio.timeout(within):
        while not await condition():
            await asyncio.sleep(0.05)


@asynccontextmanager
async def cluster(*, replicas: int = 0) -> AsyncGenerator[list[StoreServer]]:
    """Three primaries, and so many replicas of the first."""
    with ExitStack() as stack:
        options = "--cluster-enabled yes --cluster-node-timeout 500 --cluster-require-full-coverage no --cluster-port"
        buses = [free_port() for _ in range(3 + replicas)]
        nodes = [stack.enter_context(running(VALKEY, *options.split(), str(bus))) for bus in buses]
        for number, node in enumerate(nodes[:3]):
            first, last = SLOTS * number // 3, SLOTS * (number + 1) // 3 - 1
            await command(node, "CLUSTER", "ADDSLOTSRANGE", first, last)
            await command(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node, bus in zip(nodes[1:], buses[1:], strict=True):
            await command(nodes[0], "CLUSTER", "MEET", "127.0.0.1", node.port, bus)

        async def agreed() -> bool:
            known = [await command(node, "CLUSTER", "INFO") for node in nodes]
            told = ("cluster_state:ok", "cluster_slots_ok:16384", f"cluster_known_nodes:{len(nodes)}")
            return all(line in info for info in known for line in told)

        await until(agreed)
        first_id = await command(nodes[0], "CLUSTER", "MYID")
        for node in nodes[3:]:
            await command(node, "CLUSTER", "REPLICATE", first_id)
            await until(lambda node=node: in_sync(node))
        yield nodes


async def in_sync(node: StoreServer) -> bool:
    return bool((await command(node, "INFO", "replication")).get("master_link_status") == "up")


def cluster_url(nodes: list[StoreServer]) -> str:
    return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


async def test_in_a_cluster_every_step_finds_its_slot_and_a_batch_many() -> None:
    tenants = [Account(f"tenant {number}", f"key {number % 3}") for number in range(100)]
    async with cluster() as nodes:
        store = RedisStore(cluster_url(nodes[:2]), timeout=5)
        decisions = await asyncio.gather(*(store.reserve(reservation(who, "a")) for who in tenants))
        assert all(decision.admitted for decision in decisions)
        assert await store.renew([Report("a", who, 7) for who in tenants]) == [True] * 100
        for node in nodes:
            assert await command(node, "DBSIZE") > 30
            await command(node, "SCRIPT", "FLUSH")
        assert await store.renew([Report("a", who, 9) for who in tenants]) == [True] * 100
        for node in nodes:
            await command(node, "SCRIPT", "FLUSH")
        balances = await asyncio.gather(*(store.settle(Settlement(Report("a", who, 20))) for who in tenants))
        assert {(one.key.output_tokens, one.tenant.held_tokens) for one in balances} == {(20, 0)}
        await store.reset(tenants[0], tenant_too=True)
        assert (await store.balances(tenants[0])).tenant.requests == 0
        await store.ping()

        # A slot moves: the store follows.
        who = tenants[1]
        key = next(iter(await keys_of(nodes, store, who)))
        await move_slot(nodes, int(await command(nodes[0], "CLUSTER", "KEYSLOT", key)), len(nodes))
        assert (await store.balances(who)).key.output_tokens == 0  # its keys did not come along
        assert (await store.reserve(reservation(who, "b"))).admitted
        await store.close()


async def keys_of(nodes: list[StoreServer], store: RedisStore, who: Account) -> tuple[str, ...]:
    return store._call(store._balances, who).keys


async def move_slot(nodes: list[StoreServer], slot: int, count: int) -> None:
    owner = slot * count // SLOTS
    taker = nodes[(owner + 1) % count]
    taker_id = await command(taker, "CLUSTER", "MYID")
    for key in await command(nodes[owner], "CLUSTER", "GETKEYSINSLOT", slot, 100):
        await command(nodes[owner], "DEL", key)
    for node in (taker, *nodes):
        await command(node, "CLUSTER", "SETSLOT", slot, "NODE", taker_id)


async def test_when_a_clusters_primary_dies_its_steps_fail_in_time_and_work_again_on_the_replica() -> None:
    async with cluster(replicas=1) as nodes:
        store = RedisStore(cluster_url(nodes), timeout=0.4)
        # Of the first node's slots, and of another's.
        found: dict[int, Account] = {}
        for number in range(1000):
            who = Account(f"tenant {number}", "key")
            (key, *_) = await keys_of(nodes, store, who)
            slot = redis.asyncio.RedisCluster.keyslot(store._runner._client, key)
            found.setdefault(slot * 3 // SLOTS, who)
        assert (await store.reserve(reservation(found[0], "a"))).admitted
        nodes[0].kill()
        outage = await until_it_works_again(store, found[0])
        assert outage > 0
        assert (await store.balances(found[1])).key.requests <= 1
        await store.close()


async def test_a_whole_cluster_that_is_away_is_a_store_error_at_start_and_later() -> None:
    who = Account("tenant", "key")
    async with cluster() as nodes:
        store = RedisStore(cluster_url(nodes), timeout=0.4)
        assert (await store.reserve(reservation(who, "a"))).admitted
        for node in nodes:
            node.kill()
        late = RedisStore(cluster_url(nodes), timeout=0.4)
        for _ in range(4):
            for one in (store, late):
                with pytest.raises(StoreError):
                    await one.reserve(reservation(who, "b"))
                with pytest.raises(StoreError):
                    await one.balances(who)
        await store.close()
        await late.close()


async def until_it_works_again(store: RedisStore, who: Account) -> float:
    """How long steps failed; each fails in time."""
    begin = time.monotonic()
    async with asyncio.timeout(20):
        for attempt in range(10_000):
            asked = time.monotonic()
            try:
                assert (await store.reserve(reservation(who, f"after {secrets.token_hex(4)} {attempt}"))).admitted
            except StoreError:
                assert time.monotonic() - asked < 1.4  # the deadline of 0.4 s, on a busy machine
                await asyncio.sleep(0.05)
            else:
                break
    return time.monotonic() - begin


@asynccontextmanager
async def sentinel(folder: Path) -> AsyncGenerator[tuple[StoreServer, StoreServer, str]]:
    """A primary, its replica, and the URL that finds them by one Sentinel (and one that is not there)."""
    with running(VALKEY) as primary, running(VALKEY, "--replicaof", "127.0.0.1", str(primary.port)) as replica:
        await until(lambda: in_sync(replica))
        config = folder / "sentinel.conf"
        config.write_text(
            f"sentinel monitor budgets 127.0.0.1 {primary.port} 1\n"
            "sentinel down-after-milliseconds budgets 500\n"
            "sentinel failover-timeout budgets 2000\n"
        )
        with sentinel_server(config) as watcher:

            async def knows_the_replica() -> bool:
                return len(await command(watcher, "SENTINEL", "REPLICAS", "budgets")) == 1

            await until(knows_the_replica)
            yield primary, replica, f"redis+sentinel://127.0.0.1:1,127.0.0.1:{watcher.port}/budgets?db=2"


@contextlib.contextmanager
def sentinel_server(config: Path) -> Any:
    with contextlib.closing(_Sentinel(config)) as server:
        server.start()
        yield server


class _Sentinel(StoreServer):
    def __init__(self, config: Path) -> None:
        super().__init__(VALKEY, config.parent)
        self._command = [str(VALKEY), str(config), "--sentinel", "--port", str(self.port), "--bind", "127.0.0.1"]

    def close(self) -> None:
        self.kill()


async def test_behind_sentinel_steps_fail_in_time_while_the_primary_is_dead_and_then_work_again(
    tmp_path: Path,
) -> None:
    who = Account("tenant", "key")
    async with sentinel(tmp_path) as (primary, replica, url):
        store = RedisStore(url)
        assert (await store.reserve(reservation(who, "a"))).admitted
        assert "db2" in await command(primary, "INFO", "keyspace")
        await until(lambda: has_keys(replica))
        primary.kill()
        assert await until_it_works_again(store, who) > 0.4
        # What the replica had heard of is still charged.
        balances = await store.settle(Settlement(Report("a", who, 30)))
        assert (balances.key.requests, balances.key.output_tokens) == (2, 30)
        await store.close()


async def has_keys(server: StoreServer) -> bool:
    return "db2" in await command(server, "INFO", "keyspace")


async def test_without_any_sentinel_a_step_fails_in_time() -> None:
    store = RedisStore("redis+sentinel://:hush@127.0.0.1:1,127.0.0.1:2/budgets?sentinel_password=hush")
    with pytest.raises(StoreError) as caught:
        await store.balances(Account("tenant", "key"))
    assert "MasterNotFound" in str(caught.value)
    assert "hush" not in f"{caught.value} {caught.value.__cause__}"
    await store.close()


@pytest.mark.skipif(
    shutil.which("openssl") is None, reason="makes its certificate with openssl: install it to run this"
)
async def test_tls_is_checked_against_the_given_authority(tmp_path: Path, valkey: StoreServer) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    await asyncio.to_thread(
        subprocess.run,
        [
            *"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost".split(),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    who = Account(secrets.token_hex(8), "key")
    async with proxied(valkey, tls=tls) as proxy:
        base = f"rediss://127.0.0.1:{proxy.port}/0"
        store = RedisStore(f"{base}?ssl_ca_certs={certificate}")
        assert (await store.reserve(reservation(who, "a"))).admitted
        await store.close()
        distrustful = RedisStore(base)
        with pytest.raises(StoreError, match="CERTIFICATE_VERIFY_FAILED"):
            await distrustful.balances(who)
        await distrustful.close()
