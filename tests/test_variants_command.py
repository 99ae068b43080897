"""`mulgil variants report`, as its user meets it, on a database of its own."""

import asyncio
import os
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner, Result
from usagerows import row

from mulgil.cli import app as command_line
from mulgil.ledger.base import UsageRow
from mulgil.ledger.database import UsageDatabase

Run = Callable[..., Result]
MAY = datetime(2026, 5, 10, 12, tzinfo=UTC)
OF_MAY = ("--since", "2026-05-01", "--until", "2026-06-01")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """`mulgil variants report …` in an empty folder."""
    for name in [name for name in os.environ if name.startswith("MULGIL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: str, **variables: str) -> Result:
        given = {"MULGIL_STATE_FOLDER": str(tmp_path)} | variables
        return CliRunner(env=given).invoke(command_line, ["variants", "report", *arguments])

    return invoke


def keep(folder: Path, *rows: UsageRow) -> None:
    async def kept() -> None:
        usage = UsageDatabase(f"sqlite:///{folder / 'usage.db'}")
        try:
            await usage.add(rows)
        finally:
            await usage.close()

    asyncio.run(kept())


def some_rows(number: int = 60) -> list[UsageRow]:
    """As many of two variants in May, of which one is slower by half."""
    chance = random.Random(5)
    rows = []
    for variant, ttft in (("base", 0.2), ("slow", 0.3)):
        for hour in range(number):
            first = ttft * chance.uniform(0.9, 1.1)
            fields = {"variant": variant, "at": MAY + timedelta(hours=hour), "ttft": first, "duration": first + 0.4}
            rows.append(row(**fields))
    return rows


def test_it_compares_and_says_what_is_clear(run: Run, tmp_path: Path) -> None:
    keep(tmp_path, *some_rows(), row(at=MAY, variant="slow", status="cached"), row(at=MAY))
    done = run(*OF_MAY)
    assert done.exit_code == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line]
    assert lines[0] == ["demo,", "compared", "with", "base"]
    assert lines[2][:5] == ["base", "60", "0", "0", "1"]
    assert lines[3] == ["slow", "60", "1", "0", "1", "2026-05-10", "12:00", "2026-05-12", "23:00"]
    first = next(at for at, line in enumerate(lines) if line[:2] == ["first", "token,"])
    assert lines[first][-1] != "yes"
    assert lines[first + 1][0] == "slow"
    assert lines[first + 1][-1] == "yes"
    gaps = next(at for at, line in enumerate(lines) if line[:2] == ["each", "token"])
    assert lines[gaps][7:9] == ["60", "100.00"]  # 0.4 s for four tokens
    assert lines[gaps + 1][-1] == "no"
    assert {"stop,", "errors,", "hang-ups,", "length,"} <= {line[0] for line in lines}


def test_json_has_the_same_with_every_digit(run: Run, tmp_path: Path) -> None:
    keep(tmp_path, *some_rows())
    told = orjson.loads(run(*OF_MAY, "--json", "--control", "slow").stdout)
    assert (told["since"], told["until"], told["confidence"]) == ("2026-05-01T00:00:00Z", "2026-06-01T00:00:00Z", 0.95)
    (model,) = told["models"]
    assert (model["model"], model["control"]) == ("demo", "slow")
    slow, base = model["variants"]
    for name, one in (("slow", slow), ("base", base)):
        counts = (one["variant"], one["requests"], one["cached"], one["fallbacks"], one["keys"])
        assert counts == (name, 60, 0, 0, 1)
    assert (base["first"], base["last"]) == ("2026-05-10T12:00:00Z", "2026-05-12T23:00:00Z")
    assert {figure["difference"] for figure in slow["figures"].values()} == {None}
    ttft = base["figures"]["ttft"]
    assert ttft["count"] == 60
    assert ttft["low"] < ttft["value"] < ttft["high"]
    assert ttft["difference"]["clear"] is True
    assert ttft["difference"]["low"] < -0.1 < ttft["difference"]["high"] < 0
    assert base["figures"]["errors"]["difference"]["clear"] is False


def test_the_first_variant_of_the_configuration_is_what_the_others_are_compared_with(run: Run, tmp_path: Path) -> None:
    keep(tmp_path, *some_rows())
    (tmp_path / "mulgil.toml").write_text("[models.demo.variants.slow]\n[models.demo.variants.base]\n")
    told = orjson.loads(run(*OF_MAY, "--json", MULGIL_CONFIG=str(tmp_path / "mulgil.toml")).stdout)
    (model,) = told["models"]
    assert (model["control"], [one["variant"] for one in model["variants"]]) == ("slow", ["slow", "base"])


def test_of_more_rows_than_a_page_has_none_is_missing_or_counted_twice(run: Run, tmp_path: Path) -> None:
    keep(tmp_path, *(row(at=MAY, variant="ab"[number % 2]) for number in range(4_321)))
    (model,) = orjson.loads(run(*OF_MAY, "--json").stdout)["models"]
    assert [one["requests"] for one in model["variants"]] == [2161, 2160]


@pytest.mark.parametrize("model", ["demo", "unknown"])
def test_without_rows_it_says_so(run: Run, tmp_path: Path, model: str) -> None:
    keep(tmp_path, row(), row(model="other", variant="a"))
    done = run("--model", model)
    assert (done.exit_code, done.stdout) == (0, f"No request of a variant of {model} ended in this time.\n")
    assert orjson.loads(run("--model", model, "--json").stdout)["models"] == []


def test_before_there_is_a_database_it_says_so_too(run: Run) -> None:
    assert run().stdout == "No request of a variant ended in this time.\n"


def test_one_row_is_told_without_intervals(run: Run, tmp_path: Path) -> None:
    keep(tmp_path, row(variant="a"))
    done = run()
    assert done.exit_code == 0
    assert "too few" in done.stdout


def test_a_variant_of_another_time_or_another_model_is_not_there(run: Run, tmp_path: Path) -> None:
    keep(tmp_path, *some_rows(), row(at=MAY - timedelta(days=30), variant="old"), row(at=MAY, model="x", variant="y"))
    (demo, other) = orjson.loads(run(*OF_MAY, "--json").stdout)["models"]
    assert [one["variant"] for one in demo["variants"]] == ["base", "slow"]
    assert [one["variant"] for one in other["variants"]] == ["y"]
    (demo,) = orjson.loads(run("--since", "2026-01-01", "--model", "demo", "--json").stdout)["models"]
    assert [one["variant"] for one in demo["variants"]] == ["base", "old", "slow"]
    done = run(*OF_MAY, "--control", "old")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "mulgil: no request of the variant 'old' is there; of variants there are: base, slow, y\n"


@pytest.mark.parametrize(
    ("arguments", "variables", "status", "reason"),
    [
        (("--since=soon",), {}, 2, "Invalid 'since'"),
        (("--since=2026-05-02", "--until=2026-05-01"), {}, 2, "Invalid 'until'"),
        (("--control=a",), {}, 2, "of variants there are: none"),
        ((), {"MULGIL_USAGE_URL": "off"}, 2, "'usage_url' is off"),
        ((), {"MULGIL_USAGE_URL": "postgresql://user:SECRET@127.0.0.1:1/db"}, 1, "cannot be read"),
        ((), {"MULGIL_PROT": "1"}, 2, "no such setting: MULGIL_PROT"),
        ((), {"MULGIL_PORT": "x"}, 2, "MULGIL_PORT"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    run: Run, arguments: tuple[str, ...], variables: dict[str, str], status: int, reason: str
) -> None:
    done = run(*arguments, **variables)
    assert reason in done.stderr
    assert (done.exit_code, done.stdout) == (status, "")
    assert len(done.stderr.splitlines()) == 1
    assert "SECRET" not in done.stderr
