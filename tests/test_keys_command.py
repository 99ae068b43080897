"""`mulgil keys`, as its user meets it: on a file, and on a real Valkey."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
from storeservers import StoreServer
from typer.testing import CliRunner, Result

from mulgil.auth.file import KeyFile
from mulgil.auth.keys import KeyRecord, digest
from mulgil.auth.source import KeyStore
from mulgil.cli import app as command_line
from mulgil.stores.redis_keys import RedisKeys

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("MULGIL_")}
TIERS = "[tiers.gold]\nrequests_per_minute = 600\n"
KEY = r"sk-mg-[A-Za-z0-9]{43}"

InProcess = Callable[..., Result]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(params=["file", "redis"])
def keys(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """`mulgil keys …` with tiers, an audit log, and a store of its own."""
    (tmp_path / "mulgil.toml").write_text(TIERS)
    where = {"MULGIL_KEYS_FILE": "keys.toml"}
    if request.param == "redis":
        server: StoreServer = request.getfixturevalue("store_server")
        where = {"MULGIL_REDIS_URL": server.url}

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        given = {"MULGIL_CONFIG": "mulgil.toml", "MULGIL_AUDIT_LOG": "audit.jsonl"} | where | variables
        return subprocess.run(
            [sys.executable, "-m", "mulgil", "keys", *arguments],
            cwd=tmp_path, env=ENVIRONMENT | given, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    return run


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> InProcess:
    """`mulgil keys …` without a process of its own, for long tables of errors."""
    for name in os.environ.keys() - ENVIRONMENT.keys():
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments, **variables: CliRunner(env=variables).invoke(command_line, ["keys", *arguments])


def of(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return orjson.loads(done.stdout)


def test_the_life_of_a_key_and_its_trace_in_the_audit_log(keys: Run, tmp_path: Path) -> None:
    options = ("--tier=gold", "--tenant=acme", "--models=a, b", "--expires=30d")
    issued = of(keys("create", *options, "--json"))
    key, key_id = issued["key"], issued["id"]
    assert re.fullmatch(KEY, key)
    assert (issued["tenant"], issued["tier"], issued["models"]) == ("acme", "gold", ["a", "b"])
    left = datetime.fromisoformat(issued["expires"]) - datetime.now(UTC)
    assert timedelta(days=29) < left < timedelta(days=30)
    del issued["key"]
    assert of(keys("show", key_id, "--json")) == issued
    rotated = of(keys("rotate", key_id, "--grace=1h", "--json"))
    assert rotated["key"] != key
    assert datetime.fromisoformat(rotated["replaced_valid_until"]) > datetime.now(UTC)
    assert of(keys("disable", key_id, "--json"))["status"] == "disabled"
    assert of(keys("enable", key_id, "--json"))["status"] == "active"
    assert [found["id"] for found in of(keys("list", "--json"))] == [key_id]
    assert of(keys("delete", key_id, "--json"))["id"] == key_id
    assert of(keys("list", "--json")) == []
    audit = (tmp_path / "audit.jsonl").read_text()
    lines = [orjson.loads(line) for line in audit.splitlines()]
    assert [line["what"] for line in lines] == ["key.create", "key.rotate", "key.change", "key.change", "key.delete"]
    assert all(line["who"].startswith("cli:") and line["key_id"] == key_id for line in lines)
    assert [line["values"] for line in lines if line["what"] == "key.change"] == [
        {"disabled": True},
        {"disabled": False},
    ]
    for secret in (key, rotated["key"], digest(key.encode())[7:]):
        assert secret not in audit


def test_for_people_it_is_a_table_and_the_key_stands_alone_on_the_first_line(keys: Run) -> None:
    made = keys("create", "--tenant=acme")
    assert made.returncode == 0
    key = made.stdout.splitlines()[0]
    assert re.fullmatch(KEY, key)
    assert "will not be shown again" in made.stderr
    listed = keys("list")
    head, row = listed.stdout.splitlines()
    assert head.split() == ["id", "prefix", "tenant", "tier", "models", "status", "expires", "created"]
    assert key[:10] in row
    assert "acme" in row
    for other in (listed.stdout, keys("show", row.split()[0]).stdout, keys("disable", row.split()[0]).stdout):
        assert other
        assert key not in other
        assert digest(key.encode())[7:] not in other


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("create", "--tier=silver"), 2, "there is no tier 'silver'. Expected one of: 'default', 'gold'."),
        (("create", "--tenant=a b"), 2, "Invalid 'tenant'"),
        (("create", "--models="), 2, "Invalid 'models'"),
        (("create", "--expires=2001-01-01"), 2, "in the future"),
        (("create", "--expires=soon"), 2, "--expires: 'soon'"),
        (("create", "--expires=9999999d"), 2, "--expires: '9999999d'"),
        (("rotate", "key_1", "--grace=1"), 2, "--grace: '1'"),
        (("rotate", "key_1", "--grace=31d"), 2, "Invalid 'grace'"),
        (("show", "key_1"), 1, "There is no key with the id 'key_1'."),
        (("rotate", "key_1"), 1, "There is no key"),
        (("disable", "key_1"), 1, "There is no key"),
        (("enable", "key_1"), 1, "There is no key"),
        (("delete", "key_1"), 1, "There is no key"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    in_process: InProcess, tmp_path: Path, arguments: tuple[str, ...], status: int, reason: str
) -> None:
    (tmp_path / "keys.toml").touch()
    (tmp_path / "mulgil.toml").write_text(TIERS)
    done = in_process(*arguments, MULGIL_KEYS_FILE="keys.toml", MULGIL_CONFIG="mulgil.toml")
    assert reason in done.stderr
    assert done.exit_code == status
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("call", "status", "reason"),
    [
        (((), {}), 2, "where are the keys?"),
        ((("--keys-file=none.toml",), {}), 1, "none.toml: No such file"),
        ((("--keys-file=broken.toml",), {}), 1, "broken.toml: keys.0.digest: String should match"),
        (((), {"MULGIL_KEYS_FILE": "none.toml", "MULGIL_CONFIG": "none.toml"}), 2, "none.toml"),
        (((), {"MULGIL_KEYS_FILE": "none.toml", "MULGIL_PROT": "1"}), 2, "no such setting: MULGIL_PROT"),
        (((), {"MULGIL_KEYS_FILE": "none.toml", "MULGIL_PORT": "x"}), 2, "MULGIL_PORT"),
        (((), {"MULGIL_KEYS_FILE": "none.toml", "MULGIL_AUDIT_LOG": "/"}), 2, "audit log"),
        (((), {"MULGIL_REDIS_URL": "http://user:SECRET@host"}), 2, "must begin with"),
        (((), {"MULGIL_REDIS_URL": "redis://user:SECRET@127.0.0.1:1"}), 1, "127.0.0.1:1"),
    ],
)
def test_where_the_keys_cannot_be_had_it_says_why_without_a_traceback(
    in_process: InProcess,
    tmp_path: Path,
    call: tuple[tuple[str, ...], dict[str, str]],
    status: int,
    reason: str,
) -> None:
    arguments, variables = call
    (tmp_path / "broken.toml").write_text('[[keys]]\nid = "k"\ndigest = "SECRET"\ncreated = 2026-01-01T00:00:00Z\n')
    done = in_process("list", *arguments, **variables)
    assert reason in done.stderr
    assert done.exit_code == status
    assert isinstance(done.exception, SystemExit)
    assert "SECRET" not in done.stderr


def test_without_grace_the_old_key_ends_at_once(keys: Run) -> None:
    key_id = of(keys("create", "--json"))["id"]
    assert of(keys("rotate", key_id, "--grace=0s", "--json"))["replaced_valid_until"] is None


def test_a_key_is_kept_as_its_digest_alone(in_process: InProcess, tmp_path: Path, store_server: StoreServer) -> None:
    stores: dict[str, tuple[str, Callable[[], KeyStore]]] = {
        "MULGIL_KEYS_FILE": ("keys.toml", lambda: KeyFile(tmp_path / "keys.toml")),
        "MULGIL_REDIS_URL": (store_server.url, lambda: RedisKeys(store_server.url)),
    }
    for variable, (where, connect) in stores.items():
        key = orjson.loads(in_process("create", "--json", **{variable: where}).stdout)["key"]
        (record,) = asyncio.run(all_of(connect))
        assert record.digest == digest(key.encode())
        assert key not in repr(record)


async def all_of(connect: Callable[[], KeyStore]) -> Sequence[KeyRecord]:
    store = connect()
    try:
        return await store.list()
    finally:
        await store.close()
