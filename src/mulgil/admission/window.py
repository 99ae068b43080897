"""What one scope has used: one-second buckets, holds and places. Pure logic: it is told what time it is.

Times are whole milliseconds of the account's clock. The Redis scripts do the same in Lua; the contract
suite holds the two together.
"""

from array import array
from collections.abc import Iterator

from mulgil.admission.policy import BUCKET_LIFE, Balance, Charge, Dimension, Limits, Scope, Shortage

REQUESTS, INPUT, OUTPUT = range(3)
"""The dimensions that are counted in a window."""


class AccountClock:
    """The time of one account: that of its store, but it never goes back.

    After the store's clock was set back, it goes on from where it was, so that windows keep moving;
    as soon as the store's clock has caught up, that one counts again.
    """

    __slots__ = ("_last", "_seen")

    def __init__(self, store_time: int) -> None:
        self._last = self._seen = store_time

    def now(self, store_time: int) -> int:
        """The account's time at *store_time*; both in milliseconds."""
        if store_time < self._last:
            self._last += max(0, store_time - self._seen)
        else:
            self._last = store_time
        self._seen = store_time
        return self._last


class Window:
    """Charges in one-second buckets, of which 61 are counted. Its size does not depend on use."""

    __slots__ = ("_buckets", "_newest", "_oldest", "sums")

    def __init__(self) -> None:
        self._buckets = array("q", bytes(8 * 3 * BUCKET_LIFE))
        self._oldest = 0
        self._newest = [0, 0, 0]
        self.sums = [0, 0, 0]

    def advance(self, second: int) -> None:
        """Drop the buckets that have left by *second*. Comes before anything else in a step."""
        oldest = second - BUCKET_LIFE + 1
        for gone in range(self._oldest, min(oldest, self._oldest + BUCKET_LIFE)):
            for dimension in range(3):
                self._add(gone, dimension, -self._at(gone, dimension))
        self._oldest = max(self._oldest, oldest)

    def charge(self, second: int, dimension: int, amount: int) -> None:
        """Add to the bucket of *second*, which is the present one."""
        if amount:
            self._add(second, dimension, amount)
            self._newest[dimension] = second

    def give_back(self, second: int, dimension: int, amount: int) -> None:
        """Take out of the bucket of *second*, if it is still counted, what is in it."""
        if second >= self._oldest:
            self._add(second, dimension, -min(amount, self._at(second, dimension)))

    def empty_at(self, dimension: int) -> int | None:
        """When the last charge leaves; None when there is none."""
        if not self.sums[dimension]:
            return None
        newest = self._newest[dimension]
        while not self._at(newest, dimension):
            newest -= 1
        return (newest + BUCKET_LIFE) * 1000

    def freed_at(self, dimension: int, amount: int) -> int | None:
        """When so many buckets have left that *amount* is free; None when they do not hold as much."""
        for second, bucket in self._counted(dimension):
            amount -= bucket
            if amount <= 0:
                return (second + BUCKET_LIFE) * 1000
        return None

    def _counted(self, dimension: int) -> Iterator[tuple[int, int]]:
        for second in range(self._oldest, self._newest[dimension] + 1):
            yield second, self._at(second, dimension)

    def _at(self, second: int, dimension: int) -> int:
        return self._buckets[second % BUCKET_LIFE * 3 + dimension]

    def _add(self, second: int, dimension: int, amount: int) -> None:
        self._buckets[second % BUCKET_LIFE * 3 + dimension] += amount
        self.sums[dimension] += amount


class Usage:
    """One scope: its window, its output tokens on hold, its requests under way.

    Attributes:
        window: what is charged.
        held: output tokens on hold.
        open: requests under way.
        touched: when it was last used; for its owner, who drops the idle.
    """

    __slots__ = ("held", "open", "touched", "window")

    def __init__(self) -> None:
        self.window = Window()
        self.held = 0
        self.open = 0
        self.touched = 0

    def shortages(self, charge: Charge, limits: Limits, scope: Scope, now: int) -> list[Shortage]:
        """The limits that *charge* does not fit at *now*."""
        requests, prompt, output = self.window.sums
        checks: tuple[tuple[Dimension, int | None, int | None, int, int], ...] = (
            ("requests", REQUESTS, limits.requests, requests, 1),
            ("input_tokens", INPUT, limits.input_tokens, prompt, charge.input_tokens),
            ("output_tokens", OUTPUT, limits.output_tokens, output + self.held, charge.output_tokens),
            ("concurrency", None, limits.concurrency, self.open, 1),
        )
        found = []
        for name, dimension, limit, used, asked in checks:
            if limit is not None and used + asked > limit:
                moment = None if dimension is None else self.window.freed_at(dimension, used + asked - limit)
                wait = None if moment is None else (moment - now) / 1000
                found.append(Shortage(scope, name, limit, used, asked, wait))
        return found

    def balance(self, now: int) -> Balance:
        """What is used at *now*."""
        resets = []
        for dimension in (REQUESTS, INPUT, OUTPUT):
            empty = self.window.empty_at(dimension)
            if dimension == OUTPUT and self.held:
                empty = (now // 1000 + BUCKET_LIFE) * 1000
            resets.append(0.0 if empty is None else (empty - now) / 1000)
        requests, prompt, output = self.window.sums
        return Balance(requests, prompt, output, self.held, self.open, *resets)
