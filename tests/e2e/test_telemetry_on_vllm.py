"""vLLM's own series beside ours, and its span within ours."""

import httpx2
import pytest
from harness import Server, eventually
from otlpreceiver import Receiver
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parsed_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parsed_text

pytestmark = pytest.mark.model

CHAT = "POST /v1/chat/completions"


async def test_the_engines_series_stand_beside_ours_in_both_formats(vllm_server: Server) -> None:
    await vllm_server.chat(max_tokens=3)
    assert vllm_server.mulgil.metrics_port is not None
    url = f"http://127.0.0.1:{vllm_server.mulgil.metrics_port.port}/metrics"
    for accept, parsed in (("text/plain", parsed_text), ("application/openmetrics-text", parsed_openmetrics)):
        async with httpx2.AsyncClient(headers={"accept": accept}) as prometheus:
            text = (await prometheus.get(url)).text
        told = {family.name for family in parsed(text)}
        assert {"vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:time_to_first_token_seconds"} <= told
        assert "mulgil_waiting_requests" in told


async def test_vllms_span_is_a_child_of_the_request(vllm_server: Server, vllm_spans: Receiver) -> None:
    answer = await vllm_server.chat("What is the capital of France?", temperature=0, max_tokens=12)
    _, trace_id, span_id, _ = answer.headers["traceparent"].split("-")

    def arrived() -> bool:
        ours = [span for span in vllm_spans.spans if span.trace_id == trace_id]
        return {CHAT, "llm_request"} <= {span.name for span in ours}

    await eventually(arrived)
    of_engine = next(span for span in vllm_spans.named("llm_request") if span.trace_id == trace_id)
    ours = next(span for span in vllm_spans.named(CHAT) if span.trace_id == trace_id)
    assert (of_engine.parent_id, ours.span_id) == (span_id, span_id)
    used = answer.json()["usage"]
    assert of_engine.attributes["gen_ai.usage.completion_tokens"] == used["completion_tokens"]
    assert ours.attributes["gen_ai.usage.output_tokens"] == used["completion_tokens"]
    children = vllm_spans.children(ours)
    assert {"tokenise", "reserve", "queue", "first_token", "decode", "settle"} <= {child.name for child in children}
    stages = [child for child in children if child.name != "llm_request"]
    assert sum(child.seconds for child in stages) == pytest.approx(ours.seconds, rel=0.05)
