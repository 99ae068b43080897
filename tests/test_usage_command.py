"""`mulgil usage`, as its user meets it, on SQLite and on a real PostgreSQL."""

import asyncio
import csv
import io
import os
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner, Result
from usagerows import row, usage_url

from mulgil.cli import app as command_line
from mulgil.ledger.base import UsageRow
from mulgil.ledger.database import UsageDatabase

CONFIG = '[models.demo.price]\ninput = 1\noutput = "2.5"\n[models."a.b".price]\noutput = 0.1\n'
LONG_AGO = datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)

Run = Callable[..., Result]


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[str]:
    async with usage_url(request, tmp_path) as found:
        yield found


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """`mulgil usage …` in a folder with prices."""
    for name in [name for name in os.environ if name.startswith("MULGIL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mulgil.toml").write_text(CONFIG)

    def invoke(*arguments: str, **variables: str) -> Result:
        given = {"MULGIL_CONFIG": "mulgil.toml", "MULGIL_STATE_FOLDER": str(tmp_path)} | variables
        return CliRunner(env=given).invoke(command_line, ["usage", *arguments])

    return invoke


async def kept(url: str, *rows: UsageRow) -> None:
    usage = UsageDatabase(url)
    try:
        await usage.add(rows)
    finally:
        await usage.close()


async def test_it_tells_what_was_used_and_what_it_costs(url: str, run: Run) -> None:
    await kept(
        url,
        row(tenant="acme", prompt_tokens=1_000_000, cached_tokens=0, completion_tokens=3),
        row(tenant="acme", model="a.b", completion_tokens=1),
        row(tenant="zeta", at=LONG_AGO),
    )

    def asked(*arguments: str) -> Result:
        done = run(*arguments, MULGIL_USAGE_URL=url)
        assert done.exit_code == 0, done.stderr
        return done

    # A loop runs here, and the command has one of its own.
    table = (await asyncio.to_thread(asked)).stdout.splitlines()
    assert [line.split() for line in table] == [
        ["tenant", "model", "requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost"],
        ["acme", "a.b", "1", "10", "4", "1", "0.0000001"],
        ["acme", "demo", "1", "1000000", "0", "3", "1.0000075"],
        ["total", "2", "1000010", "4", "4", "1.0000076"],
    ]
    options = ("--by", "tenant,month", "--since", "2026-01-01", "--until", "2026-02-01")
    (line,) = csv.DictReader(io.StringIO((await asyncio.to_thread(asked, *options, "--csv")).stdout))
    assert (line["tenant"], line["month"], line["requests"], line["cost"]) == ("zeta", "2026-01", "1", "0.0000225")
    told = orjson.loads((await asyncio.to_thread(asked, "--by=day", "--tenant=zeta", "--since=900d", "--json")).stdout)
    assert told["data"] == [
        {
            "day": "2026-01-31",
            "requests": 1,
            "prompt_tokens": 10,
            "cached_tokens": 4,
            "completion_tokens": 5,
            "cost": "0.0000225",
        }
    ]
    assert told["since"].endswith("Z")
    everything = (await asyncio.to_thread(asked, "--by", "", "--since", "900d")).stdout.splitlines()
    assert everything[-1].split()[0] == "3"


@pytest.mark.parametrize(
    ("arguments", "variables", "status", "reason"),
    [
        (("--by=colour",), {}, 2, "there is no 'colour'"),
        (("--since=soon",), {}, 2, "Invalid 'since'"),
        (("--json", "--csv"), {}, 2, "choose one"),
        ((), {"MULGIL_USAGE_URL": "off"}, 2, "'usage_url' is off"),
        ((), {"MULGIL_USAGE_URL": "mysql://user:SECRET@host/db"}, 2, "must begin with"),
        ((), {"MULGIL_USAGE_URL": "postgresql://user:SECRET@127.0.0.1:1/db"}, 1, "cannot be read"),
        ((), {"MULGIL_PROT": "1"}, 2, "no such setting: MULGIL_PROT"),
        ((), {"MULGIL_PORT": "x"}, 2, "MULGIL_PORT"),
        ((), {"MULGIL_CONFIG": "none.toml"}, 2, "none.toml"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    run: Run, arguments: tuple[str, ...], variables: dict[str, str], status: int, reason: str
) -> None:
    done = run(*arguments, **variables)
    assert reason in done.stderr
    assert done.exit_code == status
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "SECRET" not in done.stderr


def test_without_a_setting_it_reads_the_file_in_the_state_folder(run: Run, tmp_path: Path) -> None:
    asyncio.run(kept(f"sqlite:///{tmp_path}/usage.db", row()))
    assert "1" in run("--by=").stdout.splitlines()[-1].split()
