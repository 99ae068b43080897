"""The composition root's part for telemetry: who observes requests, and what is read when somebody asks."""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector

from mulgil.admission.lease import Leases
from mulgil.admission.queue import FairQueue
from mulgil.cache.responses import ResponseCache
from mulgil.embedders import Embeddings
from mulgil.engine.base import Engine
from mulgil.engine.load import Load
from mulgil.engine.supervisor import STATES, Supervisor
from mulgil.errors import EngineUnavailableError
from mulgil.gateway import Gateway
from mulgil.kept import KeptStreams
from mulgil.loop_lag import LoopLag
from mulgil.metrics_port import MetricsPort
from mulgil.settings import Settings
from mulgil.stores.guard import GuardedStore
from mulgil.telemetry import names
from mulgil.telemetry.access import AccessLog
from mulgil.telemetry.metrics import RequestMetrics
from mulgil.telemetry.names import Metric
from mulgil.telemetry.observation import Observer
from mulgil.telemetry.observer import Telemetry
from mulgil.telemetry.readings import EngineSeries, Reading, Readings, Values, alone
from mulgil.telemetry.traces import Tracing


@dataclass(frozen=True, slots=True)
class Sources:
    """Who keeps the numbers."""

    settings: Settings
    observer: Observer
    supervisor: Supervisor[Engine]
    gateway: Gateway
    cache: ResponseCache
    streams: KeptStreams
    embeddings: Embeddings | None
    leases: Leases
    store: GuardedStore
    lag: LoopLag


def build_observer(settings: Settings, metrics: RequestMetrics, tracing: Tracing | None) -> Observer:
    """Who is told of every request: its numbers go to *metrics*, its spans to *tracing*."""
    return Telemetry(metrics, AccessLog(settings.access_log_share), tracing)


def read_from(registry: CollectorRegistry, sources: Sources, version: str) -> None:
    """Have *registry* tell what *sources* know, what vLLM counts, and what the process uses."""
    registry.register(Readings(readings(sources, version)))
    registry.register(EngineSeries())
    ProcessCollector(registry=registry)


def build_metrics_port(settings: Settings, registry: CollectorRegistry) -> MetricsPort | None:
    """The listener that the settings ask for; None without."""
    port = settings.metrics_port
    return None if port is None else MetricsPort(settings.metrics_host, port, registry)


def readings(sources: Sources, version: str) -> list[Reading]:
    """Every metric that is not noted at the end of a request."""
    return [
        Reading(names.BUILD, lambda: {(version,): 1}),
        *_of_answers(sources),
        *_of_the_queue(sources.gateway.queue, sources.settings),
        *_of_engines(sources),
        *_of_leases(sources.leases),
        *_of_the_cache(sources.cache),
        alone(names.STORE_AVAILABLE, lambda: sources.store.available),
        alone(names.LOOP_LAG, lambda: sources.lag.last),
        alone(names.LOOP_LAG_WORST, lambda: sources.lag.worst),
    ]


def _of_answers(sources: Sources) -> list[Reading]:
    under_way, embeddings = sources.observer.under_way, sources.embeddings

    def running() -> float:
        return sources.gateway.running + (embeddings.gateway.running if embeddings else 0)

    return [
        alone(names.OPEN_STREAMS, lambda: under_way["stream"]),
        alone(names.OPEN_SOCKETS, lambda: under_way["socket"]),
        alone(names.KEPT_STREAMS, lambda: len(sources.streams)),
        alone(names.RUNNING, running),
    ]


def _of_the_queue(queue: FairQueue, settings: Settings) -> list[Reading]:
    counters = queue.counters

    def ends() -> Values:
        return {
            ("granted",): counters.granted,
            ("refused",): counters.refused,
            ("expired",): counters.expired,
            ("left",): counters.left,
        }

    return [
        alone(names.WAITING, lambda: queue.waiting),
        alone(names.WAITING_MOST, lambda: settings.max_queued_requests),
        alone(names.TURNS_IN_USE, lambda: queue.turns_in_use),
        alone(names.TURNS_MOST, lambda: settings.max_concurrent_requests),
        Reading(names.QUEUE_ENDS, ends),
    ]


def _of_engines(sources: Sources) -> list[Reading]:
    supervisor, embeddings = sources.supervisor, sources.embeddings

    def states() -> Values:
        found = {"chat": supervisor.health.state}
        if embeddings:
            found["embeddings"] = embeddings.supervisor.health.state
        return {(engine, state): state == now for engine, now in found.items() for state in STATES}

    def rebuilds() -> Values:
        found: dict[tuple[str, ...], float] = {("chat",): supervisor.rebuilds}
        if embeddings:
            found["embeddings",] = embeddings.supervisor.rebuilds
        return found

    def load(metric: Metric, number: Callable[[Load], float]) -> Reading:
        def read() -> Values:
            try:
                return {(): number(supervisor.engine().load())}
            except EngineUnavailableError:
                return {}  # nothing is known of it, which is not nought

        return Reading(metric, read)

    return [
        Reading(names.ENGINE_STATE, states),
        Reading(names.ENGINE_REBUILDS, rebuilds),
        load(names.ENGINE_REQUESTS, lambda found: found.unfinished),
        load(names.ENGINE_WAITING, lambda found: found.waiting),
        load(names.ENGINE_KV, lambda found: found.kv_usage),
    ]


def _of_leases(leases: Leases) -> list[Reading]:
    counters = leases.counters

    def reservations() -> Values:
        return {
            ("reserved",): counters.reserved,
            ("refused",): counters.refused,
            ("unavailable",): counters.unavailable,
        }

    return [
        alone(names.LEASES, lambda: leases.live),
        Reading(names.RESERVATIONS, reservations),
        Reading(names.REFUSALS, lambda: counters.refusals),
        alone(names.SETTLEMENTS, lambda: counters.settled),
        alone(names.SETTLEMENT_RETRIES, lambda: counters.settle_retries),
        alone(names.SETTLEMENT_FAILURES, lambda: counters.settle_failures),
        alone(names.LEASES_LOST, lambda: counters.lost),
    ]


def _of_the_cache(cache: ResponseCache) -> list[Reading]:
    counters = cache.counters

    def held(which: int) -> Callable[[], Values]:
        # Nothing is known of what others keep, which is not nought.
        return lambda: {} if cache.store.held is None else {(): cache.store.held[which]}

    def failures() -> Values:
        return {
            ("unavailable",): counters.unavailable,
            ("ignored",): counters.ignored,
            ("too_large",): counters.too_large,
        }

    return [
        Reading(names.CACHE_ENTRIES, held(0)),
        Reading(names.CACHE_BYTES, held(1)),
        Reading(names.CACHE_FAILURES, failures),
    ]
