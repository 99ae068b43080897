"""What was measured, read back, and put beside each other within one run."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.figures import Spread
from bench.measure import Result, rebuilt

Metric = Callable[[Result], float]

METRICS: Mapping[str, Metric] = {
    "tokens/s": lambda result: result.tokens_per_second,
    "TTFT p50": lambda result: result.measured.ttft[0],
    "TTFT p99": lambda result: result.measured.ttft[1],
    "gap p99": lambda result: result.measured.gaps[1],
    "CPU": lambda result: result.cpu_per_thousand,
    "engine CPU": lambda result: result.engine_cpu / result.measured.tokens * 1_000,
    "RSS": lambda result: float(result.rss),
}


@dataclass(frozen=True)
class Place:
    """A cell of the table, without its contender."""

    model: str
    streams: int
    kind: str = "speed"
    streamed: bool = True


@dataclass(frozen=True)
class Readings:
    """All figures of a run; what was not measured is empty."""

    results: tuple[Result, ...]
    serving: Mapping[str, Any]
    layers: Mapping[str, Any]
    machine: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "Readings":
        """From the JSON files of *folder*."""
        serving, layers, machine = (_read(folder / f"{name}.json") for name in ("serving", "layers", "machine"))
        return cls(tuple(rebuilt(one) for one in serving.get("results", ())), serving, layers, machine)

    def places(self) -> list[Place]:
        """All that have results, as they were measured."""
        found = (Place(one.model, one.streams, one.kind, one.streamed) for one in self.results)
        return list(dict.fromkeys(found))

    def contenders(self, place: Place) -> list[str]:
        """Who has results there."""
        return list(dict.fromkeys(one.contender for one in self._at(place)))

    def spread(self, place: Place, contender: str, metric: str) -> Spread | None:
        """Over the repetitions."""
        values = list(self._by_repetition(place, contender, metric).values())
        return Spread.of(values) if values else None

    def ratio(self, place: Place, metric: str, contender: str, beside: str) -> Spread | None:
        """Of two contenders that were measured one right after the other."""
        return self.compared(place, metric, (contender, beside), lambda one, other: one / other)

    def compared(
        self, place: Place, metric: str, contenders: tuple[str, ...], how: Callable[..., float]
    ) -> Spread | None:
        """What *how* says of the values of the *contenders*, repetition by repetition."""
        values = [self._by_repetition(place, contender, metric) for contender in contenders]
        common = set.intersection(*(set(each) for each in values))
        found = [how(*(each[repetition] for each in values)) for repetition in sorted(common)]
        return Spread.of(found) if found else None

    def _at(self, place: Place) -> list[Result]:
        return [one for one in self.results if Place(one.model, one.streams, one.kind, one.streamed) == place]

    def _by_repetition(self, place: Place, contender: str, metric: str) -> dict[int, float]:
        value = METRICS[metric]
        return {one.repetition: value(one) for one in self._at(place) if one.contender == contender}


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found
