"""What `UsageDatabase` promises, on SQLite and on a real PostgreSQL."""

import asyncio
import random
from collections.abc import AsyncGenerator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, insert
from usagerows import EVER, kept_rows, numbers, row, total, usage_url

from mulgil.ledger.base import UsageRow
from mulgil.ledger.database import DatabaseError, Span, UsageDatabase
from mulgil.ledger.tables import TABLES, USAGE

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[str]:
    async with usage_url(request, tmp_path) as found:
        yield found


@pytest.fixture
async def usage(url: str) -> AsyncGenerator[UsageDatabase]:
    found = UsageDatabase(url)
    yield found
    await found.close()


async def test_rows_are_there_once_however_often_they_are_written(usage: UsageDatabase) -> None:
    rows = [row() for _ in range(700)]
    await usage.add(rows)
    await usage.add([*rows[:300], row()])
    await usage.add([*rows[:2], *rows[:2]])
    assert await total(usage) == (701, 7010, 2804, 3505)
    (day,) = await usage.spent({"acme"}, None, date(2000, 1, 1))
    assert numbers([day]) == (701, 7010, 2804, 3505)


async def test_many_gateways_may_write_the_same_rows_at_once(url: str) -> None:
    chance = random.Random(7)
    rows = [row(tenant=f"t{number % 3}", key_id=f"k{number % 7}") for number in range(200)]
    several = [UsageDatabase(url) for _ in range(4)]
    try:
        await asyncio.gather(
            *(one.add(chance.sample(rows, len(rows))[start : start + 50])
              for one in several for start in range(0, 200, 50))
        )  # fmt: skip
        await several[0].add(rows)
        assert await total(several[0]) == (200, 2000, 800, 1000)
        days = await several[0].spent({"t0", "t1", "t2"}, {f"k{number}" for number in range(7)}, date(2000, 1, 1))
        assert sum(one.requests for one in days) == 200
    finally:
        for one in several:
            await one.close()


async def test_sums_are_told_apart_by_what_is_asked(usage: UsageDatabase) -> None:
    await usage.add(
        [
            row(at=NOON, tenant="a", key_id="1", model="x"),
            row(at=NOON, tenant="a", key_id="2", model="x", status="length"),
            row(at=NOON + timedelta(hours=12), tenant="a", key_id="2", model="y"),
            row(at=NOON, tenant="b", key_id="3", model="x", prompt_tokens=2**40, ttft=None),
        ]
    )
    assert [(one.labels, one.requests) for one in await usage.sums(["tenant", "model"], EVER)] == [
        (("a", "x"), 2), (("a", "y"), 1), (("b", "x"), 1),
    ]  # fmt: skip
    assert [one.labels for one in await usage.sums(["day"], EVER)] == [(date(2026, 11, 30),), (date(2026, 12, 1),)]
    assert [one.labels for one in await usage.sums(["status"], EVER)] == [("length",), ("stop",)]
    only = Span(EVER.since, EVER.until, (("tenant", "a"), ("key_id", "2")))
    assert numbers(await usage.sums([], only))[0] == 2
    assert (await usage.sums(["model"], Span(EVER.since, EVER.until, (("tenant", "b"),))))[0].prompt_tokens == 2**40
    assert numbers(await usage.sums([], Span(EVER.since, EVER.until, (("tenant", "c"),)))) == (0, 0, 0, 0)


async def test_a_span_has_its_beginning_and_not_its_end_whatever_the_offset(usage: UsageDatabase) -> None:
    elsewhere = NOON.astimezone(datetime.fromisoformat("2026-01-01T00:00+09:00").tzinfo)
    await usage.add([row(at=elsewhere), row(at=NOON + timedelta(microseconds=1))])
    assert numbers(await usage.sums([], Span(NOON, NOON + timedelta(microseconds=1))))[0] == 1
    assert numbers(await usage.sums([], Span(elsewhere, elsewhere + timedelta(seconds=1))))[0] == 2
    assert numbers(await usage.sums([], Span(NOON - timedelta(hours=1), NOON)))[0] == 0


async def test_what_was_spent_is_told_of_keys_and_of_whole_tenants(usage: UsageDatabase) -> None:
    await usage.add(
        [row(at=NOON, tenant=tenant, key_id=key) for tenant, key in (("a", "1"), ("a", "2"), ("b", "1"), ("c", "9"))]
    )
    of_tenants = await usage.spent({"a", "b"}, None, date(2026, 11, 30))
    assert {one.labels: one.requests for one in of_tenants} == {
        ("a", "demo", date(2026, 11, 30)): 2, ("b", "demo", date(2026, 11, 30)): 1,
    }  # fmt: skip
    of_keys = await usage.spent({"a"}, {"1"}, date(2026, 11, 1))
    assert [(one.labels, one.requests) for one in of_keys] == [(("a", "demo", date(2026, 11, 30), "1"), 1)]
    assert await usage.spent({"a"}, None, date(2026, 12, 1)) == []


async def test_rows_of_variants_are_told_page_by_page_and_no_others(usage: UsageDatabase) -> None:
    same_moment = [row(at=NOON, variant="a", status="length+stop") for _ in range(7)]
    later = [row(at=NOON + timedelta(seconds=number), variant="b", fallback="c", ttft=None) for number in range(1, 5)]
    others = [row(at=NOON), row(at=EVER.until, variant="a"), row(at=NOON, variant="a", model="other")]
    await usage.add([*later, *same_moment, *others])
    span = Span(EVER.since, EVER.until, (("model", "demo"),))
    told, page = list[UsageRow](), await usage.of_variants(span, after=None, most=3)
    while page:
        assert len(page) <= 3
        told += page
        page = await usage.of_variants(span, after=page[-1], most=3)
    assert told == [*sorted(same_moment, key=lambda one: one.id), *later]


async def test_a_database_of_the_version_before_gets_the_new_columns_and_keeps_its_rows(url: str) -> None:
    old = [row(), row(status="aborted", ttft=None)]
    before = UsageDatabase(url)
    await before.open()
    names = (
        "id request_id at day tenant key_id model prompt_tokens cached_tokens completion_tokens status ttft duration"
    )
    async with before._engine.begin() as connection:
        for step in (
            "ALTER TABLE mulgil_usage DROP COLUMN variant",
            "ALTER TABLE mulgil_usage DROP COLUMN fallback",
            "UPDATE mulgil_usage_version SET version_num = '0001'",
        ):
            await connection.exec_driver_sql(step)
        # As a gateway of that version writes, which may share the database with newer ones.
        values = [{name: getattr(one, name, one.at.date()) for name in names.split()} for one in old]
        await connection.execute(insert(USAGE), values)
    await before.close()
    usage = UsageDatabase(url)
    try:
        new = row(variant="a", fallback="b")
        await usage.add([new])
        assert {one.id: one for one in await kept_rows(usage)} == {one.id: one for one in (*old, new)}
    finally:
        await usage.close()


async def test_the_last_migration_makes_the_tables_that_the_code_knows(usage: UsageDatabase) -> None:
    await usage.open()

    def differences(connection: Connection) -> object:
        ours = MigrationContext.configure(connection, opts={"version_table": "mulgil_usage_version"})
        return compare_metadata(ours, TABLES)

    async with usage._engine.connect() as connection:
        assert await connection.run_sync(differences) == []


async def test_many_gateways_may_start_at_once_on_an_empty_database(url: str) -> None:
    several = [UsageDatabase(url) for _ in range(3)]
    try:
        await asyncio.gather(*(one.open() for one in several))
        await asyncio.gather(*(one.add([row()]) for one in several))
        assert (await total(several[0]))[0] == 3
    finally:
        for one in several:
            await one.close()


async def test_an_error_tells_the_reason_and_no_values(url: str, tmp_path: Path) -> None:
    nowhere = f"sqlite:///{tmp_path}" if url.startswith("sqlite") else "postgresql://mulgil:SECRET@127.0.0.1:1/x"
    usage = UsageDatabase(nowhere)
    try:
        with pytest.raises(DatabaseError) as raised:
            await usage.add([row(tenant="SECRET")])
    finally:
        await usage.close()
    assert str(raised.value)
    assert "SECRET" not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("mysql://SECRET@host/db", "must begin with"),
        ("SECRET", "must begin with"),
        ("sqlite://", "must name a file"),
        ("sqlite:///:memory:", "must name a file"),
    ],
)
def test_a_wrong_url_is_refused_without_being_repeated(wrong: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        UsageDatabase(wrong)
    assert "SECRET" not in str(raised.value)


def test_libpqs_word_for_tls_is_understood() -> None:
    asked = UsageDatabase("postgres://u:p@host/db?sslmode=require")._url
    assert (asked.drivername, dict(asked.query)) == ("postgresql+asyncpg", {"ssl": "require"})
