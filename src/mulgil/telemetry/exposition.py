"""How the numbers are told to Prometheus."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

_OPENMETRICS = "application/openmetrics-text"


def exposed(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """All series of *registry*, and their content type: OpenMetrics with exemplars where *accept* names it."""
    told = _WithoutCreated(registry)
    if _OPENMETRICS in accept:
        told_so: bytes = openmetrics.generate_latest(told)  # type: ignore[no-untyped-call]  # it has no types
        return told_so, openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(told), CONTENT_TYPE_PLAIN_0_0_4


class _WithoutCreated(Collector):
    """Leaves out when each series began, which Prometheus keeps as one more series and nobody asks for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Family]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
