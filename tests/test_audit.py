"""The audit log: a line for each change, wherever it may be."""

import logging
import stat
from pathlib import Path

import orjson
import pytest

from mulgil.audit import Actor, Audit


def test_a_line_says_who_what_and_when(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mulgil.audit")
    path = tmp_path / "audit.jsonl"
    audit = Audit(path)
    audit.write(Actor("admin", "req_1"), "key.create", key_id="key_1", tenant="acme", values=None)
    audit.write(Actor("cli:root"), "key.delete", key_id="key_1", tenant="acme")
    first, second = [orjson.loads(line) for line in path.read_text().splitlines()]
    assert first.pop("at").endswith("Z")
    assert first == {"who": "admin", "what": "key.create", "request_id": "req_1", "key_id": "key_1", "tenant": "acme"}
    assert (second["who"], "request_id" in second) == ("cli:root", False)
    assert [orjson.loads(message)["what"] for message in caplog.messages] == ["key.create", "key.delete"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_file_may_be_moved_away_at_any_time(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = Audit(path)
    audit.write(Actor("admin"), "first")
    path.rename(tmp_path / "audit.jsonl.1")
    audit.write(Actor("admin"), "second")
    assert orjson.loads(path.read_text())["what"] == "second"


def test_without_a_file_there_is_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mulgil.audit")
    Audit().write(Actor("admin"), "something")
    assert [record.name for record in caplog.records] == ["mulgil.audit"]


def test_a_file_that_cannot_be_written_is_refused_at_the_start_and_logged_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match="audit log"):
        Audit(tmp_path)
    path = tmp_path / "folder" / "audit.jsonl"
    path.parent.mkdir()
    audit = Audit(path)
    path.unlink()
    path.parent.rmdir()
    audit.write(Actor("admin"), "something")
    assert [record.levelname for record in caplog.records if record.levelno > logging.INFO] == ["ERROR"]
