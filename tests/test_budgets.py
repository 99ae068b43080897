"""Budgets as a client meets them: exact, atomic, settled whatever happens."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from harness import Server, chat_body, eventually, hanging_up, raw_request, script, serving, settings

from mulgil.admission.policy import Balance
from mulgil.admission.store import Account

TENANT = "default"


@asynccontextmanager
async def limited(tmp_path: Path, **limits: object) -> AsyncGenerator[Server]:
    """A gateway whose only tier has these limits; those not given are unlimited."""
    names = ("requests_per_minute", "input_tokens_per_minute", "output_tokens_per_minute", "concurrent_requests")
    table = {name: limits.pop(name, "unlimited") for name in names} | limits
    config = tmp_path / "mulgil.toml"
    config.write_text(
        "[tiers.default]\n" + "".join(f"{name} = {orjson.dumps(value).decode()}\n" for name, value in table.items())
    )
    async with serving(settings(config=config)) as server:
        yield server


async def balance(server: Server) -> Balance:
    """What the suite's key has used."""
    caller = await server.mulgil.keys.find(b"sk-mg-test-key-of-the-suite")
    assert caller is not None
    return (await server.mulgil.store.balances(Account(caller.tenant, caller.key_id))).key


async def test_a_reply_says_what_is_left(tmp_path: Path) -> None:
    async with limited(
        tmp_path, requests_per_minute=10, input_tokens_per_minute=1000, output_tokens_per_minute=500
    ) as server:
        reply = await server.chat(script(tokens=20), max_tokens=50)
        prompt = reply.json()["usage"]["prompt_tokens"]
        left = {name: value for name, value in reply.headers.items() if name.startswith("x-ratelimit")}
        reset = [
            left.pop(f"x-ratelimit-reset-{name}") for name in ("requests", "tokens", "input-tokens", "output-tokens")
        ]
        assert left == {
            "x-ratelimit-limit-requests": "10",
            "x-ratelimit-limit-input-tokens": "1000",
            "x-ratelimit-limit-output-tokens": "500",
            "x-ratelimit-limit-tokens": "1500",
            "x-ratelimit-remaining-requests": "9",
            "x-ratelimit-remaining-input-tokens": str(1000 - prompt),
            "x-ratelimit-remaining-output-tokens": "480",
            "x-ratelimit-remaining-tokens": str(1000 - prompt + 480),
        }
        assert all(one.startswith("1m0") or one.startswith("1m1") for one in reset)


async def test_a_stream_says_at_its_start_what_is_left_while_it_holds_its_worst_case(tmp_path: Path) -> None:
    async with limited(tmp_path, requests_per_minute=10, output_tokens_per_minute=500) as server:
        reply = await server.chat(script(tokens=20), max_tokens=50, stream=True)
        assert reply.headers["x-ratelimit-remaining-output-tokens"] == "450"
        assert (await balance(server)).output_tokens == 20


async def test_the_request_after_the_last_one_is_refused_with_the_moment_when_it_fits(tmp_path: Path) -> None:
    async with limited(tmp_path, requests_per_minute=3) as server:
        statuses = [(await server.chat(max_tokens=1)).status_code for _ in range(3)]
        refused = await server.chat(max_tokens=1)
        assert statuses == [200] * 3
        assert refused.status_code == 429
        error = refused.json()["error"]
        assert (error["type"], error["code"], error["param"]) == ("requests", "rate_limit_exceeded", None)
        assert "Limit 3, Used 3, Requested 1. Please try again in" in error["message"]
        assert 58 <= int(refused.headers["retry-after"]) <= 61
        assert 0 <= int(refused.headers["retry-after"]) * 1000 - int(refused.headers["retry-after-ms"]) < 1000
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert (await balance(server)).requests == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_has_the_same_status_streamed_or_plain(tmp_path: Path, stream: bool) -> None:
    async with limited(tmp_path, requests_per_minute=1) as server:
        await server.chat(max_tokens=1)
        refused = await server.chat(max_tokens=1, stream=stream)
        assert refused.status_code == 429
        assert refused.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("limits", "fields", "kind"),
    [
        ({"output_tokens_per_minute": 100}, {"max_tokens": 101}, "tokens"),
        ({"output_tokens_per_minute": 100}, {"max_tokens": 51, "n": 2}, "tokens"),
        ({"input_tokens_per_minute": 3}, {"max_tokens": 1}, "tokens"),
    ],
)
async def test_a_request_larger_than_a_whole_limit_says_so_and_is_not_to_be_retried(
    tmp_path: Path, limits: dict[str, object], fields: dict[str, Any], kind: str
) -> None:
    async with limited(tmp_path, **limits) as server:
        refused = await server.chat(**fields)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "request_exceeds_limit"
        assert refused.json()["error"]["type"] == kind
        assert refused.headers["x-should-retry"] == "false"
        assert "retry-after" not in refused.headers
        assert await balance(server) == Balance()


async def test_what_was_held_and_not_made_is_given_back_at_once(tmp_path: Path) -> None:
    async with limited(tmp_path, output_tokens_per_minute=100) as server:
        for _ in range(9):
            assert (await server.chat(script(tokens=10), max_tokens=100 - 90)).status_code == 200
        assert (await server.chat(script(tokens=1), max_tokens=11)).status_code == 429
        assert (await server.chat(script(tokens=1), max_tokens=10)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_the_next_request_never_meets_its_own_reservation(tmp_path: Path, stream: bool) -> None:
    async with limited(tmp_path, concurrent_requests=1, output_tokens_per_minute=10_000) as server:
        for _ in range(40):
            assert (await server.chat(script(tokens=2), max_tokens=9_000, stream=stream)).status_code == 200


async def test_only_as_many_run_as_may_and_the_others_are_refused_before_any_token(tmp_path: Path) -> None:
    async with limited(tmp_path, concurrent_requests=2) as server:
        asked = await asyncio.gather(*(server.chat(script(tokens=30, gap=0.01), stream=True) for _ in range(10)))
        assert sorted(reply.status_code for reply in asked) == [200] * 2 + [429] * 8
        refused = next(reply for reply in asked if reply.status_code == 429)
        assert refused.json()["error"]["type"] == "requests"
        assert refused.headers["retry-after"] == "1"
        assert (await balance(server)).concurrency == 0


async def test_a_request_refused_by_one_budget_has_not_touched_another(tmp_path: Path) -> None:
    async with limited(tmp_path, requests_per_minute=2, concurrent_requests=1) as server:
        async with hanging_up(server, raw_request(orjson.dumps(chat_body(script(hang_at=1), stream=True)))) as reader:
            await reader.readuntil(b"\n\n")
            assert (await server.chat()).status_code == 429
        await eventually(lambda: server.mulgil.gateway.running == 0)
        assert (await server.chat()).status_code == 200
        assert (await balance(server)).requests == 2


@pytest.mark.parametrize(
    "fields", [{"temperature": 9}, {"model": "nope"}, {"messages": []}, {"max_tokens": 10**9}, {"stop": [""]}]
)
async def test_a_request_that_is_wrong_costs_nothing(tmp_path: Path, fields: dict[str, Any]) -> None:
    async with limited(tmp_path, requests_per_minute=1) as server:
        body = chat_body() | fields
        assert (await server.client.post("/v1/chat/completions", json=body)).status_code in (404, 422)
        assert (await server.chat("word " * 9000)).status_code == 400
        assert await balance(server) == Balance()
        assert (await server.chat()).status_code == 200


@pytest.mark.parametrize("directives", [{"fail_at": 0}, {"ttft": 0.01, "fail_at": 0}])
async def test_a_request_that_the_engine_refused_before_any_work_gets_everything_back(
    tmp_path: Path, directives: dict[str, Any]
) -> None:
    async with limited(tmp_path, requests_per_minute=5) as server:
        assert (await server.chat(script(**directives))).status_code == 500
        assert await balance(server) == Balance()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_fails_midway_pays_for_what_was_made(tmp_path: Path, stream: bool) -> None:
    async with limited(tmp_path, requests_per_minute=5) as server:
        await server.chat(script(tokens=9, fail_at=4), stream=stream)
        used = await balance(server)
        assert (used.requests, used.output_tokens, used.held_tokens, used.concurrency) == (1, 4, 0, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_hanging_up_pays_for_what_was_made_and_gives_the_rest_back(tmp_path: Path, stream: bool) -> None:
    async with limited(tmp_path, output_tokens_per_minute=10_000) as server:
        body = chat_body(script(tokens=5000, gap=0.002), max_tokens=5000, stream=stream)
        async with hanging_up(server, raw_request(orjson.dumps(body))):
            await eventually(lambda: server.engine.load().unfinished == 1)
            ((generation, _),) = server.mulgil.gateway._running._runs.values()
            await eventually(lambda: generation.snapshot.completion_tokens > 20)
        await eventually(lambda: server.mulgil.gateway.running == 0)
        used = await balance(server)
        assert used.output_tokens == generation.snapshot.completion_tokens
        assert (used.held_tokens, used.concurrency) == (0, 0)


async def test_tokens_of_a_long_stream_are_charged_while_it_runs(tmp_path: Path) -> None:
    config = tmp_path / "mulgil.toml"
    config.write_text("[tiers.default]\noutput_tokens_per_minute = 1000\n")
    async with serving(settings(config=config, lease_ttl=1.0, lease_renew_interval=0.05)) as server:
        body = chat_body(script(tokens=900, gap=0.005), max_tokens=900, stream=True)
        async with hanging_up(server, raw_request(orjson.dumps(body))) as reader:
            await reader.readuntil(b"\n\n")
            await asyncio.sleep(1.5)
            used = await balance(server)
            assert used.output_tokens > 50
            assert used.output_tokens + used.held_tokens == 900
            assert used.concurrency == 1


async def test_the_tiers_own_bound_of_max_tokens_holds(tmp_path: Path) -> None:
    async with limited(tmp_path, max_tokens=7) as server:
        assert (await server.chat(script(tokens=50))).json()["usage"]["completion_tokens"] == 7
        refused = await server.chat(max_tokens=8)
        assert refused.status_code == 422
        assert refused.json()["error"]["param"] == "max_tokens"
