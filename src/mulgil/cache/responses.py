"""The cache itself: finds answers and keeps them, within bounds, and never fails anybody."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from mulgil.admission.store import StoreError
from mulgil.aside import Aside
from mulgil.cache.control import CacheControl
from mulgil.cache.entry import Entry, opened, sealed
from mulgil.cache.sealing import Seal
from mulgil.cache.store import AnswerStore
from mulgil.engine.snapshot import Snapshot

log = logging.getLogger(__name__)

_PAUSE = 1.0  # seconds for which a store that did not answer is not asked


@dataclass(frozen=True, slots=True)
class CacheRules:
    """How long and how much is kept.

    Attributes:
        ttl: seconds that an answer is kept.
        most_bytes: of one entry.
    """

    ttl: float = 3_600.0
    most_bytes: int = 1024 * 1024


@dataclass(slots=True)
class CacheCounters:
    """What went wrong since the process began.

    Attributes:
        unavailable: steps at which the store did not answer.
        ignored: entries that were no answers of ours.
        too_large: answers that were not kept for their size.
    """

    unavailable: int = 0
    ignored: int = 0
    too_large: int = 0


class ResponseCache:
    """Answers in a store.

    Args:
        store: where they are.
        seal: makes sure that they are ours.
        rules: how long and how much is kept.
        now: Unix time.
    """

    def __init__(self, store: AnswerStore, seal: Seal, rules: CacheRules, now: Callable[[], float] = time.time) -> None:
        self.store = store
        self.counters = CacheCounters()
        self._seal = seal
        self._rules = rules
        self._now = now
        self._aside = Aside()
        self._away_until = 0.0

    async def find(self, key: str, control: CacheControl) -> Entry | None:
        """The answer under *key*, if it is one and as new as *control* wants it."""
        if time.monotonic() < self._away_until:
            return None
        try:
            raw = await self.store.get(key)
        except StoreError as error:
            self._note(error)
            return None
        if raw is None:
            return None
        entry = await self._aside.run(lambda: opened(raw, key, self._seal), size=len(raw))
        if entry is None:
            self.counters.ignored += 1
            log.warning("an entry of the response cache is none of ours, or was changed: it is ignored")
            return None
        # Another gateway's clock may be ahead.
        age = max(0.0, self._now() - entry.made_at)
        return entry if age <= self._rules.ttl and control.takes(age) else None

    async def keep(self, key: str, prompt_tokens: int, snapshot: Snapshot, dropped_messages: int = 0) -> None:
        """Keep the whole answer *snapshot* to a prompt of so many tokens, which a conversation was shortened to."""
        if time.monotonic() < self._away_until:
            return
        entry = Entry(
            made_at=self._now(),
            prompt_tokens=prompt_tokens,
            choices=snapshot.choices,
            dropped_messages=dropped_messages,
        )
        size = sum(len(choice.text) + 100 * len(choice.logprobs) for choice in snapshot.choices)
        value = await self._aside.run(lambda: sealed(entry, key, self._seal), size=size)
        if len(value) > self._rules.most_bytes:
            self.counters.too_large += 1
            return
        try:
            await self.store.put(key, value, self._rules.ttl)
        except StoreError as error:
            self._note(error)

    def _note(self, error: StoreError) -> None:
        self.counters.unavailable += 1
        self._away_until = time.monotonic() + _PAUSE
        log.warning("the response cache does not answer: %s", error)
