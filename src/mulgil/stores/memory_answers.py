"""Answers in the memory of this process: the least recently used go first."""

import time
from collections import OrderedDict
from collections.abc import Callable

_OF_ITSELF = 300  # bytes that an entry takes beside its value: key, tuple, its place in the table


class MemoryAnswers:
    """Implements `AnswerStore`.

    Args:
        most_entries: how many are kept.
        most_bytes: of all of them, what they take beside their values included.
        now: seconds, of a clock that only goes forward.
    """

    def __init__(self, *, most_entries: int, most_bytes: int, now: Callable[[], float] = time.monotonic) -> None:
        self._most_entries = most_entries
        self._most_bytes = most_bytes
        self._now = now
        self._entries: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._bytes = 0

    @property
    def held(self) -> tuple[int, int] | None:
        return len(self._entries), self._bytes

    async def get(self, key: str) -> bytes | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        until, value = entry
        if self._now() >= until:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return value

    async def put(self, key: str, value: bytes, ttl: float) -> None:
        self._drop(key)
        self._entries[key] = self._now() + ttl, value
        self._bytes += len(value) + _OF_ITSELF
        while len(self._entries) > self._most_entries or self._bytes > self._most_bytes:
            self._drop(next(iter(self._entries)))

    async def close(self) -> None:
        self._entries.clear()
        self._bytes = 0

    def _drop(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= len(entry[1]) + _OF_ITSELF
