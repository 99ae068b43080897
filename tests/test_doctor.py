"""`mulgil doctor`, and the stream that it measures: against real proxies that each do something wrong."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest
from harness import KEY, Server, serving, settings
from meddlers import Meddling, meddling
from nginxserver import nginx

from mulgil.admission.store import Account
from mulgil.api.sse import HEADERS
from mulgil.doctor.findings import Check, judge
from mulgil.doctor.measurements import Target, measure

IDLE = 2.0
PROXIES = {
    "good": Meddling(),
    "gathering": Meddling(gathers=True),
    "flushing": Meddling(flushes_every=0.7),
    "impatient": Meddling(patience=1.0),
    "very impatient": Meddling(patience=0.3),
    "limiting": Meddling(allows=1.2),
    "deaf": Meddling(drops=(b"x-ratelimit-remaining-tokens", b"x-request-id", b"retry-after")),
    "secretive": Meddling(drops=(b"access-control-allow-origin",)),
    "generous": Meddling(adds=((b"access-control-allow-origin", b"*"),)),
    "compressing": Meddling(compresses=True),
    "polite": Meddling(has_own_errors=True),
    "narrow": Meddling(largest_body=2**20),
}
NAIVE = """
server {{
    listen 127.0.0.1:PORT;
    gzip on; gzip_min_length 1; gzip_proxied any; gzip_types text/event-stream;
    location / {{ proxy_pass {url}; proxy_read_timeout 1s; {more} }}
}}
"""
# So is every nginx behind another one, which keeps that header for itself.
DEAF = "proxy_ignore_headers X-Accel-Buffering;"


@dataclass
class Findings:
    """What the doctor says about each proxy, and while it works."""

    checks: dict[str, dict[str, Check]] = field(default_factory=dict)
    reported: list[str] = field(default_factory=list)

    def bad(self, proxy: str) -> set[str]:
        return {name for name, check in self.checks[proxy].items() if check.verdict == "bad"}


@pytest.fixture(scope="module")
async def patient() -> AsyncGenerator[Server]:
    """A gateway that fills silence after 0.5 s."""
    async with serving(settings(ping_interval=0.5, cors_origins=("https://app.example",))) as server:
        yield server


@pytest.fixture(scope="module")
async def found(patient: Server) -> Findings:
    """All proxies measured at once: most of the time is spent in waiting."""
    findings = Findings()

    async def examine(name: str, url: str) -> None:
        target = Target(f"{url}/v1", KEY, IDLE, "https://app.example")
        measured = await measure(target, findings.reported.append)
        findings.checks[name] = {check.name: check for check in judge(measured, IDLE, loopback=True)}

    async with AsyncExitStack() as proxies:
        urls = {name: await proxies.enter_async_context(meddling(patient.url, how)) for name, how in PROXIES.items()}
        ours = await proxies.enter_async_context(nginx(f"127.0.0.1:{patient.port}"))
        naive = await proxies.enter_async_context(nginx(config=NAIVE.format(url=patient.url, more="")))
        deaf = await proxies.enter_async_context(nginx(config=NAIVE.format(url=patient.url, more=DEAF)))
        urls |= {"none": patient.url, "our nginx": ours.url, "naive nginx": naive.url, "deaf nginx": deaf.url}
        await asyncio.gather(*(examine(name, url) for name, url in urls.items()))
    return findings


@pytest.mark.parametrize("way", ["none", "our nginx"])
async def test_a_good_way_has_no_findings(found: Findings, way: str) -> None:
    assert {name: check.verdict for name, check in found.checks[way].items()} == dict.fromkeys(
        (
            "connection",
            "first byte",
            "pace",
            "compression",
            "silence",
            "headers",
            "CORS",
            "errors",
            "body",
            "WebSocket",
        ),
        "good",
    )


async def test_a_proxy_that_passes_no_upgrade_on_is_found(found: Findings) -> None:
    assert found.bad("good") == {"WebSocket"}
    assert "Upgrade" in found.checks["good"]["WebSocket"].cause


@pytest.mark.parametrize(
    ("proxy", "check", "said", "cause"),
    [
        ("gathering", "pace", "100% of them came together", "gathers the whole response"),
        ("flushing", "pace", "of them came together", "gathers several events"),
        ("impatient", "silence", "cut after 1.", "idle time-out"),
        ("very impatient", "silence", "before a comment line came through", "shorter than the pause"),
        ("limiting", "silence", "comment lines came through", "how long a response may take"),
        ("limiting", "pace", "ended before its end", "how long a response may take"),
        ("deaf", "headers", "retry-after, x-ratelimit-remaining-tokens, x-request-id", "only headers that it knows"),
        ("secretive", "CORS", "no CORS headers arrive", "removes them"),
        ("generous", "CORS", "2 times", "browsers refuse two"),
        ("compressing", "compression", "gzip", "although they say no-transform"),
        ("polite", "errors", "not in the gateway's words", "error pages"),
        ("narrow", "body", "2,097,152 bytes, which the gateway takes, gets 413", "smaller bodies"),
    ],
)
async def test_what_a_proxy_does_wrong_is_found_and_explained(
    found: Findings, proxy: str, check: str, said: str, cause: str
) -> None:
    finding = found.checks[proxy][check]
    assert finding.verdict == "bad"
    assert said in finding.said
    assert cause in finding.cause
    assert finding.cure


@pytest.mark.parametrize(
    ("proxy", "findings"),
    [
        ("gathering", {"pace"}),
        ("flushing", {"pace"}),
        ("impatient", {"silence"}),
        ("limiting", {"pace", "silence"}),
        ("secretive", {"CORS"}),
        ("generous", {"CORS"}),
        ("compressing", {"pace", "compression"}),
        ("narrow", {"body"}),
    ],
)
async def test_nothing_else_is_found(found: Findings, proxy: str, findings: set[str]) -> None:
    assert found.bad(proxy) == findings | {"WebSocket"}


async def test_an_nginx_as_people_write_it_is_recognised_and_told_what_to_change(found: Findings) -> None:
    assert found.bad("naive nginx") == {"compression", "silence", "body", "WebSocket"}
    for check, directive in (("compression", "gzip off;"), ("silence", "proxy_read_timeout 300s;")):
        assert "nginx" in found.checks["naive nginx"][check].cause
        assert directive in found.checks["naive nginx"][check].cure


async def test_compression_in_nginx_gathers_a_stream_only_where_our_header_is_not_heard(found: Findings) -> None:
    assert found.bad("deaf nginx") - found.bad("naive nginx") == {"pace"}
    assert "nginx gathers the whole response" in found.checks["deaf nginx"]["pace"].cause
    assert "gzip off;" in found.checks["deaf nginx"]["pace"].cure


async def test_it_says_what_it_is_doing(found: Findings) -> None:
    assert any("events" in line for line in found.reported)
    assert any("silent" in line for line in found.reported)


async def run(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mulgil", "doctor", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_the_command_compares_with_the_direct_url_and_prints_json(patient: Server) -> None:
    async with meddling(patient.url, PROXIES["gathering"]) as proxy:
        code, out, err = await run(
            *("--url", f"{proxy}/v1", "--key", KEY, "--direct", f"{patient.url}/v1", "--idle", "0.2", "--json")
        )
    assert code == 1
    assert "events" in err
    report: dict[str, Any] = orjson.loads(out)
    assert report["ok"] is False
    assert KEY not in out + err
    checks = {check["name"]: check for check in report["checks"]}
    assert checks["pace"]["verdict"] == "bad"
    assert "gathers" in checks["pace"]["cause"], "the direct URL does not have it"
    through, direct = report["measured"]
    assert len(through["came"]) == len(direct["came"]) == 20


async def test_a_finding_at_the_direct_url_is_not_blamed_on_the_proxy(patient: Server) -> None:
    async with meddling(patient.url, PROXIES["polite"]) as proxy:
        both = ("--url", f"{proxy}/v1", "--direct", f"{proxy}/v1")
        code, out, _ = await run(*both, "--key", KEY, "--idle", "0.2")
    assert code == 1
    assert "bad     errors" in out
    assert "cause: the direct URL has it too" in out


async def test_it_exits_with_0_when_all_is_good(patient: Server) -> None:
    code, out, _ = await run("--url", f"{patient.url}/v1/", "--key", KEY, "--idle", "0.2")
    assert code == 0, out
    assert "good    silence     0.2 s without a byte were survived" in out


@pytest.mark.parametrize(
    ("path", "key", "reason"),
    [
        ("/v1", "sk-mg-wrong", "does not take this key"),
        ("", KEY, "should end in /v1"),
    ],
)
async def test_it_exits_with_2_and_the_reason_when_it_is_not_let_in(
    patient: Server, path: str, key: str, reason: str
) -> None:
    code, out, err = await run("--url", patient.url + path, "--key", key)
    assert (code, out) == (2, "")
    assert reason in err


async def test_it_exits_with_2_when_nobody_is_there() -> None:
    code, out, _ = await run("--url", "http://127.0.0.1:9/v1", "--key", KEY, "--json")
    assert code == 2
    assert "cannot be reached" in orjson.loads(out)["error"]
    code, _, err = await run("--url", "gateway.example", "--key", KEY)
    assert code == 2
    assert "http" in err


async def test_the_stream_costs_no_engine_and_no_budget_and_needs_a_key(server: Server) -> None:
    answer = await server.client.get("/v1/doctor/stream", params={"events": 3, "gap_ms": 1, "padding": 100})
    assert answer.status_code == 200
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    hello, *ticks = [orjson.loads(line[6:]) for line in answer.text.split("\n\n")[:-2]]
    assert hello["event"] == "hello"
    assert [tick["index"] for tick in ticks] == [0, 1, 2]
    assert {len(tick["padding"]) for tick in ticks} == {100}
    assert answer.text.endswith("data: [DONE]\n\n")
    caller = await server.mulgil.keys.find(KEY.encode())
    assert caller is not None
    assert (await server.mulgil.store.balances(Account(caller.tenant, caller.key_id))).key.requests == 0
    assert (await server.client.get("/v1/doctor/stream", headers={"authorization": ""})).status_code == 401


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"events": 201}, "events"),
        ({"events": 0}, "events"),
        ({"gap_ms": 10_001}, "gap_ms"),
        ({"gap_ms": "soon"}, "gap_ms"),
        ({"idle_s": 121}, "idle_s"),
        ({"idle_s": "nan"}, "idle_s"),
        ({"padding": 16_385}, "padding"),
        ({"pings": "maybe"}, "pings"),
        ({"events": 200, "gap_ms": 10_000}, "gap_ms"),
    ],
)
async def test_the_stream_is_bounded(shared: Server, query: dict[str, Any], param: str) -> None:
    answer = await shared.client.get("/v1/doctor/stream", params=query)
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == param


async def test_the_stream_ends_when_the_client_leaves_and_only_so_many_run_at_once(server: Server) -> None:
    async with AsyncExitStack() as streams:
        for _ in range(32):
            await streams.enter_async_context(
                server.client.stream("GET", "/v1/doctor/stream", params={"idle_s": 120, "events": 2})
            )
        refused = await server.client.get("/v1/doctor/stream")
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "overloaded"
    began = time.monotonic()
    while (await server.client.get("/v1/doctor/stream", params={"events": 1, "gap_ms": 0})).status_code != 200:
        assert time.monotonic() - began < 5
        await asyncio.sleep(0.01)
