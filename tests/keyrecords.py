"""Keys and their records for the tests."""

from datetime import UTC, datetime, timedelta
from typing import Any

from mulgil.auth.keys import KeyRecord, digest, new_key, new_key_id, public_prefix


def record_of(key: str, **fields: Any) -> KeyRecord:
    """A record of *key*."""
    given = {"id": new_key_id(), "digest": digest(key.encode()), "prefix": public_prefix(key), "created": now()}
    return KeyRecord(**given | fields)


def made(**fields: Any) -> tuple[str, KeyRecord]:
    """A new key and its record."""
    key = new_key()
    return key, record_of(key, **fields)


def now(**later: float) -> datetime:
    """This moment, or one that is so much later."""
    return datetime.now(UTC) + timedelta(**later)
