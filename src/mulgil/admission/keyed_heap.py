"""A heap of keys whose values change."""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", float, tuple[float, float])

_SLACK = 64


class KeyedHeap(Generic[K, V]):
    """Knows the key with the smallest value. Every step takes O(log n), amortised.

    A value that is replaced stays in the heap, marked by its age as old, until it comes up or until half of
    the heap is old: so memory is O(n) too. Of keys with equal values the one set first comes first.
    """

    def __init__(self) -> None:
        self._now: dict[K, tuple[V, int]] = {}
        self._heap: list[tuple[V, int, K]] = []
        self._sets = 0

    def __len__(self) -> int:
        return len(self._now)

    def set(self, key: K, value: V) -> None:
        """Give *key* this value, whether or not it had one."""
        self._sets += 1  # unique, so that keys are never compared
        self._now[key] = value, self._sets
        heapq.heappush(self._heap, (value, self._sets, key))
        self._tidy()

    def discard(self, key: K) -> None:
        """Forget *key*; no harm if it is not there."""
        self._now.pop(key, None)
        self._tidy()

    def clear(self) -> list[K]:
        """Forget all keys, and say which they were."""
        keys = list(self._now)
        self._now.clear()
        self._heap.clear()
        return keys

    def first(self) -> tuple[K, V] | None:
        """The key with the smallest value, and that value; None if there is no key."""
        while self._heap:
            value, age, key = self._heap[0]
            if self._now.get(key) == (value, age):
                return key, value
            heapq.heappop(self._heap)
        return None

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._now) + _SLACK:
            self._heap = [(value, age, key) for key, (value, age) in self._now.items()]
            heapq.heapify(self._heap)
