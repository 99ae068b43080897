"""Spans by OpenTelemetry, with the semantic conventions for HTTP and for generative AI."""

import importlib
import os
from collections.abc import Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mulgil.telemetry.observation import Headers, Observation
from mulgil.telemetry.traces import Receiver

_CONTEXT = ("traceparent", "tracestate")
_NANO = 1_000_000_000
_OUR_FAULT = 500


def provider(to: Receiver, version: str) -> TracerProvider:
    """Sends spans in batches, from a thread of its own. The rest is OpenTelemetry's own variables' to say.

    Raises:
        ImportError: there is no exporter for the protocol.
    """
    module = f"opentelemetry.exporter.otlp.proto.{'grpc' if to.protocol == 'grpc' else 'http'}.trace_exporter"
    exporter: SpanExporter = importlib.import_module(module).OTLPSpanExporter()
    resource = Resource.create({"service.version": version})
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "mulgil"}))
    made = TracerProvider(resource=resource, shutdown_on_exit=False)
    made.add_span_processor(BatchSpanProcessor(exporter))
    return made


class OpenTelemetryTracing:
    """Implements `Tracing`.

    The span of a request is begun with it, since others need its id; its children are made when all is over, with
    the times that were noted.

    Args:
        provider: makes spans and sends them.
        to: where they are sent.
    """

    def __init__(self, provider: TracerProvider, to: Receiver) -> None:
        self.endpoint = to.endpoint
        self._protocol = to.protocol
        self._provider = provider
        self._tracer = provider.get_tracer("mulgil")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, observed: Observation, headers: Headers) -> None:
        carrier: dict[str, str] = {}
        for raw, value in headers:
            if (name := raw.decode("latin-1")) in _CONTEXT:
                carrier[name] = value.decode("latin-1")
        span = self._tracer.start_span(
            f"{observed.method} {observed.path}"[:64],
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            start_time=observed.began_at,
            attributes={"http.request.method": observed.method, "mulgil.request.id": observed.id},
        )
        out: dict[str, str] = {}
        self._propagator.inject(out, set_span_in_context(span))
        observed.span, observed.trace_headers = span, out
        if span.is_recording():
            observed.trace_id = format_trace_id(span.get_span_context().trace_id)

    def end(self, observed: Observation) -> None:
        span = observed.span
        if span is None or not span.is_recording():
            return
        span.update_name(f"{observed.method} {observed.route or 'other'}")
        span.set_attributes(_attributes(observed))
        if observed.status >= _OUR_FAULT or (observed.error and observed.status < 400):
            span.set_status(Status(StatusCode.ERROR, observed.error))
        context = set_span_in_context(span)
        for stage, begin, end in observed.spans():
            child = self._tracer.start_span(stage, context=context, start_time=_wall(observed, begin))
            child.end(_wall(observed, end))
        span.end(_wall(observed, observed.over))

    def serve_all(self) -> None:
        # vLLM takes gRPC for the default, and its processes inherit these variables.
        os.environ.setdefault("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", self._protocol)
        if trace.get_tracer_provider() is not self._provider:
            trace.set_tracer_provider(self._provider)

    def close(self) -> None:
        self._provider.shutdown()


def _wall(observed: Observation, moment: float) -> int:
    """Unix time in nanoseconds of a moment of `time.perf_counter`."""
    return observed.began_at + round((moment - observed.began) * _NANO)


def _attributes(observed: Observation) -> Mapping[str, Any]:
    used = observed.used
    attributes: dict[str, Any] = {
        "http.route": observed.route,
        "url.path": observed.path,
        "http.response.status_code": observed.status,
        "error.type": observed.error or (str(observed.status) if observed.status >= 400 else None),
        "mulgil.tenant": observed.tenant,
        "mulgil.key": observed.key,
        "mulgil.tier": observed.tier,
        "mulgil.variant": observed.variant,
        "mulgil.fallback": observed.fallback,
        "mulgil.fallback.reason": observed.fallback_reason,
        "mulgil.cache": observed.cache,
        "mulgil.truncated_messages": observed.truncated_messages or None,
        "mulgil.hung_up": observed.hung_up or None,
    }
    if observed.operation is not None:
        attributes |= {
            "gen_ai.operation.name": observed.operation,
            "gen_ai.provider.name": "mulgil",
            "gen_ai.request.model": observed.model,
        }
    if used is not None:
        attributes |= {
            "gen_ai.response.model": observed.model,
            "gen_ai.response.finish_reasons": [used.finish],
            "gen_ai.response.time_to_first_chunk": observed.first_token_after,
            "gen_ai.usage.input_tokens": used.prompt,
            "gen_ai.usage.cache_read.input_tokens": used.cached,
            "gen_ai.usage.output_tokens": used.completion,
        }
    return {name: value for name, value in attributes.items() if value is not None}
