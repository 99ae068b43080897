"""The numbers that are noted when a request is over."""

from collections.abc import Callable, Collection

from prometheus_client import CollectorRegistry, Counter, Histogram

from mulgil.telemetry import names
from mulgil.telemetry.names import Metric
from mulgil.telemetry.observation import Observation, Used

_METHODS = frozenset("GET POST PUT PATCH DELETE OPTIONS HEAD WS".split())
OTHER, NONE = "other", "none"


class RequestMetrics:
    """Counts requests. No label ever has a value that a client made up.

    Args:
        registry: where the series are.
        models: names that are served; any other one is `other`.
        tiers: names of the tiers; a key of any other has `default`.
    """

    def __init__(self, registry: CollectorRegistry, models: Collection[str], tiers: Collection[str]) -> None:
        self._models = frozenset(models)
        self._tiers = frozenset(tiers)
        counter, histogram = _counters(registry), _histograms(registry)
        self._requests = counter(names.REQUESTS)
        self._seconds = histogram(names.REQUEST_SECONDS)
        self._prompt, self._cached = counter(names.PROMPT_TOKENS), counter(names.CACHED_TOKENS)
        self._completion = counter(names.COMPLETION_TOKENS)
        self._answers = counter(names.ANSWERS)
        self._first = histogram(names.FIRST_TOKEN_SECONDS)
        self._gap = histogram(names.TOKEN_SECONDS)
        self._queue = histogram(names.QUEUE_SECONDS)
        self._tokenise = histogram(names.TOKENISE_SECONDS)
        self._store = histogram(names.STORE_SECONDS)
        self._hang_ups = counter(names.HANG_UPS)

    def count(self, observed: Observation) -> None:
        """Add a request that is over."""
        method = observed.method if observed.method in _METHODS else OTHER
        route = observed.route or OTHER
        model, tier = self._model(observed.model), self._tier(observed.tier)
        exemplar = {"trace_id": observed.trace_id} if observed.trace_id else None
        self._requests.labels(method, route, str(observed.status), model, tier).inc(exemplar=exemplar)
        if not observed.is_socket:
            self._seconds.labels(route, model).observe(observed.ended - observed.began, exemplar)
        if observed.hung_up:
            self._hang_ups.labels(route).inc()
        if observed.operation is not None:
            self._count_stages(observed, (model, tier), exemplar)
            self._count_tokens(observed.used, model, tier)

    def _count_stages(self, observed: Observation, answer: tuple[str, str], exemplar: dict[str, str] | None) -> None:
        for stage, begin, end in observed.spans():
            if stage == "queue":
                self._queue.labels(*answer).observe(end - begin, exemplar)
            elif stage == "tokenise":
                self._tokenise.labels(answer[0]).observe(end - begin, exemplar)
            elif stage in ("reserve", "settle"):
                self._store.labels(stage).observe(end - begin, exemplar)
            elif stage == "decode":
                self._first.labels(*answer).observe(begin - observed.began, exemplar)
                gaps = observed.used.longest - 1 if observed.used else 0
                if gaps > 0:
                    self._gap.labels(*answer).observe((end - begin) / gaps, exemplar)

    def _count_tokens(self, used: Used | None, model: str, tier: str) -> None:
        if used is None:
            return
        self._answers.labels(model, tier, used.finish).inc()
        self._prompt.labels(model, tier).inc(used.prompt)
        self._cached.labels(model, tier).inc(used.cached)
        self._completion.labels(model, tier).inc(used.completion)

    def _model(self, asked: str | None) -> str:
        if asked is None:
            return NONE
        return asked if asked in self._models else OTHER

    def _tier(self, tier: str | None) -> str:
        if tier is None:
            return NONE
        return tier if tier in self._tiers else "default"


def _counters(registry: CollectorRegistry) -> Callable[[Metric], Counter]:
    return lambda metric: Counter(metric.name, metric.help, metric.labels, registry=registry)


def _histograms(registry: CollectorRegistry) -> Callable[[Metric], Histogram]:
    return lambda metric: Histogram(metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets)
