"""Traces, as a real receiver of OpenTelemetry's protocol gets them."""

import asyncio
from collections.abc import Generator
from typing import Any

import orjson
import pytest
from embeddings import EMBEDDER
from embeddingserver import scripted_upstream
from harness import MODEL, Server, chat_body, eventually, hanging_up, raw_request, script, serving, settings
from otlpreceiver import Receiver, Span, otlp_receiver

from mulgil.telemetry.names import SPAN_ATTRIBUTES
from mulgil.telemetry.observation import Observation
from mulgil.telemetry.traces import Receiver as Chosen
from mulgil.telemetry.traces import build_tracing, receiver

CHAT = "POST /v1/chat/completions"
STAGES = [
    "authenticate",
    "read",
    "wait_for_engine",
    "tokenise",
    "reserve",
    "queue",
    "first_token",
    "decode",
    "settle",
    "send",
]
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SERVER = 2


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Generator[Receiver]:
    """What has come; complete when the gateway has ended."""
    with otlp_receiver() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        yield received


def only(spans: list[Span]) -> Span:
    (span,) = spans
    return span


async def test_a_request_is_one_span_and_its_stages_are_its_children_without_a_gap(spans: Receiver) -> None:
    async with serving() as server:
        answer = await server.client.post(
            "/v1/chat/completions",
            json=chat_body(script(tokens=20, ttft=0.2, gap=0.02), stream=True),
            headers={"traceparent": f"00-{TRACE}-{PARENT}-01"},
        )
    span = only(spans.named(CHAT))
    assert (span.trace_id, span.parent_id, span.kind, span.failed) == (TRACE, PARENT, SERVER, False)
    assert answer.headers["traceparent"] == f"00-{TRACE}-{span.span_id}-01"
    assert span.service == "mulgil"
    children = spans.children(span)
    assert [child.name for child in children] == STAGES
    assert {child.trace_id for child in children} == {TRACE}
    assert sum(child.seconds for child in children) == pytest.approx(span.seconds, rel=0.05)
    seconds = {child.name: child.seconds for child in children}
    assert seconds["first_token"] > 0.19
    assert seconds["decode"] > 19 * 0.019
    told = span.attributes
    assert told.keys() <= set(SPAN_ATTRIBUTES)
    assert told["mulgil.request.id"] == answer.headers["x-request-id"]
    assert (told["gen_ai.operation.name"], told["gen_ai.request.model"]) == ("chat", MODEL)
    assert (told["gen_ai.usage.output_tokens"], told["gen_ai.response.finish_reasons"]) == (20, ["stop"])
    assert (told["http.route"], told["http.response.status_code"]) == ("/v1/chat/completions", 200)
    assert told["gen_ai.response.time_to_first_chunk"] == pytest.approx(
        sum(seconds[stage] for stage in STAGES[:7]), abs=0.001
    )


async def test_a_request_that_is_hung_up_is_traced_to_its_settlement(spans: Receiver) -> None:
    async with serving() as server:
        body = orjson.dumps(chat_body(script(tokens=1_000, gap=0.01), stream=True))
        async with hanging_up(server, raw_request(body)) as reader:
            await reader.readuntil(b'content":"')
        await eventually(lambda: server.mulgil.gateway.running == 0)
    span = only(spans.named(CHAT))
    assert span.attributes["mulgil.hung_up"] is True
    assert span.attributes["gen_ai.response.finish_reasons"] == ["abort"]
    assert span.attributes["gen_ai.usage.output_tokens"] > 0
    assert [child.name for child in spans.children(span)] == STAGES


async def test_one_that_leaves_while_it_waits_has_the_stages_that_it_came_to(spans: Receiver) -> None:
    async with serving(settings(max_concurrent_requests=1)) as server:
        long = asyncio.create_task(server.chat(script(tokens=50, gap=0.01)))
        await eventually(lambda: server.mulgil.gateway.running == 1)
        async with hanging_up(server, raw_request(orjson.dumps(chat_body()))):
            await eventually(lambda: server.mulgil.gateway.queue.waiting == 1)
        await long
    waited, served = sorted(spans.named(CHAT), key=lambda span: len(spans.children(span)))
    assert [child.name for child in spans.children(waited)] == STAGES[:6]
    assert waited.attributes["http.response.status_code"] == 499
    assert [child.name for child in spans.children(served)] == STAGES


async def test_a_refusal_and_a_failure_say_what_they_are(spans: Receiver) -> None:
    async with serving() as server:
        await server.client.post("/v1/chat/completions", json=chat_body(), headers={"authorization": "Bearer no"})
        await server.chat(script(tokens=3, fail_at=2), stream=True)
        await server.client.get("/v1/models")
    refused, failed = sorted(spans.named(CHAT), key=lambda span: span.begin)
    assert (refused.attributes["error.type"], refused.failed) == ("invalid_api_key", False)
    assert (failed.attributes["error.type"], failed.failed) == ("engine_error", True)
    assert [child.name for child in spans.children(only(spans.named("GET /v1/models")))] == ["authenticate", "read"]


async def test_who_is_not_sampled_is_not_traced_and_the_next_one_is_told_so(spans: Receiver) -> None:
    async with serving() as server:
        answer = await server.client.get("/v1/models", headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert answer.headers["traceparent"].startswith(f"00-{TRACE}-")
    assert answer.headers["traceparent"].endswith("-00")
    assert spans.spans == []


async def test_another_server_is_told_whose_child_its_work_is(spans: Receiver) -> None:
    async with scripted_upstream() as upstream:
        chosen = settings(embeddings_url=f"{upstream.url}/v1", embeddings_served_name=(EMBEDDER,))
        async with serving(chosen) as server:
            assert server.mulgil.embeddings is not None
            await server.mulgil.embeddings.supervisor.until_ready()
            answer = await server.client.post("/v1/embeddings", json={"model": EMBEDDER, "input": "a text"})
    assert answer.status_code == 200
    told = [headers["traceparent"] for _, path, headers, _ in upstream.requests if path == "/v1/embeddings"]
    assert told == [answer.headers["traceparent"]]
    span = only(spans.named("POST /v1/embeddings"))
    assert [child.name for child in spans.children(span)] == [
        "authenticate", "read", "tokenise", "reserve", "embed", "settle", "send",
    ]  # fmt: skip
    assert (span.attributes["gen_ai.operation.name"], span.attributes["gen_ai.usage.input_tokens"]) == ("embeddings", 3)


def test_a_variant_and_a_fallback_are_attributes_where_there_are_some(spans: Receiver) -> None:
    tracing = build_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": spans.url}, "1")
    assert tracing is not None
    for variant, fallback in ((None, None), ("terse", None), ("terse", "elsewhere")):
        observed = Observation(route=f"/{variant}/{fallback}", variant=variant)
        if fallback:
            observed.falls_back(fallback, "overloaded")
        tracing.begin(observed, ())
        observed.begin("read")
        tracing.end(observed)
    tracing.close()
    told = [
        {name: value for name, value in span.attributes.items() if "variant" in name or "fallback" in name}
        for route in ("/None/None", "/terse/None", "/terse/elsewhere")
        for span in spans.named(f"WS {route}")
    ]
    whole = {
        "mulgil.variant": "terse",
        "mulgil.fallback": "elsewhere",
        "mulgil.fallback.reason": "overloaded",
    }
    assert told == [{}, {"mulgil.variant": "terse"}, whole]
    assert whole.keys() <= set(SPAN_ATTRIBUTES)


async def test_exemplars_lead_from_a_histogram_to_the_trace(spans: Receiver) -> None:
    async with serving(settings(metrics_port=0)) as server:
        await server.chat(script(tokens=3))
        assert server.mulgil.metrics_port is not None
        url = f"http://127.0.0.1:{server.mulgil.metrics_port.port}/metrics"
        told = (await server.client.get(url, headers={"accept": "application/openmetrics-text"})).text
    assert f'# {{trace_id="{only(spans.named(CHAT)).trace_id}"}}' in told


async def test_a_receiver_that_is_not_there_is_nobodys_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    async with serving() as server:
        assert (await server.chat()).status_code == 200


async def test_without_a_receiver_there_are_no_spans(shared: Server) -> None:
    answer = await shared.chat()
    assert "traceparent" not in answer.headers
    assert shared.mulgil.tracing is None


@pytest.mark.parametrize(
    ("environment", "chosen"),
    [
        ({}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318/"}, Chosen("http://a:4318/v1/traces", "http/protobuf")),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            Chosen("http://a:4317", "grpc"),
        ),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b/x"}, Chosen("http://b/x", "http/protobuf")),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318", "OTEL_SDK_DISABLED": "true"}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318", "OTEL_TRACES_EXPORTER": "none"}, None),
    ],
)
def test_the_standard_variables_say_where_traces_go(environment: dict[str, str], chosen: Any) -> None:
    assert receiver(environment) == chosen


def test_a_protocol_that_is_none_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="http/protobuf or grpc"):
        build_tracing({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_EXPORTER_OTLP_PROTOCOL": "carrier-pigeon"}, "1")
