"""Rows on the disk: what one process leaves another finds, once, and never what is still somebody's."""

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from usagerows import row

from mulgil.ledger.base import UsageRow
from mulgil.ledger.spool import Spool

LEAVES_ROWS = """
import os, sys
from pathlib import Path
from usagerows import row
from mulgil.ledger.spool import Spool
spool = Spool(Path(sys.argv[1]))
spool.append([row(id=f"of-the-dead-{number}") for number in range(3)])
print("spooled", flush=True)
sys.stdin.read()
"""


def emptied(spool: Spool, most: int = 100) -> list[UsageRow]:
    """All rows in it, which is empty then."""
    rows = []
    while spool:
        waiting = spool.first(most)
        rows += waiting.rows
        spool.forget(waiting)
    return rows


def test_what_is_put_in_comes_out_as_it_was_and_in_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    rows = [
        row(status="length+stop", ttft=None),
        row(variant="a", fallback="b"),
        row(prompt_tokens=2**60, duration=1e-9),
    ]
    spool.append(rows[:2])
    spool.append(rows[2:])
    assert spool
    assert emptied(spool) == rows
    assert not spool
    assert list(tmp_path.iterdir()) == []


def test_it_can_be_written_while_it_is_being_read(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    rows = [row() for _ in range(7)]
    spool.append(rows[:4])
    first = spool.first(3)
    spool.append(rows[4:])
    spool.forget(first)
    assert first.rows + emptied(spool, most=2) == rows


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=some.lists(some.tuples(some.integers(0, 5), some.integers(1, 4), some.booleans()), max_size=12))
def test_whatever_the_order_of_writing_reading_and_dying_every_row_comes_out(
    tmp_path: Path, steps: list[tuple[int, int, bool]]
) -> None:
    spool, put, out = Spool(tmp_path), set[str](), set[str]()
    for writes, reads, dies in steps:
        rows = [row() for _ in range(writes)]
        if rows:
            spool.append(rows)
        put |= {one.id for one in rows}
        if spool:
            waiting = spool.first(reads)
            out |= {one.id for one in waiting.rows}
            if not dies:
                spool.forget(waiting)
        if dies:
            spool.close()
            spool = Spool(tmp_path)
            spool.adopt()
    out |= {one.id for one in emptied(spool)}
    spool.close()
    assert out == put
    assert list(tmp_path.iterdir()) == []


def test_rows_of_a_process_that_lives_are_left_alone_and_those_of_a_dead_one_taken_over(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, "-c", LEAVES_ROWS, str(tmp_path)],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "spooled\n"
        spool = Spool(tmp_path)
        spool.adopt()
        assert not spool
        process.kill()
    spool.adopt()
    assert spool.first(10).adopted
    assert [one.id for one in emptied(spool)] == [f"of-the-dead-{number}" for number in range(3)]
    spool.append([row()])
    assert not spool.first(10).adopted
    spool.close()


def test_a_line_that_was_cut_off_costs_that_row_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = Spool(tmp_path)
    kept = row()
    spool.append([kept, row()])
    spool.close()
    (path,) = tmp_path.glob("*.jsonl")
    path.write_bytes(path.read_bytes()[:-20])
    after = Spool(tmp_path)
    after.adopt()
    assert emptied(after) == [kept]
    assert "cannot be read" in caplog.text


def test_what_a_gateway_of_the_version_before_has_left_is_read(tmp_path: Path) -> None:
    fields = orjson.loads(orjson.dumps(kept := row()))
    del fields["variant"], fields["fallback"]
    (tmp_path / "usage-0.jsonl").write_bytes(orjson.dumps(fields) + b"\n")
    spool = Spool(tmp_path)
    spool.adopt()
    assert emptied(spool) == [kept]


def test_a_folder_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        Spool(tmp_path / "file" / "spool")


def test_others_cannot_read_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.append([row()])
    (path,) = (tmp_path / "spool").glob("*.jsonl")
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    spool.close()
