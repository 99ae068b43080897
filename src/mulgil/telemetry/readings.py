"""The numbers that somebody keeps anyway, read when they are asked for."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from mulgil.telemetry.names import Metric

Values = Mapping[tuple[str, ...], float]
_OF_THE_ENGINE = "vllm:"


@dataclass(frozen=True, slots=True)
class Reading:
    """Where the numbers of a metric are to be had.

    Attributes:
        metric: a counter or a gauge.
        read: gives its numbers by the values of its labels.
    """

    metric: Metric
    read: Callable[[], Values]


def alone(metric: Metric, read: Callable[[], float]) -> Reading:
    """The reading of a metric without labels."""
    return Reading(metric, lambda: {(): read()})


class Readings(Collector):
    """Tells what *readings* give at that moment."""

    def __init__(self, readings: Sequence[Reading]) -> None:
        self._readings = readings

    def describe(self) -> Iterable[Family]:
        return [_family(reading.metric) for reading in self._readings]

    def collect(self) -> Iterable[Family]:
        for reading in self._readings:
            family = _family(reading.metric)
            for labels, value in reading.read().items():
                family.add_metric(labels, value)
            yield family


class EngineSeries(Collector):
    """vLLM's own series, which it keeps in the client library's global registry, and in no other."""

    def describe(self) -> Iterable[Family]:
        return []

    def collect(self) -> Iterable[Family]:
        return (family for family in REGISTRY.collect() if family.name.startswith(_OF_THE_ENGINE))


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(metric.name, metric.help, labels=metric.labels)
