"""What vLLM's scheduler last told about its queue and its cache."""

import logging
from typing import Any

from vllm.v1.metrics.loggers import PrometheusStatLogger, StatLoggerBase

log = logging.getLogger(__name__)


class SchedulerView:
    """How it stood at the last step. While the engine has nothing to do no step comes, and the values stay.

    With several copies of the model in the process: requests that wait in any of them, and the fullest cache.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, int] = {}
        self._kv_usage: dict[int, float] = {}
        self._broken = False

    @property
    def waiting(self) -> int:
        """Requests that were not running."""
        return sum(self._waiting.values())

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache in use, 0 to 1."""
        return max(self._kv_usage.values(), default=0.0)

    def logger(self, vllm_config: Any, engine_index: int = 0) -> StatLoggerBase:
        """What vLLM is given to tell it to; one for each copy of the model."""
        return _Told(vllm_config, engine_index, self)

    def note(self, engine_index: int, stats: Any) -> None:
        """After a step. Must not fail: vLLM's output handler would die of it, and every request with it."""
        try:
            waiting = stats.num_waiting_reqs + stats.num_skipped_waiting_reqs
            self._waiting[engine_index], self._kv_usage[engine_index] = waiting, stats.kv_cache_usage
        except Exception:
            if not self._broken:
                self._broken = True
                log.exception("vLLM's statistics cannot be read; its queue is taken for empty")
            self._waiting.clear()
            self._kv_usage.clear()


class _Told(StatLoggerBase):  # type: ignore[misc]  # vLLM is not followed
    def __init__(self, vllm_config: Any, engine_index: int, view: SchedulerView) -> None:
        self._engine_index = engine_index
        self._view = view

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if scheduler_stats is not None:
            self._view.note(self._engine_index, scheduler_stats)

    def log_engine_initialized(self) -> None:
        pass


class NoSeries(PrometheusStatLogger):  # type: ignore[misc]  # as above
    """In the place of vLLM's own series, which it keeps unless it is given others; they cost time for each token."""

    def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
        pass

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        pass

    def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
        pass

    def record_admission_rejection(self, reason: str) -> None:
        pass

    def log_engine_initialized(self) -> None:
        pass
