"""Where keys come from: the ports, the sources for the quick start, and several sources as one."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from mulgil.auth.keys import Caller, KeyRecord, digest, is_of_our_making, public_prefix, stored_form

_NAME_DIGITS = 8


class KeySource(Protocol):
    """Finds the caller behind a presented key."""

    async def find(self, key: bytes) -> Caller | None:
        """The caller, or None when the key is unknown, expired or disabled; empty means no key.

        Raises:
            KeysUnavailableError: it cannot be said. Never anything else, for any bytes.
        """
        ...

    def start(self) -> None:
        """Begin what goes on in the background; called in the event loop."""
        ...

    async def close(self) -> None:
        """End it, and let go of every connection."""
        ...


class KeyStore(Protocol):
    """Keeps the records of keys. Every method may raise `KeysUnavailableError`."""

    async def get(self, key_id: str) -> KeyRecord | None:
        """The record with this id."""
        ...

    async def list(self) -> Sequence[KeyRecord]:
        """All records, the oldest first."""
        ...

    async def add(self, record: KeyRecord) -> bool:
        """Keep a new record; False, and nothing done, when its id is taken."""
        ...

    async def change(self, key_id: str, change: Callable[[KeyRecord], KeyRecord]) -> KeyRecord | None:
        """Replace a record by what *change* makes of it, as one step; may call it again if others interfere.

        Returns:
            The new record; None when there is no such id.
        """
        ...

    async def delete(self, key_id: str) -> KeyRecord | None:
        """Forget a record; what it was, or None when there was none."""
        ...

    async def close(self) -> None:
        """Let go of every connection."""
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
            (kept := stored_form(entry)): Caller(
                key_id=f"key-{kept.removeprefix('sha256:')[:_NAME_DIGITS]}",
                tenant=tenant,
                # Of a key that somebody thought up, the first characters may be half of it.
                prefix=public_prefix(entry) if is_of_our_making(entry.encode()) else "",
            )
            for entry in entries
        }

    async def find(self, key: bytes) -> Caller | None:
        return self._callers.get(digest(key))

    def start(self) -> None:
        pass

    async def close(self) -> None:
        pass


class OpenDoor:
    """`--insecure`: whoever comes is the same caller, with or without a key."""

    async def find(self, key: bytes) -> Caller | None:
        return Caller(key_id="insecure", tenant="default")

    def start(self) -> None:
        pass

    async def close(self) -> None:
        pass


class KeyChain:
    """Several sources as one: the first that knows a key is believed.

    Args:
        sources: in the order in which they are asked; those that cannot fail come first.
        stores: under them, where keys are made and changed; the first one is written to.
    """

    def __init__(self, sources: Sequence[KeySource], stores: Sequence[KeyStore] = ()) -> None:
        self._sources = sources
        self._stores = stores

    @property
    def store(self) -> KeyStore | None:
        """The store that is written to, if there is one."""
        return self._stores[0] if self._stores else None

    async def find(self, key: bytes) -> Caller | None:
        for source in self._sources:
            if caller := await source.find(key):
                return caller
        return None

    def start(self) -> None:
        for source in self._sources:
            source.start()

    async def close(self) -> None:
        for source in self._sources:
            await source.close()
        for store in self._stores:
            await store.close()
