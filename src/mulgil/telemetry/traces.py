"""Whether there are traces: the standard variables of OpenTelemetry say so. Without them there is nothing of it."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from mulgil.telemetry.observation import Headers, Observation

_ENDPOINT, _TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_PROTOCOL, _TRACES_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
_HTTP, _GRPC = "http/protobuf", "grpc"


class Tracing(Protocol):
    """Makes the spans of requests.

    Attributes:
        endpoint: where they are sent.
    """

    endpoint: str

    def begin(self, observed: Observation, headers: Headers) -> None:
        """Begin its span, as a child of the one that *headers* name."""
        ...

    def end(self, observed: Observation) -> None:
        """End it; its stages become its children."""
        ...

    def serve_all(self) -> None:
        """Be what other libraries of the process trace with, such as vLLM."""
        ...

    def close(self) -> None:
        """Send what is left. Takes seconds when nobody answers."""
        ...


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where spans are sent.

    Attributes:
        endpoint: the URL for spans.
        protocol: `http/protobuf` or `grpc`.
    """

    endpoint: str
    protocol: str


def receiver(environment: Mapping[str, str]) -> Receiver | None:
    """What the environment asks for; None if it asks for no traces.

    Raises:
        ValueError: it asks for a protocol that does not exist.
    """
    given = {name: value.strip() for name, value in environment.items() if name.startswith("OTEL_") and value.strip()}
    off = given.get("OTEL_SDK_DISABLED", "").lower() == "true" or given.get("OTEL_TRACES_EXPORTER") == "none"
    base = given.get(_ENDPOINT)
    if off or not (base or given.get(_TRACES_ENDPOINT)):
        return None
    protocol = given.get(_TRACES_PROTOCOL) or given.get(_PROTOCOL) or _HTTP
    if protocol not in (_HTTP, _GRPC):
        raise ValueError(f"{_PROTOCOL} must be {_HTTP} or {_GRPC}")
    endpoint = given.get(_TRACES_ENDPOINT)
    if endpoint is None:
        assert base is not None
        endpoint = base if protocol == _GRPC else f"{base.rstrip('/')}/v1/traces"
    return Receiver(endpoint, protocol)


def build_tracing(environment: Mapping[str, str], version: str) -> Tracing | None:
    """Tracing as the environment asks for it; None without.

    Raises:
        ValueError: it asks for what is not installed.
    """
    to = receiver(environment)
    if to is None:
        return None
    try:
        adapter = importlib.import_module("mulgil.telemetry.otel")
        tracing: Tracing = adapter.OpenTelemetryTracing(adapter.provider(to, version), to)
    except ImportError as error:
        raise ValueError(
            f"the environment asks for traces ({_ENDPOINT}), and OpenTelemetry is not installed: "
            f"pip install 'mulgil[otel]' ({error})"
        ) from error
    return tracing
