"""Quotas: what counts, since when, and how exactly."""

import asyncio
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from harness import eventually
from hypothesis import given
from hypothesis import strategies as some
from usagerows import row, yesterday

from mulgil.errors import InsufficientQuotaError
from mulgil.ledger.base import UsageRow
from mulgil.ledger.database import Sums, UsageDatabase
from mulgil.ledger.keeping import Pace, UsageLedger
from mulgil.ledger.spending import Spending
from mulgil.ledger.spool import Spool
from mulgil.prices import Price
from mulgil.tiers import Tier, TierLimits

PRICES = {"demo": Price(input=Decimal("0.1"), cached_input=Decimal(0), output=Decimal("0.2"))}
KEY, TENANT = ("acme", "key_a"), ("acme", "")
NOBODY: list[Sums] = []


def day() -> str:
    return datetime.now(UTC).date().isoformat()


def told(rows: list[UsageRow]) -> list[Sums]:
    """What a database with these rows says of the key and of the tenant."""
    sums = []
    for one in rows:
        labels = "acme", one.model, one.at.date(), one.key_id
        sums.append(Sums(labels, 1, one.prompt_tokens, one.cached_tokens, one.completion_tokens))
    return sums


def test_rows_count_from_the_moment_they_are_noted_for_the_key_and_for_its_tenant() -> None:
    spending = Spending(PRICES)
    spending.note([row(), row(key_id="key_b"), row(tenant="other")])
    assert spending.of(KEY, day()).tokens == 15
    assert spending.of(TENANT, day()).tokens == 30
    assert spending.of(TENANT, day()[:7]).tokens == 30
    assert spending.of(KEY, day()).cost == Decimal("0.0000016")  # 6 × 0.1 + 4 × 0 + 5 × 0.2, of a million


@given(
    steps=some.lists(some.tuples(some.integers(0, 4), some.integers(0, 4), some.booleans()), max_size=15),
    sizes=some.lists(some.integers(0, 1000), min_size=60, max_size=60),
)
def test_a_row_counts_once_whenever_it_is_written_and_whenever_the_database_is_asked(
    steps: list[tuple[int, int, bool]], sizes: list[int]
) -> None:
    spending, waiting, written = Spending(PRICES), list[UsageRow](), list[UsageRow]()
    spending.tell([KEY], NOBODY)
    for notes, writes, asks in steps:
        new = [row(prompt_tokens=sizes.pop(), cached_tokens=0) for _ in range(notes)]
        spending.note(new)
        waiting += new
        batch, waiting = waiting[:writes], waiting[writes:]
        spending.written(batch)
        written += batch
        if asks:
            spending.tell([KEY], told(written))
        everything = [*waiting, *written]
        assert spending.of(KEY, day()).tokens == sum(one.total_tokens for one in everything)
        assert spending.of(KEY, day()).cost == sum(
            (PRICES["demo"].of(one.prompt_tokens, 0, one.completion_tokens) for one in everything), Decimal(0)
        )
    spending.written(waiting)
    assert spending._unwritten == {}


@pytest.mark.parametrize(
    ("limits", "passes"),
    [
        ({"tokens_per_day": 31}, True),
        ({"tokens_per_day": 30}, False),
        ({"tokens_per_month": 30}, False),
        ({"cost_per_day": Decimal("0.000004")}, True),
        ({"cost_per_day": Decimal("0.000003")}, False),
        ({"cost_per_month": Decimal("0.000003")}, False),
        ({}, True),
    ],
)
def test_what_is_used_up_is_refused(limits: dict[str, int], passes: bool) -> None:
    spending = Spending(PRICES)
    spending.note([row(), row()])
    if passes:
        spending.check(KEY, TierLimits(**limits))
        return
    with pytest.raises(InsufficientQuotaError) as raised:
        spending.check(KEY, TierLimits(**limits))
    assert (raised.value.status, raised.value.code, raised.value.type) == (
        429,
        "insufficient_quota",
        "insufficient_quota",
    )
    assert raised.value.headers == {"x-should-retry": "false"}
    assert "It begins anew on" in raised.value.message


def test_yesterday_is_of_this_month_only_where_it_is() -> None:
    spending = Spending(PRICES)
    before = yesterday()
    spending.tell([KEY], told([row(at=before), row()]))
    assert spending.of(KEY, day()).tokens == 15
    same_month = before.month == datetime.now(UTC).month
    assert spending.of(KEY, day()[:7]).tokens == (30 if same_month else 15)


def test_yesterdays_answers_are_forgotten() -> None:
    spending = Spending(PRICES)
    spending.tell([KEY], NOBODY)
    assert spending.knows(KEY)
    spending._told[KEY] = {date(2020, 1, 1).isoformat(): spending._told[KEY].popitem()[1]}
    assert not spending.knows(KEY)
    spending.forget_yesterday()
    assert spending._told == {}


def ledger(folder: Path, name: str, pace: Pace | None = None) -> UsageLedger:
    """A gateway's, with a database that others share."""
    database = UsageDatabase(f"sqlite:///{folder / 'usage.db'}")
    return UsageLedger(database, Spool(folder / name), Spending(PRICES), pace or Pace(interval=0.02, refresh=0.05))


async def passes(keeper: UsageLedger, tier: Tier, key: str = "key_a") -> bool:
    try:
        await keeper.check("acme", key, tier)
    except InsufficientQuotaError:
        return False
    return True


async def test_what_was_spent_before_a_restart_counts_and_so_does_what_other_gateways_take_in(tmp_path: Path) -> None:
    tier = Tier(tokens_per_day=40, tenant=TierLimits(tokens_per_day=70))
    one, other = ledger(tmp_path, "one"), ledger(tmp_path, "other")
    one.start()
    other.start()
    try:
        assert await passes(one, tier)
        assert await passes(other, tier)
        one.note(row())
        one.note(row())
        other.note(row())
        for keeper in (one, other):
            await until_refused(keeper, tier)
        assert await passes(one, tier, key="key_b")
        one.note(row(key_id="key_b"))
        one.note(row(key_id="key_b"))
        await until_refused(other, tier, key="key_c")  # its tenant has 75 now
    finally:
        await one.close()
        await other.close()
    after = ledger(tmp_path, "after", Pace(interval=30))
    after.start()
    try:
        assert not await passes(after, tier)
        assert not await passes(after, tier, key="key_c")
        assert await passes(after, Tier(tokens_per_day=46, tenant=TierLimits()))
    finally:
        await after.close()


async def until_refused(keeper: UsageLedger, tier: Tier, key: str = "key_a") -> None:
    deadline = datetime.now(UTC) + timedelta(seconds=10)
    while await passes(keeper, tier, key):
        assert datetime.now(UTC) < deadline
        await asyncio.sleep(0.01)


async def test_while_the_database_is_away_a_gateway_counts_what_it_has_made_itself(tmp_path: Path) -> None:
    database = UsageDatabase("postgresql://mulgil@127.0.0.1:1/none")
    keeper = UsageLedger(database, Spool(tmp_path), Spending(PRICES), Pace(interval=0.02, pause=0.1, patience=0.3))
    keeper.start()
    try:
        tier = Tier(tokens_per_day=30)
        assert await passes(keeper, tier)
        keeper.note(row())
        assert await passes(keeper, tier)
        keeper.note(row())
        assert not await passes(keeper, tier)
        await eventually(lambda: keeper.waiting == 0)  # spooled
        assert not await passes(keeper, tier)
    finally:
        await keeper.close()


async def test_without_a_quota_nobody_is_asked(tmp_path: Path) -> None:
    keeper = ledger(tmp_path, "one")  # not started: whoever asked it would wait
    assert await passes(keeper, Tier())
    await keeper.close()
