"""Keys in a TOML file: how it is read and written, and a source that notices when it changes."""

import asyncio
import contextlib
import fcntl
import logging
import os
import tempfile
import time
import tomllib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mulgil.auth.keys import Caller, KeyRecord, digest
from mulgil.errors import KeysUnavailableError

T = TypeVar("T")

log = logging.getLogger(__name__)

_HEADER = """\
# The keys of Mulgil: their digests, from which no key can be found.
# `mulgil keys` rewrites this file and keeps its own fields only; comments are lost.
"""
_LONGEST_WAIT = 5.0
_RETRY = 0.02

Stamp = tuple[int, int, int]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid")

    keys: list[KeyRecord] = Field(default_factory=list)


class KeyFile:
    """A `KeyStore` in one file, which may be missing until the first key is added.

    It is replaced as a whole, under a lock that all programs of ours take, so that whoever reads it sees
    all of an edit or nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, KeyRecord]:
        """The records by id.

        Raises:
            ValueError: it cannot be read, or is wrong; says where, and repeats no value.
        """
        try:
            document = _Document.model_validate(tomllib.loads(self.path.read_text(encoding="utf-8")))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            raise ValueError(f"{self.path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        except (OSError, ValueError, RecursionError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ValueError(f"{self.path}: {reason}") from None
        records = {record.id: record for record in document.keys}
        if len(records) < len(document.keys):
            raise ValueError(f"{self.path}: two keys have the same id")
        if len(by_digest(records)) < sum(len(record.digests) for record in document.keys):
            raise ValueError(f"{self.path}: two entries have the same digest")
        return records

    def stamp(self) -> Stamp | None:
        """Differs when the file has changed; None when there is none."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    async def get(self, key_id: str) -> KeyRecord | None:
        return (await self._records()).get(key_id)

    async def list(self) -> Sequence[KeyRecord]:
        return sorted((await self._records()).values(), key=lambda record: record.created)

    async def add(self, record: KeyRecord) -> bool:
        return await self._edit(lambda records: records.setdefault(record.id, record) is record)

    async def change(self, key_id: str, change: Callable[[KeyRecord], KeyRecord]) -> KeyRecord | None:
        def edit(records: dict[str, KeyRecord]) -> KeyRecord | None:
            if key_id in records:
                records[key_id] = change(records[key_id])
            return records.get(key_id)

        return await self._edit(edit)

    async def delete(self, key_id: str) -> KeyRecord | None:
        return await self._edit(lambda records: records.pop(key_id, None))

    async def close(self) -> None:
        pass

    async def _records(self) -> dict[str, KeyRecord]:
        # Who only reads needs no lock, and may have no right to make one.
        return await _in_thread(self.read)

    async def _edit(self, edit: Callable[[dict[str, KeyRecord]], T]) -> T:
        """What *edit* returns; the file becomes what it leaves."""

        def step() -> T:
            path = self.path.resolve()
            with _lock(path):
                records = self.read() if path.exists() else {}
                before = dict(records)
                result = edit(records)
                if records != before:
                    _write(path, records)
                return result

        return await _in_thread(step)


class FileKeys:
    """The source of a file's keys: polls the file, and never touches it while somebody waits.

    A change is read when the file has looked the same twice: many an editor empties a file before it
    writes, and an empty file has no keys. An edit that makes the file unreadable or wrong changes nothing
    but `problem`.

    Args:
        file: the file.
        poll_interval: seconds between two looks at it.

    Raises:
        ValueError: the file cannot be read as it is now.
    """

    def __init__(self, file: KeyFile, *, poll_interval: float = 0.5) -> None:
        self._file = file
        self._poll_interval = poll_interval
        self._polling: asyncio.Task[None] | None = None
        self._stamp = self._seen = file.stamp()
        self._records = by_digest(file.read())
        self.problem: str | None = None

    async def find(self, key: bytes) -> Caller | None:
        presented = digest(key)
        record = self._records.get(presented)
        return record.caller if record is not None and record.opened_by(presented, datetime.now(UTC)) else None

    def start(self) -> None:
        self._polling = asyncio.create_task(self._poll())

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._polling

    def refresh(self) -> None:
        """Look once."""
        stamp = self._file.stamp()
        at_rest, self._seen = stamp == self._seen, stamp
        if stamp == self._stamp or not at_rest:
            return
        try:
            records = by_digest(self._file.read())
        except ValueError as error:
            records, problem = None, str(error)
        if self._file.stamp() != stamp:
            return  # Somebody is writing just now.
        self._stamp = stamp
        if records is None:
            self.problem = problem
            log.error("%s; the keys that were read before stay in force", problem)
            return
        self._records, self.problem = records, None
        log.info("%s: %d keys are in force", self._file.path, len({record.id for record in records.values()}))

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._poll_interval)
            await asyncio.to_thread(self.refresh)


def by_digest(records: Mapping[str, KeyRecord]) -> dict[str, KeyRecord]:
    """The records by every digest under which they may be found."""
    return {found_by: record for record in records.values() for found_by in record.digests}


async def _in_thread(step: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(step)
    except (OSError, ValueError) as error:
        raise KeysUnavailableError(f"The keys cannot be read or written: {error}") from error


@contextmanager
def _lock(path: Path) -> Generator[None]:
    """Holds what all writers of *path* hold: a file of its own, since *path* itself is replaced.

    It can be opened by everybody, or root's lock would lock the gateway's user out for ever.
    """
    deadline = time.monotonic() + _LONGEST_WAIT
    file = os.open(path.with_name(f".{path.name}.lock"), os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY)
        yield
    finally:
        os.close(file)


def _write(path: Path, records: Mapping[str, KeyRecord]) -> None:
    """Replace *path*, so that neither a reader nor a power cut ever meets half of it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(_HEADER + "".join(_table(record) for record in records.values()))
            with contextlib.suppress(FileNotFoundError, PermissionError):
                # The gateway must be able to read what another user, say root, has written.
                kept = path.stat()
                os.fchmod(descriptor, kept.st_mode & 0o777)
                os.fchown(descriptor, kept.st_uid, kept.st_gid)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _table(record: KeyRecord) -> str:
    fields = record.model_dump(exclude_none=True, exclude_defaults=True) | {
        "tenant": record.tenant,
        "tier": record.tier,
    }
    return "\n[[keys]]\n" + "".join(f"{name} = {_value(value)}\n" for name, value in fields.items())


def _value(value: Any) -> str:
    """*value* as TOML, whose strings are JSON's for all characters that records may have."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{name} = {_value(inner)}' for name, inner in value.items())} }}"
    return orjson.dumps(value).decode()
