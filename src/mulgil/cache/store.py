"""The port of a store of answers: bytes under a key, for a while."""

from typing import Protocol


class AnswerStore(Protocol):
    """Keeps what it can, and may forget anything at any time."""

    @property
    def held(self) -> tuple[int, int] | None:
        """Entries and bytes of this process's memory; None where they are kept elsewhere."""
        ...

    async def get(self, key: str) -> bytes | None:
        """What is kept under *key*, as far as anybody can say: it may be anything, cut off too.

        Raises:
            StoreError: the store does not answer.
        """
        ...

    async def put(self, key: str, value: bytes, ttl: float) -> None:
        """Keep *value* for *ttl* seconds at most, instead of what is there.

        Raises:
            StoreError: the store does not answer.
        """
        ...

    async def close(self) -> None:
        """Let go of every connection."""
        ...
