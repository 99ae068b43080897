"""Every metric, field of the access line, stage and attribute of a span. docs/operations.md lists the same."""

from dataclasses import dataclass
from typing import Literal

Stage = Literal[
    "authenticate", "read", "cache", "wait_for_engine", "tokenise", "reserve", "queue", "first_token", "decode",
    "embed", "settle", "send",
]  # fmt: skip
"""Parts of a request's time, in this order; each lasts until the next begins. They are the names of child spans."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A family of series.

    Attributes:
        name: without the suffix that its kind adds: a counter is `…_total`, a histogram `…_bucket`, `…_sum`, `…_count`.
        kind: what its numbers mean.
        help: what it counts, with its unit.
        labels: names of its labels; their values come from the configuration alone.
        buckets: upper bounds, of a histogram.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def told_as(self) -> str:
        """The name that is asked for in a query, but for a histogram's suffixes."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


_OF_ANSWER = ("model", "tier")
_OF_VARIANT = (*_OF_ANSWER, "variant")
_LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
_FIRST = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 20, 30, 60)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1)
_WAITS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60)
_SHORT = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_STEPS = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 1)

# Noted when a request is over.
REQUESTS = Metric("mulgil_requests", "counter", "Requests that are over.", ("method", "route", "status", *_OF_VARIANT))
REQUEST_SECONDS = Metric(
    "mulgil_request_duration_seconds",
    "histogram",
    "From the first byte of a request to the last of its answer.",
    ("route", "model"),
    _LONG,
)
PROMPT_TOKENS = Metric("mulgil_prompt_tokens", "counter", "Prompt tokens that were charged.", _OF_ANSWER)
CACHED_TOKENS = Metric(
    "mulgil_cached_prompt_tokens", "counter", "Those of them that came out of the prefix cache.", _OF_ANSWER
)
COMPLETION_TOKENS = Metric("mulgil_completion_tokens", "counter", "Output tokens that were charged.", _OF_VARIANT)
ANSWERS = Metric("mulgil_answers", "counter", "Answers by the way they ended.", (*_OF_VARIANT, "finish"))
FALLBACKS = Metric(
    "mulgil_fallbacks", "counter", "Requests that a fallback answered, by the error that they would have had.",
    ("model", "fallback", "reason"),
)  # fmt: skip
FIRST_TOKEN_SECONDS = Metric(
    "mulgil_time_to_first_token_seconds",
    "histogram",
    "From the first byte of a request until its first token was made.",
    _OF_VARIANT,
    _FIRST,
)
TOKEN_SECONDS = Metric(
    "mulgil_time_per_output_token_seconds",
    "histogram",
    "Mean time between two tokens of an answer, one value for each answer.",
    _OF_VARIANT,
    _GAPS,
)
QUEUE_SECONDS = Metric(
    "mulgil_queue_wait_seconds", "histogram", "Waiting for a turn, those who got none included.", _OF_ANSWER, _WAITS
)
TOKENISE_SECONDS = Metric(
    "mulgil_tokenise_seconds", "histogram", "Rendering the prompt and counting its tokens.", ("model",), _SHORT
)
TRUNCATED = Metric(
    "mulgil_truncated_conversations", "counter", "Conversations that lost messages so that they fit.", _OF_ANSWER
)
TRUNCATED_MESSAGES = Metric("mulgil_truncated_messages", "counter", "Messages that they lost.", _OF_ANSWER)
STORE_SECONDS = Metric(
    "mulgil_budget_store_seconds", "histogram", "One step in the budget store, as a request waits for it.",
    ("step",), _STEPS,
)  # fmt: skip
CACHE = Metric(
    "mulgil_response_cache", "counter", "Requests for models whose answers are kept, by where theirs was from.",
    (*_OF_ANSWER, "result"),
)  # fmt: skip
HANG_UPS = Metric("mulgil_client_hang_ups", "counter", "Clients that left before their answer was whole.", ("route",))

# Read when somebody asks.
BUILD = Metric("mulgil_build_info", "gauge", "1, with the version.", ("version",))
OPEN_STREAMS = Metric("mulgil_open_streams", "gauge", "Event streams that are being sent.")
OPEN_SOCKETS = Metric("mulgil_open_websockets", "gauge", "WebSocket connections that are open.")
KEPT_STREAMS = Metric("mulgil_kept_streams", "gauge", "Resumable streams in memory, finished ones included.")
RUNNING = Metric("mulgil_running_requests", "gauge", "Requests that are not settled yet, those that wait not counted.")
WAITING = Metric("mulgil_waiting_requests", "gauge", "Requests that wait for a turn.")
WAITING_MOST = Metric("mulgil_waiting_requests_limit", "gauge", "Most requests that may wait for a turn.")
TURNS_IN_USE = Metric("mulgil_turns_in_use", "gauge", "Choices that the engine has been given.")
TURNS_MOST = Metric("mulgil_turns_limit", "gauge", "Most choices that the engine is given at the same time.")
QUEUE_ENDS = Metric(
    "mulgil_queue_ends",
    "counter",
    "Requests that stopped waiting: granted a turn, refused, expired, or their client left.",
    ("end",),
)
ENGINE_STATE = Metric(
    "mulgil_engine_state", "gauge", "1 for the state that the engine is in, 0 for the others.", ("engine", "state")
)
ENGINE_REBUILDS = Metric(
    "mulgil_engine_rebuilds", "counter", "How often the engine was rebuilt, or tried to be.", ("engine",)
)
ENGINE_REQUESTS = Metric("mulgil_engine_requests", "gauge", "Requests inside the engine, running or waiting there.")
ENGINE_WAITING = Metric("mulgil_engine_waiting_requests", "gauge", "Those of them that wait there.")
ENGINE_KV = Metric("mulgil_engine_kv_cache_usage_ratio", "gauge", "Share of the KV cache in use, 0 to 1.")
LOOP_LAG = Metric("mulgil_event_loop_lag_seconds", "gauge", "How late the event loop was at the last look.")
LOOP_LAG_WORST = Metric(
    "mulgil_event_loop_lag_worst_seconds", "gauge", "How late the event loop was at most, of the last 30 s."
)
STORE_AVAILABLE = Metric("mulgil_budget_store_available", "gauge", "1 while the budget store answers, else 0.")
CACHE_ENTRIES = Metric("mulgil_response_cache_entries", "gauge", "Answers in this process's memory.")
CACHE_BYTES = Metric("mulgil_response_cache_bytes", "gauge", "Memory that they take.")
CACHE_FAILURES = Metric(
    "mulgil_response_cache_failures",
    "counter",
    "Steps of the response cache that came to nothing: no answer from its store, an entry ignored, one too large.",
    ("reason",),
)
LEASES = Metric("mulgil_leases", "gauge", "Leases that hold something in the budget store.")
RESERVATIONS = Metric(
    "mulgil_reservations", "counter", "Attempts to reserve: reserved, refused, or the store unavailable.", ("result",)
)
REFUSALS = Metric(
    "mulgil_budget_refusals", "counter", "Refusals, by the limit that named the wait.", ("scope", "dimension")
)
SETTLEMENTS = Metric("mulgil_settlements", "counter", "Leases that were settled.")
SETTLEMENT_RETRIES = Metric(
    "mulgil_settlement_retries", "counter", "Attempts to settle after the first one of a lease had failed."
)
SETTLEMENT_FAILURES = Metric(
    "mulgil_settlement_failures", "counter", "Leases that could not be settled before they expired."
)
LEASES_LOST = Metric("mulgil_leases_lost", "counter", "Leases that expired while their generation ran.")

METRICS = tuple(metric for metric in list(globals().values()) if isinstance(metric, Metric))
"""All of them."""

ACCESS_FIELDS = (
    "request_id", "client_request_id", "trace_id", "method", "path", "route", "status", "error", "duration_ms",
    "tenant", "key", "key_prefix", "tier", "model", "variant", "fallback", "fallback_reason", "prompt_tokens",
    "cached_tokens", "completion_tokens", "truncated_messages", "ttft_ms", "finish", "cache", "hung_up", "retry_count",
)  # fmt: skip
"""Fields of the access line; those that do not apply are left out."""

LINE_FIELDS = ("timestamp", "level", "logger", "event", "process", "exception")
"""Fields that any line may have."""

SPAN_ATTRIBUTES = (
    "http.request.method", "http.route", "url.path", "http.response.status_code", "error.type",
    "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model",
    "gen_ai.response.finish_reasons", "gen_ai.response.time_to_first_chunk", "gen_ai.usage.input_tokens",
    "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.output_tokens", "mulgil.request.id", "mulgil.tenant",
    "mulgil.key", "mulgil.tier", "mulgil.variant", "mulgil.fallback", "mulgil.fallback.reason", "mulgil.cache",
    "mulgil.truncated_messages", "mulgil.hung_up",
)  # fmt: skip
"""Attributes of the span of a request."""
