"""The ledger as a whole: nothing lost, nothing doubled, whatever happens to the database."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness import eventually
from postgresserver import PostgresServer, database
from storeservers import Proxy
from usagerows import row, total, usage_url

from mulgil.ledger.base import UsageRow
from mulgil.ledger.database import UsageDatabase
from mulgil.ledger.keeping import Pace, UsageLedger
from mulgil.ledger.spending import Spending
from mulgil.ledger.spool import Spool

QUICK = Pace(interval=0.02, batch=50, pause=0.05, refresh=0.1)


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[str]:
    async with usage_url(request, tmp_path) as found:
        yield found


@asynccontextmanager
async def keeping(url: str, folder: Path, pace: Pace = QUICK, *, seconds: float = 2.0) -> AsyncGenerator[UsageLedger]:
    """A ledger that works, and is closed in the end."""
    ledger = UsageLedger(UsageDatabase(url, timeout=seconds), Spool(folder), Spending({}), pace)
    ledger.start()
    try:
        yield ledger
    finally:
        await ledger.close()


async def counted(url: str) -> tuple[int, int, int, int]:
    usage = UsageDatabase(url)
    try:
        return await total(usage)
    finally:
        await usage.close()


def spooled(folder: Path) -> int:
    return sum(len(path.read_bytes().splitlines()) for path in folder.glob("*.jsonl"))


async def test_rows_are_written_within_an_interval_and_a_full_batch_at_once(url: str, tmp_path: Path) -> None:
    async with keeping(url, tmp_path, Pace(interval=30, batch=10)) as ledger:
        await eventually(lambda: ledger.database._open)
        for _ in range(10):
            ledger.note(row())
        assert ledger.waiting == 10  # nothing was waited for
        await eventually(lambda: ledger.waiting == 0)
        assert (await counted(url))[0] == 10


class CountingDatabase(UsageDatabase):
    """Knows how many transactions it was asked for."""

    transactions = 0

    async def add(self, rows: Sequence[UsageRow]) -> None:
        self.transactions += 1
        await super().add(rows)


async def test_rows_that_come_while_others_are_written_wait_for_the_next_interval(tmp_path: Path) -> None:
    usage = CountingDatabase(f"sqlite:///{tmp_path}/usage.db")
    ledger = UsageLedger(usage, Spool(tmp_path), Spending({}), Pace(interval=0.5))
    ledger.start()
    for _ in range(300):
        ledger.note(row())
        await asyncio.sleep(0.001)
    await ledger.close()
    assert (await counted(f"sqlite:///{tmp_path}/usage.db"))[0] == 300
    assert usage.transactions <= 10  # three full batches, what an interval leaves, and what is there at the end


async def test_what_waits_is_written_at_the_end(url: str, tmp_path: Path) -> None:
    async with keeping(url, tmp_path, Pace(interval=30)) as ledger:
        await eventually(lambda: ledger.database._open)
        for _ in range(123):
            ledger.note(row())
    assert await counted(url) == (123, 1230, 492, 615)
    assert spooled(tmp_path) == 0


@pytest.mark.timeout(120)
async def test_a_database_that_is_killed_and_restored_loses_and_doubles_nothing(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    noted: list[UsageRow] = []
    async with database(postgres_server, "killed") as url, keeping(url, tmp_path) as ledger:
        for strike in range(3):
            for number in range(400):
                noted.append(row(prompt_tokens=number))
                ledger.note(noted[-1])
                if number == 100 + 50 * strike:
                    postgres_server.kill()
                if number % 20 == 0:
                    await asyncio.sleep(0.01)
            await eventually(lambda: not ledger.available and ledger.waiting == 0, within=10)
            assert spooled(tmp_path) > 0
            postgres_server.start()
            await eventually(lambda: ledger.available and spooled(tmp_path) == 0, within=20)
        expected = (1200, sum(one.prompt_tokens for one in noted), 4 * 1200, 5 * 1200)
        await eventually(lambda: ledger.waiting == 0)
        assert await counted(url) == expected


async def test_a_reply_that_is_lost_is_no_reason_to_count_twice(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    proxy = Proxy(postgres_server.port)
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    try:
        async with database(postgres_server, "deaf") as direct:
            through = direct.replace(str(postgres_server.port), str(port))
            async with keeping(through, tmp_path, seconds=0.3) as ledger:
                ledger.note(row())
                await eventually(lambda: ledger.waiting == 0)
                for _ in range(4):
                    proxy.deaf = True  # what is asked happens, and nobody hears of it
                    for _ in range(25):
                        ledger.note(row())
                    await eventually(lambda: not ledger.available and ledger.waiting == 0, within=10)
                    proxy.deaf = False
                    await eventually(lambda: ledger.available, within=10)
            assert (await counted(direct))[0] == 101
    finally:
        listener.close()
        await proxy.stop()


async def test_a_gateway_starts_without_its_database_and_the_next_one_takes_over_what_it_spooled(
    url: str, tmp_path: Path
) -> None:
    async with keeping("postgresql://mulgil@127.0.0.1:1/none", tmp_path) as ledger:
        for _ in range(30):
            ledger.note(row())
        await eventually(lambda: spooled(tmp_path) == 30)
        ledger.note(row())
    assert spooled(tmp_path) == 31
    async with keeping(url, tmp_path):
        await eventually(lambda: spooled(tmp_path) == 0)
    assert (await counted(url))[0] == 31
    assert spooled(tmp_path) == 0


async def test_a_disk_that_takes_nothing_leaves_the_rows_in_memory_up_to_a_bound(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "spool"
    spool = Spool(folder)
    folder.rmdir()
    ledger = UsageLedger(
        UsageDatabase("postgresql://mulgil@127.0.0.1:1/none"), spool, Spending({}), Pace(interval=0.01, most=50)
    )
    ledger.start()
    with caplog.at_level(logging.ERROR):
        for _ in range(60):
            ledger.note(row())
        await eventually(lambda: "cannot be spooled" in caplog.text)
    assert (ledger.waiting, ledger.lost) == (50, 10)
    assert "8 rows of usage are lost" in caplog.text
    await ledger.close()
    assert "50 rows of usage are lost" in caplog.text
