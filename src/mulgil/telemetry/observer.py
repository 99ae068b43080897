"""The one place where an observation becomes numbers, a line and spans."""

import logging
from collections import Counter

from mulgil.telemetry.access import AccessLog
from mulgil.telemetry.metrics import RequestMetrics
from mulgil.telemetry.observation import Answer, Headers, Observation
from mulgil.telemetry.traces import Tracing

log = logging.getLogger(__name__)


class Telemetry:
    """Implements `Observer`. What it fails at is logged, and is nobody else's failure.

    Args:
        metrics: counts requests.
        access: writes a line for each.
        tracing: makes spans; None makes none.
    """

    def __init__(self, metrics: RequestMetrics, access: AccessLog, tracing: Tracing | None = None) -> None:
        self.under_way: Counter[Answer] = Counter()
        self._metrics = metrics
        self._access = access
        self._tracing = tracing

    def begin(self, observed: Observation, headers: Headers) -> None:
        if self._tracing is not None:
            try:
                self._tracing.begin(observed, headers)
            except Exception:
                log.exception("a span could not be begun")

    def end(self, observed: Observation) -> None:
        try:
            self._metrics.count(observed)
            self._access.write(observed)
            if self._tracing is not None:
                self._tracing.end(observed)
        except Exception:
            log.exception("a request could not be recorded")
