"""Keys in a file: noticed when they change, kept when an edit breaks them, never half written."""

import asyncio
import logging
import os
import stat
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness import eventually
from keyrecords import made, now

from mulgil.auth.file import FileKeys, KeyFile
from mulgil.auth.keys import KeyRecord, ReplacedKey, digest, new_key
from mulgil.errors import KeysUnavailableError

INTERVAL = 0.02


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "keys.toml")


@asynccontextmanager
async def polling(file: KeyFile, *, every: float = INTERVAL) -> AsyncGenerator[FileKeys]:
    source = FileKeys(file, poll_interval=every)
    source.start()
    try:
        yield source
    finally:
        await source.close()


async def test_keys_are_found_by_key_with_all_that_the_record_says(file: KeyFile) -> None:
    key, record = made(tenant="acme", tier="gold", models=("m",))
    await file.add(record)
    source = FileKeys(file)
    assert await source.find(key.encode()) == record.caller
    for other in (b"", b"caf\xe9", key[:-1].encode(), record.digest.encode(), b"x" * 10_000):
        assert await source.find(other) is None


async def test_expired_disabled_and_unknown_keys_are_all_alike(file: KeyFile) -> None:
    for fields in ({"expires": now(seconds=-1)}, {"disabled": True}):
        key, record = made(**fields)
        await file.add(record)
        assert await FileKeys(file).find(key.encode()) is None
    assert await FileKeys(file).find(new_key().encode()) is None


async def test_an_edit_takes_effect_within_two_seconds(file: KeyFile) -> None:
    first, record = made()
    second, another = made()
    await file.add(record)
    async with polling(file, every=0.5) as source:
        await file.add(another)
        await file.change(record.id, lambda old: old.model_copy(update={"disabled": True}))
        started = time.monotonic()
        while await source.find(second.encode()) is None:
            await asyncio.sleep(0.01)
        assert time.monotonic() - started < 2
        assert await source.find(first.encode()) is None


BROKEN = {
    "no TOML": "[[keys]\n",
    "half of it": '[[keys]]\nid = "key_1"\ndigest = "sha2',
    "a plain key instead of its digest": '[[keys]]\nid = "k"\ndigest = "SECRET"\ncreated = 2026-01-01T00:00:00Z\n',
    "a misspelt field": f'[[keys]]\nid = "k"\ndigest = "{digest(b"x")}"\ncreated = 2026-01-01T00:00:00Z\nexpire = 1\n',
    "a local time": f'[[keys]]\nid = "k"\ndigest = "{digest(b"x")}"\ncreated = 2026-01-01T00:00:00\n',
    "an id twice": "".join(
        f'[[keys]]\nid = "k"\ndigest = "{digest(key)}"\ncreated = 2026-01-01T00:00:00Z\n' for key in (b"x", b"y")
    ),
    "a digest twice": "".join(
        f'[[keys]]\nid = "{name}"\ndigest = "{digest(b"x")}"\ncreated = 2026-01-01T00:00:00Z\n' for name in "ab"
    ),
    "no UTF-8": "\udcff",
    "nesting without end": "a = " + "[" * 100_000,
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_edit_changes_nothing_but_the_problem_and_is_logged_once(
    file: KeyFile, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    key, record = made()
    await file.add(record)
    good = file.path.read_bytes()
    async with polling(file) as source:
        file.path.write_text(text, encoding="utf-8", errors="surrogateescape")
        await eventually(lambda: source.problem is not None)
        await asyncio.sleep(5 * INTERVAL)
        assert source.problem is not None
        assert str(file.path) in source.problem
        assert await source.find(key.encode()) == record.caller
        file.path.write_bytes(good)
        await eventually(lambda: source.problem is None)
        assert await source.find(key.encode()) == record.caller
    errors = [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert "SECRET" not in errors[0]


async def test_an_edit_that_is_under_way_is_not_believed(file: KeyFile) -> None:
    key, record = made()
    await file.add(record)
    good = file.path.read_bytes()
    source = FileKeys(file)
    for part in (b"", good[:-20], good + b"#"):
        file.path.write_bytes(part)
        source.refresh()
        assert (await source.find(key.encode()), source.problem) == (record.caller, None)
    source.refresh()
    assert (await source.find(key.encode()), source.problem) == (record.caller, None)
    file.path.write_bytes(b"")
    source.refresh()
    source.refresh()
    assert await source.find(key.encode()) is None


async def test_a_file_that_is_gone_leaves_its_keys_in_force(file: KeyFile) -> None:
    key, record = made()
    await file.add(record)
    async with polling(file) as source:
        file.path.unlink()
        await eventually(lambda: source.problem is not None)
        assert await source.find(key.encode()) == record.caller


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_file_is_refused_at_the_start_and_never_overwritten(file: KeyFile, text: str) -> None:
    file.path.write_text(text, encoding="utf-8", errors="surrogateescape")
    before = file.path.read_bytes()
    with pytest.raises(ValueError, match=r"keys\.toml"):
        FileKeys(file)
    with pytest.raises(KeysUnavailableError):
        await file.add(made()[1])
    assert file.path.read_bytes() == before


def test_a_file_must_exist_to_be_a_source(file: KeyFile) -> None:
    with pytest.raises(ValueError, match="No such file"):
        FileKeys(file)


async def test_what_is_written_is_read_again_whatever_it_holds(file: KeyFile) -> None:
    records = [
        made(models=('a"b', "c\\d", "モデル", "e'f", "𝕸", "# x"), tenant="a:b@c+d.e-f")[1],
        made(expires=now(days=1), replaced=ReplacedKey(digest=digest(b"old"), valid_until=now(hours=1)))[1],
        made(disabled=True)[1],
    ]
    for record in records:
        await file.add(record)
    assert list(file.read().values()) == records
    assert file.path.read_text().startswith("# ")


async def test_the_file_is_its_owners_alone_and_keeps_the_mode_that_it_is_given(file: KeyFile) -> None:
    await file.add(made()[1])
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    file.path.chmod(0o640)
    await file.add(made()[1])
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o640
    assert {path.name for path in file.path.parent.iterdir()} == {"keys.toml", ".keys.toml.lock"}


async def test_a_link_is_followed_not_replaced(file: KeyFile, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere" / "real.toml"
    target.parent.mkdir()
    file.path.symlink_to(target)
    _, record = made()
    await file.add(record)
    assert file.path.is_symlink()
    assert KeyFile(target).read() == {record.id: record}


async def test_a_write_that_fails_leaves_the_file_as_it_was(file: KeyFile, tmp_path: Path) -> None:
    await file.add(made()[1])
    before = file.path.read_bytes()
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(KeysUnavailableError):
        await KeyFile(folder).add(made()[1])
    assert file.path.read_bytes() == before


ADD_TEN = """
import asyncio, sys
from datetime import UTC, datetime
from pathlib import Path
from mulgil.auth.file import KeyFile
from mulgil.auth.keys import KeyRecord, digest, new_key, new_key_id

async def add():
    for _ in range(10):
        record = KeyRecord(id=new_key_id(), digest=digest(new_key().encode()), created=datetime.now(UTC))
        await KeyFile(Path(sys.argv[1])).add(record)

asyncio.run(add())
"""


async def test_writers_at_the_same_time_lose_nothing_and_readers_never_see_half(file: KeyFile) -> None:
    await file.add(made()[1])
    command = [sys.executable, "-c", ADD_TEN, str(file.path)]
    writers = [await asyncio.create_subprocess_exec(*command) for _ in range(3)]
    ended = asyncio.gather(*(writer.wait() for writer in writers))
    while not ended.done():
        assert file.read()
        await asyncio.sleep(0.005)
    assert await ended == [0, 0, 0]
    assert len(file.read()) == 31


def cost(source: FileKeys, key: bytes) -> float:
    """Seconds for one look-up, as the best of some hundreds."""

    async def measure() -> float:
        rounds = []
        for _ in range(20):
            started = time.perf_counter()
            for _ in range(100):
                await source.find(key)
            rounds.append((time.perf_counter() - started) / 100)
        return min(rounds)

    return asyncio.run(measure())


async def test_ten_thousand_keys_are_found_as_fast_as_ten(tmp_path: Path) -> None:
    costs = []
    for count in (10, 10_000):
        file = KeyFile(tmp_path / f"{count}.toml")
        pairs = [made() for _ in range(count)]
        everything = {record.id: record for _, record in pairs}

        def replace(records: dict[str, KeyRecord], found: dict[str, KeyRecord] = everything) -> None:
            records.update(found)

        await file._edit(replace)
        source = FileKeys(file)
        costs.append(await asyncio.to_thread(cost, source, pairs[count // 2][0].encode()))
    assert costs[1] < 3 * costs[0], statistics.mean(costs)


async def test_looking_up_a_key_never_touches_the_file(file: KeyFile) -> None:
    key, record = made()
    await file.add(record)
    source = FileKeys(file)
    os.unlink(file.path)
    assert await source.find(key.encode()) == record.caller
    assert source.problem is None
