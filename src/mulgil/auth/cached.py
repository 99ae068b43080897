"""Keys of a store that others share: remembered for a moment, and a little longer while it is away."""

import asyncio
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from mulgil.auth.keys import Caller, KeyRecord, digest, is_of_our_making
from mulgil.errors import KeysUnavailableError

log = logging.getLogger(__name__)


class Directory(Protocol):
    """Where a record is found by a key's digest."""

    async def by_digest(self, presented: str) -> KeyRecord | None:
        """The record of which this is the digest or the one before.

        Raises:
            KeysUnavailableError: no answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class Memory:
    """How much a `CachedKeys` remembers, and for how long.

    Attributes:
        fresh: seconds for which an answer is not asked for again: a change takes effect within them.
        grace: seconds for which a key that was right stays right while the directory does not answer.
        pause: seconds for which a directory that has just failed is left alone.
        known, unknown: most answers kept, of keys that exist and of those that do not.
    """

    fresh: float = 2.0
    grace: float = 60.0
    pause: float = 1.0
    known: int = 65_536
    unknown: int = 4_096


class CachedKeys:
    """A source that asks a directory, once at a time for each key. Expiry is exact whatever is remembered."""

    def __init__(self, directory: Directory, memory: Memory | None = None) -> None:
        self._directory = directory
        self._memory = memory or Memory()
        self._known: OrderedDict[str, tuple[KeyRecord, float]] = OrderedDict()
        self._unknown: OrderedDict[str, float] = OrderedDict()
        self._asking: dict[str, asyncio.Task[KeyRecord | None]] = {}
        self._silent_until = 0.0
        self._away = False

    async def find(self, key: bytes) -> Caller | None:
        if not is_of_our_making(key):
            return None  # Whatever strangers send: the directory holds none but ours.
        presented = digest(key)
        record = await self._record(presented)
        return record.caller if record is not None and record.opened_by(presented, datetime.now(UTC)) else None

    def start(self) -> None:
        pass

    async def close(self) -> None:
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def _record(self, presented: str) -> KeyRecord | None:
        now = time.monotonic()
        record, asked = self._known.get(presented, (None, self._unknown.get(presented, -float("inf"))))
        if now - asked < self._memory.fresh:
            return record
        try:
            return await self._ask(presented)
        except KeysUnavailableError:
            if record is not None and now - asked < self._memory.grace:
                return record
            raise

    async def _ask(self, presented: str) -> KeyRecord | None:
        task = self._asking.get(presented)
        if task is None:
            if time.monotonic() < self._silent_until:
                raise KeysUnavailableError("Your API key cannot be checked at the moment.")
            # A task of its own: a client that leaves must not end what others wait for.
            task = self._asking[presented] = asyncio.create_task(self._fetch(presented))
        return await asyncio.shield(task)

    async def _fetch(self, presented: str) -> KeyRecord | None:
        try:
            record = await self._directory.by_digest(presented)
        except KeysUnavailableError as error:
            self._silent_until = time.monotonic() + self._memory.pause
            if not self._away:
                self._away = True
                log.error("keys cannot be looked up: %s", error.__cause__ or error)
            raise KeysUnavailableError("Your API key cannot be checked at the moment.") from None
        finally:
            del self._asking[presented]
        if self._away:
            self._away = False
            log.info("keys can be looked up again")
        self._remember(presented, record)
        return record

    def _remember(self, presented: str, record: KeyRecord | None) -> None:
        self._known.pop(presented, None)
        self._unknown.pop(presented, None)
        if record is not None:
            self._known[presented] = record, time.monotonic()
        else:
            self._unknown[presented] = time.monotonic()
        if len(self._known) > self._memory.known:
            self._known.popitem(last=False)
        if len(self._unknown) > self._memory.unknown:
            self._unknown.popitem(last=False)
