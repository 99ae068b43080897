"""What Prometheus reads: in both formats, true, and never more series because of what clients make up."""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from embeddings import EMBEDDER
from harness import (
    KEY,
    MODEL,
    UNLIMITED,
    Server,
    chat_body,
    eventually,
    hanging_up,
    raw_request,
    script,
    serving,
    settings,
)
from prometheus_client import CollectorRegistry
from prometheus_client import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parsed_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parsed_text
from pydantic import SecretStr
from websockets.asyncio.client import connect

from mulgil.engine.base import Engine
from mulgil.engine.simulated import SimulatedEngine
from mulgil.telemetry.access import AccessLog
from mulgil.telemetry.metrics import RequestMetrics
from mulgil.telemetry.names import METRICS, Stage
from mulgil.telemetry.observation import Observation, Used
from mulgil.telemetry.observer import Telemetry

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
ADMIN = "the-admin-token-of-the-metrics-tests"
STAGES: tuple[Stage, ...] = ("authenticate", "decode", "settle")
Sample = tuple[str, tuple[tuple[str, str], ...]]


class Numbers:
    """What a scrape told."""

    def __init__(self, samples: dict[Sample, float]) -> None:
        self._samples = samples

    def of(self, name: str, **labels: str) -> float:
        """The sum of all series of *name* that have these *labels*."""
        wanted = set(labels.items())
        return sum(value for (told, has), value in self._samples.items() if told == name and wanted <= set(has))

    def __len__(self) -> int:
        return len(self._samples)


async def scraped(server: Server, accept: str = "text/plain") -> httpx2.Response:
    assert server.mulgil.metrics_port is not None
    async with httpx2.AsyncClient(headers={"accept": accept}) as prometheus:
        return await prometheus.get(f"http://127.0.0.1:{server.mulgil.metrics_port.port}/metrics")


async def numbers(server: Server) -> Numbers:
    text = (await scraped(server)).text
    return Numbers(
        {
            (sample.name, tuple(sample.labels.items())): sample.value
            for family in parsed_text(text)
            for sample in family.samples
        }
    )


def openmetrics_families(text: str) -> list[Family]:
    """By the library's own strict parser, which has no types."""
    return list(parsed_openmetrics(text))  # type: ignore[no-untyped-call]  # as it says


@pytest.fixture
async def measured() -> AsyncGenerator[Server]:
    """A gateway with a port for metrics."""
    async with serving(settings(metrics_port=0, embeddings_model="any", embeddings_served_name=(EMBEDDER,))) as server:
        yield server


async def test_both_formats_are_understood_and_have_every_metric(measured: Server) -> None:
    await measured.chat(script(tokens=3), stream=True)
    await measured.client.post("/v1/embeddings", json={"model": EMBEDDER, "input": "a text"})
    text, openmetrics = await scraped(measured), await scraped(measured, OPENMETRICS)
    assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    ours = {metric.name for metric in METRICS}
    for families in (list(parsed_text(text.text)), openmetrics_families(openmetrics.text)):
        told = {family.name.removesuffix("_total") for family in families if family.name.startswith("mulgil_")}
        assert told == ours
        assert {"process_resident_memory_bytes", "process_start_time_seconds"} <= {family.name for family in families}
    assert "_created" not in text.text + openmetrics.text


async def test_the_servers_own_port_tells_them_to_the_admin_alone(tmp_path: Path) -> None:
    (keys := tmp_path / "keys.toml").touch(mode=0o600)
    chosen = settings(admin_token=SecretStr(ADMIN), keys_file=keys)
    async with serving(chosen) as server:

        async def status(key: str) -> int:
            headers = {"authorization": f"Bearer {key}"} if key else {"authorization": ""}
            return (await server.client.get("/metrics", headers=headers)).status_code

        assert [await status(key) for key in (ADMIN, KEY, "wrong", "")] == [200, 403, 401, 401]
        assert (await server.client.get("/metrics/")).status_code == 404


async def test_without_an_admin_token_there_are_no_metrics_on_the_servers_port(shared: Server) -> None:
    assert (await shared.client.get("/metrics")).status_code == 404


async def test_an_answer_is_counted_once_with_all_its_times(measured: Server) -> None:
    await measured.chat(script(tokens=5, ttft=0.02, gap=0.01), stream=True)
    told = await numbers(measured)
    answer = {"model": MODEL, "tier": "default"}
    of_chat = {"method": "POST", "route": "/v1/chat/completions", "status": "200", **answer}
    assert told.of("mulgil_requests_total", **of_chat) == 1
    assert told.of("mulgil_answers_total", finish="stop", **answer) == 1
    assert told.of("mulgil_completion_tokens_total", **answer) == 5
    assert told.of("mulgil_prompt_tokens_total", **answer) > 0
    for name in ("time_to_first_token", "time_per_output_token", "queue_wait"):
        assert told.of(f"mulgil_{name}_seconds_count", **answer) == 1
    assert told.of("mulgil_tokenise_seconds_count", model=MODEL) == 1
    assert told.of("mulgil_request_duration_seconds_count", route="/v1/chat/completions") == 1
    assert [told.of("mulgil_budget_store_seconds_count", step=step) for step in ("reserve", "settle")] == [1, 1]
    assert told.of("mulgil_time_to_first_token_seconds_sum") >= 0.02
    assert told.of("mulgil_time_per_output_token_seconds_sum") >= 0.009


async def test_embeddings_are_counted_too(measured: Server) -> None:
    answer = await measured.client.post("/v1/embeddings", json={"model": EMBEDDER, "input": "five words make a text"})
    told = await numbers(measured)
    assert told.of("mulgil_prompt_tokens_total", model=EMBEDDER) == answer.json()["usage"]["prompt_tokens"]
    assert told.of("mulgil_answers_total", model=EMBEDDER, finish="stop") == 1


async def test_what_is_under_way_is_told_while_it_is(measured: Server) -> None:
    body = orjson.dumps(chat_body(script(tokens=1_000, gap=0.01), stream=True))
    async with hanging_up(measured, raw_request(body)) as reader:
        await reader.readuntil(b'content":"')
        told = await numbers(measured)
        assert (told.of("mulgil_running_requests"), told.of("mulgil_open_streams")) == (1, 1)
        assert (told.of("mulgil_turns_in_use"), told.of("mulgil_leases"), told.of("mulgil_engine_requests")) == (
            1,
            1,
            1,
        )
        assert told.of("mulgil_engine_state", engine="chat", state="ready") == 1
        assert told.of("mulgil_engine_state", engine="chat") == 1
    await eventually(lambda: measured.mulgil.gateway.running == 0)
    told = await numbers(measured)
    assert (told.of("mulgil_running_requests"), told.of("mulgil_open_streams")) == (0, 0)
    assert told.of("mulgil_client_hang_ups_total", route="/v1/chat/completions") == 1
    assert told.of("mulgil_answers_total", finish="abort") == 1


async def test_a_refusal_is_counted_by_the_limit_that_it_names(tmp_path: Path) -> None:
    config = tmp_path / "mulgil.toml"
    config.write_text("[tiers.default]\nrequests_per_minute = 1\noutput_tokens_per_minute = 100\n")
    async with serving(settings(metrics_port=0, config=config)) as server:
        for tokens in (101, 1, 1):
            await server.chat(max_tokens=tokens)
        told = await numbers(server)
    assert told.of("mulgil_budget_refusals_total", scope="key", dimension="output_tokens") == 1
    assert told.of("mulgil_budget_refusals_total", dimension="requests") == 1
    assert told.of("mulgil_budget_refusals_total") == told.of("mulgil_reservations_total", result="refused") == 2
    assert told.of("mulgil_requests_total", status="429") == 2


async def test_what_was_refused_by_the_engine_costs_no_tokens(measured: Server) -> None:
    await measured.chat(script(fail_at=0))
    told = await numbers(measured)
    assert told.of("mulgil_answers_total", finish="refused") == 1
    assert (told.of("mulgil_prompt_tokens_total"), told.of("mulgil_completion_tokens_total")) == (0, 0)


async def test_an_engine_that_is_rebuilt_is_counted_and_its_load_is_unknown_meanwhile() -> None:
    gate = asyncio.Event()
    gate.set()

    async def build() -> Engine:
        await gate.wait()
        return SimulatedEngine()

    async with serving(settings(metrics_port=0, engine_rebuilds=5), engine=build) as server:
        gate.clear()
        await server.chat(script(die_at=0))
        await eventually(lambda: server.mulgil.health.state == "rebuilding")
        text = (await scraped(server)).text
        assert 'mulgil_engine_state{engine="chat",state="rebuilding"} 1.0' in text
        assert "\nmulgil_engine_requests" not in text
        gate.set()
        await eventually(lambda: server.mulgil.health.state == "ready")
        assert (await numbers(server)).of("mulgil_engine_rebuilds_total", engine="chat") == 1


async def test_turns_on_a_socket_are_requests_and_the_connection_is_one(measured: Server) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    async with connect(f"ws://{measured.host}:{measured.port}/ws/chat", additional_headers=headers) as socket:
        for _ in range(2):
            await socket.send(orjson.dumps({"type": "chat", "content": script(tokens=2)}).decode())
            while orjson.loads(await socket.recv())["type"] != "done":
                pass
        assert (await numbers(measured)).of("mulgil_open_websockets") == 1
    await eventually(lambda: measured.mulgil.gateway.running == 0)
    told = await numbers(measured)
    assert told.of("mulgil_requests_total", route="/ws/chat", method="WS", status="200", model=MODEL) == 2
    assert told.of("mulgil_completion_tokens_total") == 4
    assert told.of("mulgil_open_websockets") == 0


def made_up(number: int, observer: Telemetry) -> Observation:
    """A request of which everything is a client's invention."""
    observed = Observation(observer, f"req_{number}", method=f"M{number}", path=f"/v1/{number}")
    observed.begin("authenticate")
    observed.tenant, observed.key, observed.tier = f"tenant-{number}", f"key-{number}", f"tier-{number}"
    observed.asks("chat", f"model-{number}")
    observed.used = Used(1, 1, 1, 1, "stop")
    observed.answers(404)
    return observed


def test_ten_thousand_invented_models_paths_keys_and_tiers_make_no_series() -> None:
    registry = CollectorRegistry()
    observer = Telemetry(RequestMetrics(registry, [MODEL], ["default"]), AccessLog(0))

    def series() -> int:
        return sum(len(family.samples) for family in registry.collect())

    made_up(0, observer).answered()
    before = series()
    for number in range(1, 10_001):
        made_up(number, observer).answered()
    assert series() == before
    assert registry.get_sample_value("mulgil_prompt_tokens_total", {"model": "other", "tier": "default"}) == 10_001


def observed_by(observer: Telemetry) -> Observation:
    """An answer of three tokens that is about to be over."""
    observed = Observation(observer, method="POST", route="/v1/chat/completions", tier="default")
    for stage in STAGES:
        observed.begin(stage)
    observed.asks("chat", MODEL)
    observed.used = Used(5, 0, 3, 3, "stop")
    observed.answers(200)
    return observed


def test_what_compares_variants_is_told_apart_by_them_and_only_that() -> None:
    registry = CollectorRegistry()
    observer = Telemetry(RequestMetrics(registry, [MODEL], ["default"]), AccessLog(0))
    for variant in ("base", "terse", "terse", None):
        observed = observed_by(observer)
        observed.variant = variant
        observed.answered()
    replaced = observed_by(observer)
    replaced.variant = "terse"
    replaced.falls_back("elsewhere", "overloaded")
    replaced.answered()
    answer = {"model": MODEL, "tier": "default"}
    of_chat = {"method": "POST", "route": "/v1/chat/completions", "status": "200", **answer}
    for variant, number in {"base": 1, "terse": 2, "none": 2}.items():
        told = partial(registry.get_sample_value, labels={**answer, "variant": variant})
        assert registry.get_sample_value("mulgil_requests_total", {**of_chat, "variant": variant}) == number
        labels = {**answer, "variant": variant, "finish": "stop"}
        assert registry.get_sample_value("mulgil_answers_total", labels) == number
        assert told("mulgil_completion_tokens_total") == 3 * number
        assert told("mulgil_time_to_first_token_seconds_count") == number
        assert told("mulgil_time_per_output_token_seconds_count") == number
    assert registry.get_sample_value("mulgil_prompt_tokens_total", answer) == 25
    why = {"model": MODEL, "fallback": "elsewhere", "reason": "overloaded"}
    assert registry.get_sample_value("mulgil_fallbacks_total", why) == 1
    labelled = {metric.name for metric in METRICS if "variant" in metric.labels}
    series = [sample for family in registry.collect() for sample in family.samples]
    assert {sample.labels["variant"] for sample in series if "variant" in sample.labels} == {"base", "terse", "none"}
    assert {
        family.name for family in registry.collect() for one in family.samples if "variant" in one.labels
    } == labelled


async def test_without_variants_and_fallbacks_the_label_is_none_everywhere(measured: Server) -> None:
    await measured.chat(script(tokens=2))
    await measured.client.get("/v1/nothing")
    told = await numbers(measured)
    assert told.of("mulgil_requests_total", variant="none") == told.of("mulgil_requests_total") == 2
    assert told.of("mulgil_answers_total", variant="none") == told.of("mulgil_answers_total") == 1
    assert told.of("mulgil_fallbacks_total") == 0


async def test_aliases_variants_and_fallbacks_of_the_configuration_have_series_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "mulgil.toml").write_text(
        UNLIMITED.read_text()
        + """
[models.mix.variants.base]
[models.long]
alias = true
fallbacks = ["short"]
[models.short]
alias = true
truncation = "auto"
"""
    )
    async with serving(settings(config=tmp_path / "mulgil.toml", metrics_port=0, max_model_len=64)) as server:
        assert (await server.chat(model="mix")).status_code == 200
        said = [{"role": "user", "content": "water " * 20}, {"role": "assistant", "content": "stone"}] * 3
        body = chat_body() | {"model": "long", "messages": [*said, {"role": "user", "content": "hello"}]}
        assert (await server.client.post("/v1/chat/completions", json=body)).status_code == 200
        told = await numbers(server)
    assert told.of("mulgil_answers_total", model="mix", variant="base") == 1
    assert told.of("mulgil_answers_total", model="long", variant="none") == 1
    assert told.of("mulgil_fallbacks_total", model="long", fallback="short", reason="context_length_exceeded") == 1


async def test_nor_do_they_through_the_server(measured: Server) -> None:
    async def invent(number: int) -> None:
        body: dict[str, Any] = chat_body() | {"model": f"model-{number}"}
        await measured.client.post("/v1/chat/completions", json=body)
        await measured.client.get(f"/v1/{number}", headers={"authorization": f"Bearer sk-{number}"})
        await measured.client.request(f"M{number}", f"/v1/streams/{number}")
        await measured.client.get(f"/v1/models/{number}")

    await invent(0)
    before = len(await numbers(measured))
    for number in range(1, 60):
        await invent(number)
    assert len(await numbers(measured)) == before
