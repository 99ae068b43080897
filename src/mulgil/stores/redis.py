"""Budgets in Redis or Valkey: shared by any number of gateways, exact whatever their clocks say."""

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache

from mulgil.admission.policy import Balance, Dimension, Limits, Scope, Shortage
from mulgil.admission.store import Account, Balances, Decision, Report, Reservation, Settlement, StoreError
from mulgil.stores.redis_clients import connect
from mulgil.stores.redis_scripts import Call, Script, ScriptRunner

PREFIX = "mulgil:1:"
"""Of every key. The number is that of the layout, which lua/account_v1.lua describes."""

_PRELUDE = "account_v1.lua"
_SCOPES: tuple[Scope, ...] = ("key", "tenant")
_DIMENSIONS: tuple[Dimension, ...] = ("requests", "input_tokens", "output_tokens", "concurrency")
# Keys live two windows beyond their last use.
_KEEP = 120_000
_LEASES_PER_CALL = 200
_NAMES_KEPT = 10_000


class RedisStore:
    """A `BudgetStore` in Redis 6.2 or later, or Valkey: standalone, behind Sentinel, or a Cluster.

    Every step is one script. The server must not evict keys (`maxmemory-policy noeviction`): an evicted
    window is a budget that begins anew.

    Args:
        url: where; see `redis_clients.connect`.
        timeout: seconds that one step may take, waiting for a connection included.
        connections: most steps at the same time; more wait.
        lease_ttl: seconds after which a lease that is not renewed expires.
        clock: for tests: a time in seconds instead of the server's.

    Raises:
        ValueError: the URL is none.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 0.4,
        connections: int = 32,
        lease_ttl: float = 30.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._runner = ScriptRunner(
            connect(url, connections=connections, timeout=timeout), connections=connections, timeout=timeout
        )
        self._lease_ttl = round(lease_ttl * 1000)
        self._keep = max(_KEEP, _KEEP // 2 + self._lease_ttl)
        self._clock = clock
        self._names = lru_cache(_NAMES_KEPT)(_names)
        self._reserve, self._renew, self._settle, self._balances, self._reset = (
            Script.of_files(_PRELUDE, f"{step}_v1.lua") for step in ("reserve", "renew", "settle", "balances", "reset")
        )

    async def reserve(self, reservation: Reservation) -> Decision:
        charge, key, tenant = reservation.charge, reservation.key_limits, reservation.tenant_limits
        reply = await self._runner.run(
            self._call(
                self._reserve,
                reservation.account,
                charge.input_tokens,
                charge.output_tokens,
                *_limits(key),
                *_limits(tenant),
                lease=reservation.lease_id,
            )
        )
        if reply is None:
            raise StoreError("the lease was given back before it was reserved")
        balances = _balances(reply[0])
        shortages = tuple(_shortage(found, reservation) for found in reply[1:])
        return Decision(shortages, balances.key, balances.tenant)

    async def renew(self, reports: Sequence[Report]) -> list[bool]:
        accounts: dict[Account, list[int]] = {}
        for index, report in enumerate(reports):
            accounts.setdefault(report.account, []).append(index)
        parts = [
            (account, indexes[start : start + _LEASES_PER_CALL])
            for account, indexes in accounts.items()
            for start in range(0, len(indexes), _LEASES_PER_CALL)
        ]
        calls = [
            self._call(
                self._renew,
                account,
                *(part for index in indexes for part in (reports[index].lease_id, reports[index].output_tokens)),
            )
            for account, indexes in parts
        ]
        kept = [False] * len(reports)
        for (_, indexes), reply in zip(parts, await self._runner.run_all(calls), strict=True):
            for index, alive in zip(indexes, reply, strict=True):
                kept[index] = bool(alive)
        return kept

    async def settle(self, settlement: Settlement) -> Balances:
        report = settlement.report
        refund = "1" if settlement.refund else ""
        call = self._call(self._settle, report.account, report.output_tokens, refund, lease=report.lease_id)
        return _balances(await self._runner.run(call))

    async def balances(self, account: Account) -> Balances:
        return _balances(await self._runner.run(self._call(self._balances, account)))

    async def reset(self, account: Account, *, tenant_too: bool = False) -> None:
        await self._runner.run(self._call(self._reset, account, "1" if tenant_too else ""))

    async def ping(self) -> None:
        await self._runner.ping()

    async def close(self) -> None:
        await self._runner.close()

    def _call(self, script: Script, account: Account, *args: str | int, lease: str = "") -> Call:
        keys, name = self._names(account)
        clock = "" if self._clock is None else round(self._clock() * 1000)
        return Call(
            script,
            keys,
            (clock, self._lease_ttl, self._keep, name, lease, *args),
        )


def _names(account: Account) -> tuple[tuple[str, ...], str]:
    """The keys of an account, all with its tenant's hash tag, and its key's name in the state."""
    tenant, key = _hashed(account.tenant), _hashed(account.key)
    base = f"{PREFIX}{{{tenant}}}:"
    return (f"{base}state", f"{base}expiries", f"{base}window", f"{base}window:{key}"), key


def _hashed(name: str) -> str:
    """A name of any length and any characters as one that is neither long nor odd."""
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _limits(limits: Limits) -> tuple[str | int, ...]:
    values = (limits.requests, limits.input_tokens, limits.output_tokens, limits.concurrency)
    return tuple("" if value is None else value for value in values)


def _balances(reply: bytes) -> Balances:
    numbers = [int(digits) for digits in reply.split()]
    return Balances(_balance(numbers[:8]), _balance(numbers[8:]))


def _balance(numbers: list[int]) -> Balance:
    requests, prompt, output, held, concurrency, *resets = numbers
    return Balance(requests, prompt, output, held, concurrency, *(reset / 1000 for reset in resets))


def _shortage(found: list[int], reservation: Reservation) -> Shortage:
    scope, dimension, used, wait = found
    limits = reservation.key_limits if scope == 1 else reservation.tenant_limits
    charge = reservation.charge
    return Shortage(
        _SCOPES[scope - 1],
        _DIMENSIONS[dimension - 1],
        limit=getattr(limits, _DIMENSIONS[dimension - 1]),
        used=used,
        asked=(1, charge.input_tokens, charge.output_tokens, 1)[dimension - 1],
        wait=None if wait < 0 else wait / 1000,
    )
