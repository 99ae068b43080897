"""The numbers that are noted when a request is over."""

from collections.abc import Collection
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram

from mulgil.telemetry import names
from mulgil.telemetry.names import Metric
from mulgil.telemetry.observation import Observation, Used

_METHODS = frozenset("GET POST PUT PATCH DELETE OPTIONS HEAD WS".split())
OTHER, NONE = "other", "none"
Exemplar = dict[str, str] | None


S = TypeVar("S", Counter, Histogram)


class _Family(Generic[S]):
    """A metric and the series of it that were asked for: to look one up there costs the client library more."""

    def __init__(self, metric: S) -> None:
        self._metric: S = metric
        self._series: dict[tuple[str, ...], S] = {}

    def of(self, *labels: str) -> S:
        """The series with these values of its labels."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = self._metric.labels(*labels)
        return series


class RequestMetrics:
    """Counts requests. No label ever has a value that a client made up.

    Args:
        registry: where the series are.
        models: names that are served; any other one is `other`.
        tiers: names of the tiers; a key of any other has `default`.
    """

    def __init__(self, registry: CollectorRegistry, models: Collection[str], tiers: Collection[str]) -> None:
        self._registry = registry
        self._models = frozenset(models)
        self._tiers = frozenset(tiers)
        self._requests = self._counter(names.REQUESTS)
        self._seconds = self._histogram(names.REQUEST_SECONDS)
        self._prompt, self._cached = self._counter(names.PROMPT_TOKENS), self._counter(names.CACHED_TOKENS)
        self._completion = self._counter(names.COMPLETION_TOKENS)
        self._answers = self._counter(names.ANSWERS)
        self._first = self._histogram(names.FIRST_TOKEN_SECONDS)
        self._gap = self._histogram(names.TOKEN_SECONDS)
        self._queue = self._histogram(names.QUEUE_SECONDS)
        self._tokenise = self._histogram(names.TOKENISE_SECONDS)
        self._truncated = self._counter(names.TRUNCATED)
        self._truncated_messages = self._counter(names.TRUNCATED_MESSAGES)
        self._store = self._histogram(names.STORE_SECONDS)
        self._fallbacks = self._counter(names.FALLBACKS)
        self._hang_ups = self._counter(names.HANG_UPS)
        self._cache = self._counter(names.CACHE)

    def count(self, observed: Observation) -> None:
        """Add a request that is over."""
        method = observed.method if observed.method in _METHODS else OTHER
        route = observed.route or OTHER
        answer = self._model(observed.model), self._tier(observed.tier)
        of_variant = (*answer, _variant(observed))
        exemplar: Exemplar = {"trace_id": observed.trace_id} if observed.trace_id else None
        self._requests.of(method, route, str(observed.status), *of_variant).inc(exemplar=exemplar)
        if not observed.is_socket:
            self._seconds.of(route, answer[0]).observe(observed.ended - observed.began, exemplar)
        if observed.hung_up:
            self._hang_ups.of(route).inc()
        if observed.truncated_messages:
            self._truncated.of(*answer).inc(exemplar=exemplar)
            self._truncated_messages.of(*answer).inc(observed.truncated_messages)
        if observed.operation is not None:
            self._count_stages(observed, of_variant, exemplar)
            self._count_tokens(observed.used, of_variant)
        if observed.fallback is not None:
            self._fallbacks.of(answer[0], observed.fallback, observed.fallback_reason or NONE).inc(exemplar=exemplar)
        if observed.cache is not None:
            self._cache.of(*answer, observed.cache).inc()

    def _count_stages(self, observed: Observation, of_variant: tuple[str, str, str], exemplar: Exemplar) -> None:
        answer = of_variant[:2]
        for stage, begin, end in observed.spans():
            if stage == "queue":
                self._queue.of(*answer).observe(end - begin, exemplar)
            elif stage == "tokenise":
                self._tokenise.of(answer[0]).observe(end - begin, exemplar)
            elif stage in ("reserve", "settle"):
                self._store.of(stage).observe(end - begin, exemplar)
            elif stage == "decode":
                self._first.of(*of_variant).observe(begin - observed.began, exemplar)
                gaps = observed.used.longest - 1 if observed.used else 0
                if gaps > 0:
                    self._gap.of(*of_variant).observe((end - begin) / gaps, exemplar)

    def _count_tokens(self, used: Used | None, of_variant: tuple[str, str, str]) -> None:
        if used is None:
            return
        answer = of_variant[:2]
        self._answers.of(*of_variant, used.finish).inc()
        self._prompt.of(*answer).inc(used.prompt)
        self._cached.of(*answer).inc(used.cached)
        self._completion.of(*of_variant).inc(used.completion)

    def _model(self, asked: str | None) -> str:
        if asked is None:
            return NONE
        return asked if asked in self._models else OTHER

    def _tier(self, tier: str | None) -> str:
        if tier is None:
            return NONE
        return tier if tier in self._tiers else "default"

    def _counter(self, metric: Metric) -> "_Family[Counter]":
        return _Family(Counter(metric.name, metric.help, metric.labels, registry=self._registry))

    def _histogram(self, metric: Metric) -> "_Family[Histogram]":
        made = Histogram(metric.name, metric.help, metric.labels, registry=self._registry, buckets=metric.buckets)
        return _Family(made)


def _variant(observed: Observation) -> str:
    """The variant that answered; what a fallback answered tells nothing of it."""
    return NONE if observed.variant is None or observed.fallback is not None else observed.variant
