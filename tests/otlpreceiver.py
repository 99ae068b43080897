"""A real receiver of OpenTelemetry's protocol over HTTP, in a thread of its own."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class Span:
    """One span as it came over the wire; times in nanoseconds."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    begin: int
    end: int
    attributes: dict[str, Any]
    failed: bool
    service: str

    @property
    def seconds(self) -> float:
        return (self.end - self.begin) / 1e9


@dataclass
class Receiver:
    """What has come so far."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def children(self, parent: Span) -> list[Span]:
        """In the order in which they began."""
        return sorted((span for span in self.spans if span.parent_id == parent.span_id), key=lambda span: span.begin)


@contextmanager
def otlp_receiver() -> Generator[Receiver]:
    """It listens on a free port of the loopback."""
    received = Receiver()

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
            if self.path == "/v1/traces":
                received.spans += _spans(request)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    received.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _spans(request: ExportTraceServiceRequest) -> list[Span]:
    return [
        Span(
            span.name,
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.kind,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            {one.key: _value(one.value) for one in span.attributes},
            span.status.code == 2,
            next(str(_value(one.value)) for one in group.resource.attributes if one.key == "service.name"),
        )
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [_value(one) for one in found.values] if kind == "array_value" else found
