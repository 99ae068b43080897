"""Keeps the ledger: rows are taken at once and written in batches, by one task, beside the requests."""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from mulgil.ledger.base import UsageRow
from mulgil.ledger.database import DatabaseError, UsageDatabase
from mulgil.ledger.spending import Scope, Spending, first_of_month
from mulgil.ledger.spool import Spool
from mulgil.tiers import Tier

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """How the ledger is kept.

    Attributes:
        interval: seconds for which rows are gathered.
        batch: rows in one transaction, which holds up the event loop for 3 ms; as many do not wait for the interval.
        most: rows that wait in memory, at most. More come only where neither the database nor the disk takes any.
        pause: seconds until a database that was away is tried again.
        refresh: seconds after which the database is asked again what keys with a quota have spent.
        patience: seconds that a request waits, the first time in a day, to learn what its key has spent.
        last_words: seconds for the last rows at the end, before they are spooled.
    """

    interval: float = 1.0
    batch: int = 100
    most: int = 100_000
    pause: float = 2.0
    refresh: float = 10.0
    patience: float = 1.0
    last_words: float = 3.0


class UsageLedger:
    """A `Ledger` in a database.

    A row is in memory until its batch is committed, and on the disk while the database is away; it is written at
    least once and, by its id, kept once. What is lost: rows in memory when the process is killed, so at most those of
    an interval, and those beyond `most`.

    Args:
        database: where rows go in the end.
        spool: where they wait while it is away.
        spending: what keys have spent.
        pace: how often, how many, how long.

    Attributes:
        lost: rows that there was no room for.
    """

    def __init__(self, database: UsageDatabase, spool: Spool, spending: Spending, pace: Pace | None = None) -> None:
        self.database = database
        self.lost = 0
        self._spool = spool
        self._spending = spending
        self._pace = pace or Pace()
        self._waiting: deque[UsageRow] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._away = False
        self._disk_works = True
        self._try_at = 0.0
        self._refresh_at = 0.0
        self._asked: set[Scope] = set()
        self._questions: dict[Scope, asyncio.Future[None]] = {}

    @property
    def waiting(self) -> int:
        """Rows in memory that are not written yet."""
        return len(self._waiting)

    @property
    def available(self) -> bool:
        """Whether the database took what it was last given."""
        return not self._away

    def note(self, row: UsageRow) -> None:
        if len(self._waiting) >= self._pace.most:
            self.lost += 1
            if self.lost & (self.lost - 1) == 0:  # at 1, 2, 4, 8, …
                log.error("%d rows of usage are lost: neither the database nor the disk takes them", self.lost)
            return
        self._waiting.append(row)
        self._spending.note([row])
        if len(self._waiting) >= self._pace.batch:
            self._wake.set()

    async def check(self, tenant: str, key_id: str, tier: Tier) -> None:
        of_tenant = tier.tenant or tier
        for scope, limits in (((tenant, key_id), tier), ((tenant, ""), of_tenant)):
            if not limits.has_quota:
                continue
            self._asked.add(scope)
            if not self._spending.knows(scope):
                await self._learn(scope)
            self._spending.check(scope, limits)

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep())

    async def close(self) -> None:
        self._closing = True
        self._wake.set()
        if self._task is not None:
            _, late = await asyncio.wait([self._task], timeout=self._pace.last_words)
            if late:
                self._task.cancel()
                await asyncio.wait(late)
        self._try_at = 0.0
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace.last_words):
                    await self._write_out()
            await self._spool_all()
        finally:
            await asyncio.to_thread(self._spool.close)
            await self.database.close()
        if self._waiting:
            log.error("%d rows of usage are lost: neither the database nor the disk took them", len(self._waiting))

    async def _learn(self, scope: Scope) -> None:
        question = self._questions.get(scope)
        if question is None:
            question = self._questions[scope] = asyncio.get_running_loop().create_future()
            self._wake.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(question), self._pace.patience)
        if not self._spending.knows(scope):
            log.warning("what a key has spent is not known yet; it counts from zero: %s", "/".join(scope))
            self._spending.tell([scope], [])

    async def _keep(self) -> None:
        await self._on_disk(self._spool.adopt)
        while not self._closing:
            try:
                await self._write_out()
                await self._read_spending()
            except Exception:
                log.exception("the usage ledger failed, and goes on")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace.interval):
                    await self._wake.wait()
            self._wake.clear()

    async def _write_out(self) -> None:
        """Give the database all that waits, the oldest first; while it is away, the disk."""
        if time.monotonic() >= self._try_at:
            try:
                await self.database.open()
                await self._empty_spool()
                # Not those that come meanwhile: a transaction costs as much as 60 rows, and each would have its own.
                left = len(self._waiting)
                while left > 0:
                    batch = list(islice(self._waiting, min(left, self._pace.batch)))
                    left -= len(batch)
                    await self.database.add(batch)
                    for _ in batch:
                        self._waiting.popleft()
                    self._spending.written(batch)
            except DatabaseError as error:
                self._note_outage(error)
            else:
                self._note_recovery()
                return
        await self._spool_all()

    async def _empty_spool(self) -> None:
        while self._spool and (waiting := await self._on_disk(lambda: self._spool.first(self._pace.batch))):
            if waiting.rows:
                await self.database.add(waiting.rows)
                if waiting.adopted:
                    self._spending.note(waiting.rows)
                self._spending.written(waiting.rows)
            await asyncio.to_thread(self._spool.forget, waiting)

    async def _spool_all(self) -> None:
        rows = list(self._waiting)
        if not rows:
            return
        if await self._on_disk(lambda: self._spool.append(rows)):
            for _ in rows:
                self._waiting.popleft()

    async def _on_disk(self, step: Callable[[], T]) -> T | None:
        """What *step* returns; None when the disk fails, which is said once."""
        try:
            done = await asyncio.to_thread(step)
        except OSError as error:
            if self._disk_works:
                log.error("rows of usage cannot be spooled: %s", error)
            self._disk_works = False
            return None
        self._disk_works = True
        return done

    def _note_outage(self, error: DatabaseError) -> None:
        self._try_at = time.monotonic() + self._pace.pause
        if not self._away:
            self._away = True
            log.error("the usage database takes nothing; rows are spooled until it does: %s", error)

    def _note_recovery(self) -> None:
        if self._away:
            self._away = False
            log.info("the usage database takes rows again, and has all that were spooled")

    async def _read_spending(self) -> None:
        """Ask what those have spent about whom a request waits to know; and now and then all who came lately."""
        scopes = set(self._questions)
        if due := time.monotonic() >= self._refresh_at:
            self._refresh_at = time.monotonic() + self._pace.refresh
            self._spending.forget_yesterday()
            scopes |= self._asked
            self._asked = set()
        if scopes and (due or not self._away):
            with contextlib.suppress(DatabaseError):
                await self._ask(sorted(scopes))
        for scope in scopes & self._questions.keys():
            self._questions.pop(scope).set_result(None)

    async def _ask(self, scopes: Sequence[Scope]) -> None:
        since = first_of_month()
        keys = [scope for scope in scopes if scope[1]]
        tenants = [scope for scope in scopes if not scope[1]]
        for start in range(0, len(keys), self._pace.batch):
            some = set(keys[start : start + self._pace.batch])
            sums = await self.database.spent({tenant for tenant, _ in some}, {key for _, key in some}, since)
            self._spending.tell(some, [one for one in sums if (one.labels[0], one.labels[3]) in some])
        for start in range(0, len(tenants), self._pace.batch):
            several = tenants[start : start + self._pace.batch]
            sums = await self.database.spent({tenant for tenant, _ in several}, None, since)
            self._spending.tell(several, sums)
