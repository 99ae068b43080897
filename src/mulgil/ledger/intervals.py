"""What a sample tells of where it is from: a median, a mean or a share, and how sure that is.

Every interval covers the truth in about 95 of 100 samples, if the numbers in a sample have nothing to do with each
other.

- **Times have medians.** Their tails are long: one request that met a cold engine moves a mean by more than a variant
  does. An interval between two order statistics supposes nothing of the distribution.
- **Lengths have means.** They are bounded by `max_tokens`, and the mean is what is paid for.
- **Ends have shares,** with intervals that stay between 0 and 1 and are right near both.
"""

import math
import random
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Protocol, Self

from mulgil.ledger.distributions import at_most, t_quantile

CONFIDENCE = 0.95
"""Of each interval."""

_TAIL = (1 - CONFIDENCE) / 2
_Z = NormalDist().inv_cdf(1 - _TAIL)
_FEWEST_FOR_A_MEDIAN = 6  # 2 · 2⁻⁵ is more than 5 %
_KEPT = 100_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number, and the interval that it is in.

    Attributes:
        value: the best guess.
        low, high: the ends of the interval; None where the sample is too small for one.
    """

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def excludes_zero(self) -> bool:
        """The interval has 0 outside."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


class Sample(Protocol):
    """Numbers that were observed.

    Attributes:
        count: how many.
    """

    count: int

    def estimate(self) -> Estimate | None:
        """What they tell; None if there are none."""
        ...

    def minus(self, control: Self) -> Estimate | None:
        """How much more that is than what *control* tells; None if either has none."""
        ...


@dataclass(slots=True)
class Median:
    """A sample of which the median is asked for. Of a large one it keeps 100,000 numbers, each with the same chance.

    By Vitter's algorithm R (1985); the chance is seeded, so that a report repeats itself.
    """

    count: int = 0
    kept: int = _KEPT
    _values: list[float] = field(default_factory=list)
    _chance: random.Random = field(default_factory=lambda: random.Random(20261130))

    def add(self, value: float) -> None:
        """One more."""
        self.count += 1
        if len(self._values) < self.kept:
            self._values.append(value)
        elif (place := self._chance.randrange(self.count)) < self.kept:
            self._values[place] = value

    def estimate(self) -> Estimate | None:
        """The median, between the order statistics that are told by the binomial distribution.

        Conover, Practical Nonparametric Statistics, 3rd ed., 3.2; Hahn and Meeker, Statistical Intervals, 5.2.
        """
        values = self._ordered()
        if not values:
            return None
        if len(values) < _FEWEST_FOR_A_MEDIAN:
            return Estimate(_middle(values))
        rank = _rank(len(values))
        return Estimate(_middle(values), values[rank - 1], values[-rank])

    def minus(self, control: Self) -> Estimate | None:
        """The difference of the medians, whose variances are told by order statistics.

        Price and Bonett, Distribution-free confidence intervals for difference and ratio of medians, Journal of
        Statistical Computation and Simulation 72 (2002).
        """
        ours, theirs = self._ordered(), control._ordered()
        if not ours or not theirs:
            return None
        value = _middle(ours) - _middle(theirs)
        if min(len(ours), len(theirs)) < _FEWEST_FOR_A_MEDIAN:
            return Estimate(value)
        return _around(value, _Z * math.hypot(_error_of_median(ours), _error_of_median(theirs)))

    def _ordered(self) -> list[float]:
        # In its place: what takes the place of another is chosen by chance, so their order does not matter.
        self._values.sort()
        return self._values


@dataclass(slots=True)
class Mean:
    """A sample of which the mean is asked for; keeps no numbers (Welford 1962; Knuth, TAOCP 2, 4.2.2)."""

    count: int = 0
    mean: float = 0.0
    _squares: float = 0.0

    def add(self, value: float) -> None:
        """One more."""
        self.count += 1
        step = value - self.mean
        self.mean += step / self.count
        self._squares += step * (value - self.mean)

    def estimate(self) -> Estimate | None:
        """The mean and Student's interval."""
        if not self.count:
            return None
        if self.count == 1:
            return Estimate(self.mean)
        return _around(self.mean, t_quantile(_TAIL, self.count - 1) * math.sqrt(self._variance))

    def minus(self, control: Self) -> Estimate | None:
        """The difference of the means and Welch's interval, which does not take the variances for equal.

        Welch, The generalization of Student's problem when several different population variances are involved,
        Biometrika 34 (1947); degrees of freedom by Satterthwaite (1946).
        """
        if not self.count or not control.count:
            return None
        value = self.mean - control.mean
        if self.count == 1 or control.count == 1:
            return Estimate(value)
        ours, theirs = self._variance, control._variance
        if not ours + theirs:
            return _around(value, 0.0)
        freedom = (ours + theirs) ** 2 / (ours**2 / (self.count - 1) + theirs**2 / (control.count - 1))
        return _around(value, t_quantile(_TAIL, freedom) * math.sqrt(ours + theirs))

    @property
    def _variance(self) -> float:
        """Of the mean."""
        return self._squares / (self.count - 1) / self.count


@dataclass(slots=True)
class Share:
    """Of *count* things *hits* are so."""

    count: int
    hits: int

    def estimate(self) -> Estimate | None:
        """The share and Wilson's interval.

        Wilson, Probable inference, the law of succession, and statistical inference, JASA 22 (1927); recommended by
        Brown, Cai and DasGupta, Interval estimation for a binomial proportion, Statistical Science 16 (2001).
        """
        if not self.count:
            return None
        share, bound = self.hits / self.count, _Z**2 / self.count
        centre = (share + bound / 2) / (1 + bound)
        half = math.sqrt(share * (1 - share) * bound + bound**2 / 4) / (1 + bound)
        # Rounding must not lead out of what is possible, nor leave the share outside.
        return Estimate(share, min(max(centre - half, 0.0), share), max(min(centre + half, 1.0), share))

    def minus(self, control: Self) -> Estimate | None:
        """The difference of the shares and Newcombe's interval, made of Wilson's two.

        Newcombe, Interval estimation for the difference between independent proportions, Statistics in Medicine 17
        (1998), method 10.
        """
        ours, theirs = self.estimate(), control.estimate()
        if ours is None or theirs is None:
            return None
        assert ours.low is not None
        assert ours.high is not None
        assert theirs.low is not None
        assert theirs.high is not None
        value = ours.value - theirs.value
        below = math.hypot(ours.value - ours.low, theirs.high - theirs.value)
        above = math.hypot(ours.high - ours.value, theirs.value - theirs.low)
        return Estimate(value, value - below, value + above)


def _around(value: float, half: float) -> Estimate:
    return Estimate(value, value - half, value + half)


def _middle(ordered: list[float]) -> float:
    size = len(ordered)
    return (ordered[(size - 1) // 2] + ordered[size // 2]) / 2


def _rank(size: int) -> int:
    """The largest one whose order statistic is above the median, and whose mirror image below it, in at most 5 %."""
    low, high = 1, size // 2
    while low < high:
        middle = (low + high + 1) // 2
        if at_most(middle - 1, size) <= _TAIL:
            low = middle
        else:
            high = middle - 1
    return low


def _error_of_median(ordered: list[float]) -> float:
    """The standard error of the median."""
    size = len(ordered)
    rank = max(1, round((size + 1) / 2 - math.sqrt(size)))
    return (ordered[-rank] - ordered[rank - 1]) / (2 * NormalDist().inv_cdf(1 - at_most(rank - 1, size)))
