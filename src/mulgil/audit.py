"""Who changed what, and when: a line of JSON for each change of a key, a balance or an adapter. Never a
secret.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts.

    Attributes:
        name: `admin`, or `cli:` and the name of the user of the system.
        request_id: of the HTTP request, if it was one.
    """

    name: str
    request_id: str | None = None


class Audit:
    """Writes to a file, if there is one, and to the logger `mulgil.audit`.

    A line is one append, so that several processes may share the file, and it may be moved away at any
    time. A line that cannot be written to the file is logged as an error with the reason; what was done
    stays done.

    Args:
        path: the file; made when it is missing, readable by this user alone.

    Raises:
        ValueError: the file cannot be written.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        try:
            self._append(b"")
        except OSError as error:
            raise ValueError(f"the audit log cannot be written: {error}") from None

    def write(self, by: Actor, what: str, **details: Any) -> None:
        """Note that *by* did *what*; of *details*, what is None is left out."""
        entry = {"at": datetime.now(UTC), "who": by.name, "what": what, "request_id": by.request_id, **details}
        line = orjson.dumps(_without_nothing(entry), option=orjson.OPT_UTC_Z)
        log.info("%s", line.decode())
        try:
            self._append(line + b"\n")
        except OSError as error:
            log.error("the audit log cannot be written: %s", error)

    def _append(self, data: bytes) -> None:
        if self._path is not None:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(file, data)
            finally:
                os.close(file)


def _without_nothing(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if value is not None}
