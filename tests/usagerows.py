"""Rows of usage for the tests, and databases for them."""

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from postgresserver import PostgresServer, database
from sqlalchemy import select

from mulgil.ledger.base import UsageRow
from mulgil.ledger.database import Span, Sums, UsageDatabase
from mulgil.ledger.tables import USAGE

EVER = Span(datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))
ROW = UsageRow(
    "1", "req_1", datetime(2026, 11, 30, 12, tzinfo=UTC), "acme", "key_a", "demo", 10, 4, 5, "stop", 0.1, 0.5
)


def row(**fields: object) -> UsageRow:
    """A row of now with an id of its own, unless *fields* say otherwise."""
    return replace(ROW, **({"id": secrets.token_hex(12), "at": datetime.now(UTC)} | fields))  # type: ignore[arg-type]  # as `replace` takes them


def yesterday() -> datetime:
    """This time, a day ago."""
    return datetime.now(UTC) - timedelta(days=1)


async def total(usage: UsageDatabase) -> tuple[int, int, int, int]:
    """Requests, prompt tokens, cached tokens and completion tokens of all rows."""
    return numbers(await usage.sums([], EVER))


async def kept_rows(usage: UsageDatabase) -> list[UsageRow]:
    """All rows, the oldest first."""
    async with usage._transaction() as connection:
        found = (await connection.execute(select(USAGE).order_by(USAGE.c.at))).mappings().all()
    return [UsageRow(**{name: value for name, value in one.items() if name != "day"}) for one in found]


def numbers(sums: Sequence[Sums]) -> tuple[int, int, int, int]:
    (one,) = sums
    return one.requests, one.prompt_tokens, one.cached_tokens, one.completion_tokens


@asynccontextmanager
async def usage_url(request: pytest.FixtureRequest, folder: Path) -> AsyncGenerator[str]:
    """Of a new database, of the kind that the parameter of a fixture names."""
    if request.param == "sqlite":
        yield f"sqlite:///{folder / 'usage.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    async with database(server, f"usage_{secrets.token_hex(6)}") as url:
        yield url
