"""Rows that wait on the disk while the database is away: files of JSON lines, each owned by one living process."""

import contextlib
import fcntl
import logging
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path

import orjson

from mulgil.ledger.base import UsageRow

log = logging.getLogger(__name__)


class _File:
    """A file under a lock that ends with its process. Read from its beginning, written at its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._read = 0

    def owned(self) -> bool:
        """Whether it is ours from here on: nobody else's, and not removed meanwhile."""
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        with contextlib.suppress(FileNotFoundError):
            return os.fstat(self._handle).st_ino == self.path.stat().st_ino
        return False

    def append(self, data: bytes) -> None:
        """All of *data*, on the disk when it returns; or none of it."""
        end = os.fstat(self._handle).st_size
        try:
            while data:
                data = data[os.write(self._handle, data) :]
            os.fsync(self._handle)
        except OSError:
            os.ftruncate(self._handle, end)
            raise

    def lines(self, most: int) -> tuple[list[bytes], int]:
        """The next lines, and the bytes that they take; a last one that is not whole counts."""
        with open(self._handle, "rb", closefd=False) as file:
            file.seek(self._read)
            found = list(islice(file, most))
        return found, sum(map(len, found))

    def forget(self, size: int) -> None:
        """The next *size* bytes are safe elsewhere."""
        self._read += size

    def close(self, *, remove: bool) -> None:
        """Let go of it."""
        if remove:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
        os.close(self._handle)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rows of one file.

    Attributes:
        rows: what could be read; fewer than asked for is no sign of the end.
        size: bytes that they take; 0 at the end of the file.
        adopted: they are of a process that is no more.
    """

    rows: list[UsageRow]
    size: int
    adopted: bool


class Spool:
    """The rows of this process that wait on the disk, and those that processes have left which are no more.

    Everything here blocks, and may raise `OSError`: the disk is full, or not ours to write.

    Args:
        folder: where the files are; made when it is missing, readable by this user alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: list[_File] = []
        self._own: _File | None = None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Found out now rather than when the database is away.
        probe = folder / f".{secrets.token_hex(4)}"
        probe.touch()
        probe.unlink()

    def __bool__(self) -> bool:
        return bool(self._files)

    def adopt(self) -> None:
        """Take over what dead processes have left."""
        for path in sorted(set(self._folder.glob("*.jsonl")) - {file.path for file in self._files}):
            file = _File(path)
            if file.owned():
                log.warning("rows of usage that a process has left are taken over: %s", path.name)
                self._files.insert(0, file)
            else:
                file.close(remove=False)

    def append(self, rows: Sequence[UsageRow]) -> int:
        """Keep *rows*; they are on the disk when it returns their number."""
        while self._own is None:
            file = _File(self._folder / f"usage-{secrets.token_hex(8)}.jsonl")
            if file.owned():
                self._own = file
                self._files.append(file)
            else:
                file.close(remove=False)
        self._own.append(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows))
        return len(rows)

    def first(self, most: int) -> Waiting:
        """Rows that have waited longest."""
        file = self._files[0]
        lines, size = file.lines(most)
        return Waiting(_rows(lines), size, adopted=file is not self._own)

    def forget(self, waiting: Waiting) -> None:
        """What `first` has told is safe elsewhere. A file that is at its end is removed."""
        if waiting.size:
            self._files[0].forget(waiting.size)
            return
        file = self._files.pop(0)
        if file is self._own:
            self._own = None
        file.close(remove=True)

    def close(self) -> None:
        """Let go of the files; what waits in them is for the next process."""
        for file in self._files:
            file.close(remove=False)
        self._files, self._own = [], None


def _rows(lines: Sequence[bytes]) -> list[UsageRow]:
    rows = []
    for line in lines:
        try:
            fields = orjson.loads(line)
            rows.append(UsageRow(**fields | {"at": datetime.fromisoformat(fields["at"])}))
        except (ValueError, TypeError, KeyError):
            log.error("a spooled row of usage cannot be read: a process was killed while it wrote it")
    return rows
