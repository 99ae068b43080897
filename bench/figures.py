"""Figures out of samples."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that *percent* of all do not exceed; 0 where there are none."""
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * percent / 100) - 1] if ordered else 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of repetitions, and how far they lie apart."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one repetition."""
        return cls(statistics.median(values), min(values), max(values))

    def shown(self, digits: int = 2, scale: float = 1.0) -> str:
        """`median (least to most)`."""
        median, least, most = (f"{value * scale:,.{digits}f}" for value in (self.median, self.least, self.most))
        return median if least == most else f"{median} ({least} to {most})"
