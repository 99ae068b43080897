"""Rules, alerts and the dashboard, held against what a real gateway tells."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from harness import script, serving, settings
from prometheus_client.parser import text_string_to_metric_families as parsed

from mulgil.telemetry.names import METRICS

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy/prometheus"
GRAFANA = ROOT / "deploy/grafana"
RULES = yaml.safe_load((PROMETHEUS / "rules.yml").read_text())
DASHBOARD = json.loads((GRAFANA / "dashboards/mulgil.json").read_text())
# What Prometheus adds to every series, or makes itself.
ADDED = {"job", "instance", "le"}
OF_PROMETHEUS = {"up": set[str]()}
# Needs the real model; tests/e2e/test_telemetry_on_vllm.py looks for these.
OF_VLLM = {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:num_preemptions_total"}
_WORDS = frozenset(
    "sum max min avg count rate increase histogram_quantile by without and or unless on ignoring group_left "
    "label_values".split()
)


def rules() -> Iterator[dict[str, Any]]:
    for group in RULES["groups"]:
        yield from group["rules"]


def dashboard_expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["definition"]


EXPRESSIONS = sorted({*(rule["expr"] for rule in rules()), *dashboard_expressions()})
RECORDED = {rule["record"] for rule in rules() if "record" in rule}


def asked_for(expression: str) -> tuple[set[str], dict[str, set[str]], set[str]]:
    """Metrics, the labels and values asked of each, and the labels that are grouped or matched by."""
    grouped = {
        label.strip()
        for found in re.findall(r"\b(?:by|without|ignoring) \(([^)]*)\)", expression)
        for label in found.split(",")
    }
    text = re.sub(r"\b(?:by|without|ignoring) \([^)]*\)", "", expression)
    if found := re.fullmatch(r"label_values\((.*), (\w+)\)", text):
        text, label = found[1], found[2]
        grouped.add(label)
    matchers: dict[str, set[str]] = {}
    names = set()
    for name, inside in re.findall(r"([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})?(?!\w*\()", re.sub(r"\[[^]]*\]", "", text)):
        if name in _WORDS:
            continue
        names.add(name)
        matchers.setdefault(name, set()).update(re.findall(r'(\w+=~?"[^"]*")', inside))
    return names, matchers, grouped


@pytest.fixture(scope="session")
async def told() -> dict[str, list[dict[str, str]]]:
    """The labels of every series of a gateway that has done a bit of everything, by the name of its metric."""
    series: dict[str, list[dict[str, str]]] = {}
    async with serving(settings(metrics_port=0, metrics_host="127.0.0.1")) as server:
        await server.chat(script(tokens=3), stream=True)
        await server.chat(script(tokens=3, fail_at=1))
        await server.client.get("/v1/nothing")
        async with httpx2.AsyncClient() as prometheus:
            assert server.mulgil.metrics_port is not None
            text = (await prometheus.get(f"http://127.0.0.1:{server.mulgil.metrics_port.port}/metrics")).text
    for family in parsed(text):
        for sample in family.samples:
            series.setdefault(sample.name, []).append(sample.labels)
    return series


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_name_and_label_in_an_expression_is_one_that_a_gateway_tells(
    expression: str, told: dict[str, list[dict[str, str]]]
) -> None:
    names, matchers, grouped = asked_for(expression)
    assert names
    labels = set(ADDED)
    for name in names - OF_VLLM - RECORDED - OF_PROMETHEUS.keys():
        # Those that count by labels have no series before something happened.
        begun = [metric for metric in METRICS if name.startswith(metric.name)]
        known = max(begun, key=lambda metric: len(metric.name), default=None)
        assert name in told or (known is not None and known.kind == "counter" and name == known.told_as), name
        labels |= set(known.labels) if known else {label for one in told[name] for label in one}
        for matcher in matchers[name]:
            label = matcher.partition("=")[0]
            assert label in ADDED or (known is not None and label in known.labels), matcher
    assert grouped <= labels or names & RECORDED


def test_the_values_that_are_matched_exist(told: dict[str, list[dict[str, str]]]) -> None:
    for expression in EXPRESSIONS:
        for label, values in re.findall(r'(state|le|end|finish)=~?"([^"]*)"', expression):
            existing = {one[label] for series in told.values() for one in series if label in one}
            assert set(values.split("|")) <= existing, values


def test_every_alert_is_documented_and_every_documented_one_exists() -> None:
    page = (ROOT / "docs/operations.md").read_text().partition("### What to alert on")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(Mulgil\w+)`", page)) == {rule["alert"] for rule in rules() if "alert" in rule}


def test_the_dashboard_is_one_that_grafana_can_be_given() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["targets"]
    provider = yaml.safe_load((GRAFANA / "provisioning/dashboards/mulgil.yml").read_text())["providers"][0]
    assert provider["type"] == "file"
    source = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"][0]
    assert source["type"] == "prometheus"


def test_every_metric_of_ours_is_in_the_dashboard_or_an_alert() -> None:
    text = "\n".join(EXPRESSIONS)
    assert [metric.name for metric in METRICS if metric.name not in text] == []


@pytest.mark.parametrize(
    "arguments",
    [("check", "config", "prometheus.yml"), ("check", "rules", "rules.yml"), ("test", "rules", "rules_test.yml")],
)
def test_promtool_agrees(arguments: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run([promtool, *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
