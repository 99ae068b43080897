"""Where keys come from: the port, and the source for the quick start."""

from collections.abc import Iterable
from typing import Protocol

from mulgil.auth.keys import Caller, digest, stored_form

_NAME_DIGITS = 8


class KeySource(Protocol):
    """Finds the caller behind a presented key."""

    async def find(self, key: bytes) -> Caller | None:
        """The caller, or None when the key is not known. Never raises for any bytes; empty means no key."""
        ...


class StaticKeys:
    """The keys of `MULGIL_API_KEYS`: plain or as digests, all of one tenant.

    A key is looked up by its digest. What the time of that look-up tells is about digests of
    256-bit secrets, which helps nobody to find a key.

    Raises:
        ValueError: an entry is not a key; the message does not repeat it.
    """

    def __init__(self, entries: Iterable[str], *, tenant: str = "default") -> None:
        self._callers = {
            kept: Caller(key_id=f"key-{kept.removeprefix('sha256:')[:_NAME_DIGITS]}", tenant=tenant)
            for kept in map(stored_form, entries)
        }

    async def find(self, key: bytes) -> Caller | None:
        return self._callers.get(digest(key))


class OpenDoor:
    """`--insecure`: whoever comes is the same caller, with or without a key."""

    async def find(self, key: bytes) -> Caller | None:
        return Caller(key_id="insecure", tenant="default")
