"""The rows in SQLite or PostgreSQL, by SQLAlchemy Core."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from operator import attrgetter
from typing import Any

from sqlalchemy import BigInteger, cast, func, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from mulgil.ledger.base import UsageRow
from mulgil.ledger.connecting import checked, connect, is_sqlite
from mulgil.ledger.migrating import migrate
from mulgil.ledger.tables import DAYS, SUMS, USAGE

GROUPS = ("tenant", "key_id", "model", "status", "day")
"""The columns that sums can be told apart by."""


class DatabaseError(Exception):
    """The database did not do what it was asked, or did not say so in time; it may have happened."""


@dataclass(frozen=True, slots=True)
class Span:
    """Rows whose end was from *since* on and before *until*, and that have these values in these columns."""

    since: datetime
    until: datetime
    having: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Sums:
    """What rows that are alike in some columns come to.

    Attributes:
        labels: the values of those columns, in their order.
        requests: the number of rows.
        prompt_tokens, cached_tokens, completion_tokens: added up.
    """

    labels: tuple[Any, ...]
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class UsageDatabase:
    """Keeps rows. Safe for many gateways at once. Every method but the last may raise `DatabaseError`.

    Args:
        url: `sqlite:///FILE` or `postgresql://…`.
        timeout: seconds that one call may take, connecting included.

    Raises:
        ValueError: *url* is neither, or its driver is not installed. The message does not repeat it.
    """

    def __init__(self, url: str, *, timeout: float = 5.0) -> None:
        self._url = checked(url)
        self._timeout = timeout
        self._is_sqlite = is_sqlite(self._url)
        self._engine = connect(self._url, timeout)
        self._open = False

    async def open(self) -> None:
        """Make or mend the tables, unless that is done."""
        if not self._open:
            try:
                await asyncio.to_thread(migrate, self._url, self._timeout)
            except Exception as error:
                raise DatabaseError(_reason(error)) from error
            self._open = True

    async def add(self, rows: Sequence[UsageRow]) -> None:
        """Add *rows*, all or none; those that are there already are left out, so that a call may be repeated."""
        # In order, so that two gateways with the same rows cannot wait for each other crosswise.
        in_order = sorted(rows, key=attrgetter("id"))
        values = [{"day": _day(row.at), **{name: getattr(row, name) for name in _FIELDS}} for row in in_order]
        insert = (sqlite if self._is_sqlite else postgresql).insert
        new_rows = insert(USAGE).on_conflict_do_nothing().returning(USAGE.c.id)
        to_days = insert(DAYS)
        to_days = to_days.on_conflict_do_update(
            index_elements=list(DAYS.primary_key), set_={name: DAYS.c[name] + to_days.excluded[name] for name in SUMS}
        )
        async with self._transaction() as connection:
            added = set((await connection.execute(new_rows, values)).scalars())
            if days := _by_day(row for row in rows if row.id in added):
                await connection.execute(to_days, days)

    async def sums(self, by: Sequence[str], span: Span) -> list[Sums]:
        """The rows of *span*, added up for each combination of values of the columns *by*, of `GROUPS`."""
        columns = [USAGE.c[name] for name in by]
        question = (
            select(*columns, func.count(), *(_sum(USAGE.c[name]) for name in SUMS[1:]))
            .where(USAGE.c.at >= span.since, USAGE.c.at < span.until)
            .where(*(USAGE.c[name] == value for name, value in span.having))
            .group_by(*columns)
            .order_by(*columns)
        )
        return await self._told(question, len(columns))

    async def spent(self, tenants: Collection[str], key_ids: Collection[str] | None, since: date) -> list[Sums]:
        """What was spent from the day *since* on, by tenant, model, day and key.

        Args:
            tenants: of these.
            key_ids: with these keys; None: with all keys together, which are then no label.
            since: the first day.
        """
        by = [DAYS.c.tenant, DAYS.c.model, DAYS.c.day, *([DAYS.c.key_id] if key_ids is not None else [])]
        question = (
            select(*by, *(_sum(DAYS.c[name]) for name in SUMS))
            .where(DAYS.c.day >= since, DAYS.c.tenant.in_(tenants))
            .where(*([DAYS.c.key_id.in_(key_ids)] if key_ids is not None else []))
            .group_by(*by)
        )
        return await self._told(question, len(by))

    async def of_variants(self, span: Span, *, after: UsageRow | None, most: int) -> list[UsageRow]:
        """The next rows of *span* that have a variant, by their end: those that follow *after*, at *most* so many."""
        question = (
            select(*(USAGE.c[name] for name in _FIELDS))
            .where(USAGE.c.at >= (after.at if after else span.since), USAGE.c.at < span.until)
            .where(USAGE.c.variant.is_not(None), *(USAGE.c[name] == value for name, value in span.having))
            .order_by(USAGE.c.at, USAGE.c.id)
            .limit(most)
        )
        if after is not None:
            question = question.where(or_(USAGE.c.at > after.at, USAGE.c.id > after.id))
        async with self._transaction() as connection:
            found = (await connection.execute(question)).all()
        return [UsageRow(**dict(zip(_FIELDS, row, strict=True))) for row in found]

    async def close(self) -> None:
        """Let go of every connection."""
        await self._engine.dispose()

    async def _told(self, question: Any, labels: int) -> list[Sums]:
        async with self._transaction() as connection:
            found = (await connection.execute(question)).all()
        return [Sums(tuple(row[:labels]), *(value or 0 for value in row[labels:])) for row in found]

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[AsyncConnection]:
        await self.open()
        try:
            async with asyncio.timeout(self._timeout), self._engine.begin() as connection:
                yield connection
        except Exception as error:
            raise DatabaseError(_reason(error)) from error


_FIELDS = tuple(name for name in USAGE.c.keys() if name != "day")  # noqa: SIM118 - iterating gives columns


def _sum(column: Any) -> Any:
    return cast(func.sum(column), BigInteger)


def _day(moment: datetime) -> date:
    return moment.astimezone(UTC).date()


def _by_day(rows: Iterable[UsageRow]) -> list[dict[str, Any]]:
    """Of *rows*, what `DAYS` grows by; in order, for the same reason as the rows themselves."""
    sums: dict[tuple[Any, ...], Counter[str]] = {}
    for row in rows:
        sums.setdefault((row.tenant, _day(row.at), row.key_id, row.model), Counter()).update(
            requests=1,
            prompt_tokens=row.prompt_tokens,
            cached_tokens=row.cached_tokens,
            completion_tokens=row.completion_tokens,
        )
    names = [column.name for column in DAYS.primary_key]
    return [
        dict(zip(names, labels, strict=True)) | {name: sums[labels][name] for name in SUMS} for labels in sorted(sums)
    ]


def _reason(error: Exception) -> str:
    """In one line, without the statement and its values."""
    cause = getattr(error, "orig", None) or error
    return f"{type(cause).__name__}: {cause}".splitlines()[0]
