"""`GET /v1/usage`, `GET /admin/usage`, and quotas as a client meets them."""

import asyncio
import os
import re
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from harness import MODEL, Server, chat_body, script, serving, settings
from openai import AsyncOpenAI, RateLimitError
from pydantic import SecretStr
from raw import error_of
from websockets.asyncio.client import connect

from mulgil.app import build
from mulgil.ledger.keeping import UsageLedger

TOKEN = "the-token-of-the-admin"
ONE, OTHER = "sk-mg-one-key-of-usage", "sk-mg-other-key-of-usage"
CONFIG = """
[tiers.default]
requests_per_minute = "unlimited"
input_tokens_per_minute = "unlimited"
output_tokens_per_minute = "unlimited"

[models.demo.price]
input = 0.50
cached_input = 0.05
output = 1.50
"""
NOTHING = {
    "requests": 0,
    "prompt_tokens": 0,
    "cached_tokens": 0,
    "completion_tokens": 0,
    "total_tokens": 0,
    "cost": "0",
}


def chosen(folder: Path, config: str = CONFIG, **changes: Any) -> dict[str, Any]:
    (folder / "mulgil.toml").write_text(config)
    (folder / "keys.toml").touch()
    return {
        "api_keys": (SecretStr(ONE), SecretStr(OTHER)),
        "keys_file": folder / "keys.toml",
        "admin_token": SecretStr(TOKEN),
        "config": folder / "mulgil.toml",
        "usage_url": None,
        "state_folder": folder,
    } | changes


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[Server]:
    async with serving(settings(**chosen(tmp_path))) as running:
        yield running


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def ask(server: Server, key: str, **directives: Any) -> httpx2.Response:
    body = chat_body(script(**directives))
    return await server.client.post("/v1/chat/completions", json=body, headers=bearer(key))


async def told(server: Server, who: str = ONE, path: str = "/v1/usage", **query: str) -> Any:
    """What the route says, once all that ended is written."""
    ledger = server.mulgil.usage.ledger
    assert isinstance(ledger, UsageLedger)
    async with asyncio.timeout(5):
        while ledger.waiting or not ledger.database._open:
            ledger._wake.set()
            await asyncio.sleep(0.005)
    reply = await server.client.get(path, params=query, headers=bearer(who))
    assert reply.status_code == 200, reply.text
    assert reply.headers["cache-control"] == "no-store"
    return reply.json()


async def test_a_key_is_told_its_own_numbers_and_no_others(server: Server) -> None:
    usage = [(await ask(server, ONE, tokens=5)).json()["usage"] for _ in range(2)]
    await ask(server, OTHER, tokens=7)
    found = await told(server, by="model,status")
    prompt, cached = usage[0]["prompt_tokens"], sum(one["prompt_tokens_details"]["cached_tokens"] for one in usage)
    cost = f"{((2 * prompt - cached) * 500 + cached * 50 + 10 * 1500) / 1e9:.9f}".rstrip("0")
    numbers = {
        "requests": 2,
        "prompt_tokens": 2 * prompt,
        "cached_tokens": cached,
        "completion_tokens": 10,
        "total_tokens": 2 * prompt + 10,
        "cost": cost,
    }
    assert found["data"] == [{**numbers, "labels": {"model": MODEL, "status": "stop"}}]
    assert found["total"] == numbers
    assert found["by"] == ["model", "status"]
    assert found["since"] == datetime.now(UTC).strftime("%Y-%m-01T00:00:00Z")
    assert (await told(server, OTHER, by=""))["total"]["completion_tokens"] == 7


async def test_without_a_word_it_is_this_month_by_day_and_model(server: Server) -> None:
    assert (await told(server))["total"] == NOTHING
    await ask(server, ONE, tokens=1)
    (line,) = (await told(server))["data"]
    assert line["labels"] == {"day": datetime.now(UTC).date().isoformat(), "model": MODEL}


async def test_a_span_may_be_a_date_a_time_or_how_long_ago(server: Server) -> None:
    await ask(server, ONE, tokens=1)
    now = datetime.now(UTC)
    for since in ("1h", "30d", "45m", now.date().isoformat(), (now - timedelta(seconds=9)).isoformat()):
        assert (await told(server, since=since))["total"]["requests"] == 1
    later = (now + timedelta(days=2)).date().isoformat()
    assert (await told(server, since="1h", until=later))["total"]["requests"] == 1
    assert (await told(server, since="2h", until="1h"))["total"] == NOTHING


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ({"by": "tenant"}, 422, "by"),
        ({"by": "model,colour"}, 422, "by"),
        ({"since": "yesterday"}, 422, "since"),
        ({"since": "9999999999d"}, 422, "since"),
        ({"until": "2030-13-01"}, 422, "until"),
        ({"since": "1h", "until": "2h"}, 422, "until"),
        ({"key": "key_1"}, 400, "key"),
        ({"sinse": "1h"}, 400, "sinse"),
    ],
)
async def test_what_is_wrong_is_named(server: Server, query: dict[str, str], status: int, param: str) -> None:
    reply = await server.client.get("/v1/usage", params=query, headers=bearer(ONE))
    assert (reply.status_code, error_of(reply)["param"]) == (status, param)


async def test_the_admin_sees_everybody_and_may_look_at_one(server: Server) -> None:
    await ask(server, ONE, tokens=2)
    await ask(server, OTHER, tokens=3)
    found = await told(server, TOKEN, "/admin/usage", by="tenant,key")
    assert [line["completion_tokens"] for line in found["data"]] in ([2, 3], [3, 2])
    assert found["total"]["completion_tokens"] == 5
    key = found["data"][0]["labels"]["key"]
    assert (await told(server, TOKEN, "/admin/usage", key=key))["total"]["requests"] == 1
    assert (await told(server, TOKEN, "/admin/usage", tenant="nobody"))["total"] == NOTHING
    assert (await told(server, TOKEN, "/admin/usage", model=MODEL, by="month"))["total"]["requests"] == 2


async def test_each_route_is_for_its_own_kind_of_key(server: Server) -> None:
    for path, key, status in (
        ("/v1/usage", "", 401),
        ("/v1/usage", TOKEN, 401),
        ("/admin/usage", "", 401),
        ("/admin/usage", ONE, 403),
    ):
        headers = bearer(key) if key else {"authorization": ""}
        assert (await server.client.get(path, headers=headers)).status_code == status


async def test_where_no_usage_is_kept_there_are_no_such_routes(tmp_path: Path) -> None:
    async with serving(settings(**chosen(tmp_path, usage_url=SecretStr("off")))) as server:
        assert (await ask(server, ONE)).status_code == 200
        assert (await server.client.get("/v1/usage", headers=bearer(ONE))).status_code == 404
        assert (await server.client.get("/admin/usage", headers=bearer(TOKEN))).status_code == 404
    assert sorted(os.listdir(tmp_path)) == ["keys.toml", "mulgil.toml"]


async def test_while_the_database_is_away_requests_go_on_and_usage_cannot_be_read(tmp_path: Path) -> None:
    nowhere = SecretStr("postgresql://mulgil@127.0.0.1:1/none")
    async with serving(settings(**chosen(tmp_path, usage_url=nowhere))) as server:
        assert (await ask(server, ONE)).status_code == 200
        reply = await server.client.get("/v1/usage", headers=bearer(ONE))
        assert (reply.status_code, error_of(reply)["code"]) == (503, "usage_unavailable")
        assert "retry-after" in reply.headers
    assert any(name.endswith(".jsonl") for name in os.listdir(tmp_path))


@pytest.mark.parametrize("quota", ["tokens_per_day = 40", "cost_per_month = 0.00002"])
async def test_a_quota_that_is_used_up_is_told_as_openai_does(tmp_path: Path, quota: str) -> None:
    config = CONFIG.replace("[tiers.default]", f"[tiers.default]\n{quota}\ntenant = {{ tokens_per_day = 300 }}")
    async with serving(settings(**chosen(tmp_path, config))) as server:
        answers: list[httpx2.Response] = []
        while not answers or (answers[-1].status_code == 200 and len(answers) < 30):
            answers.append(await ask(server, ONE, tokens=5))
        assert 1 < len(answers) < 30
        refused = answers[-1]
        assert refused.status_code == 429
        assert refused.headers["x-should-retry"] == "false"
        assert "retry-after" not in refused.headers
        error = refused.json()["error"]
        assert (error["type"], error["code"], error["param"]) == ("insufficient_quota", "insufficient_quota", None)
        used = (await told(server))["total"]
        assert used["requests"] == len(answers) - 1
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=ONE, max_retries=3) as client:
            with pytest.raises(RateLimitError) as raised:
                await client.chat.completions.create(**chat_body(stream=True))
            assert raised.value.code == "insufficient_quota"
        async with connect(
            f"ws://{server.host}:{server.port}/ws/chat", additional_headers=bearer(ONE), proxy=None
        ) as socket:
            await socket.send('{"type": "chat", "content": "hello"}')
            assert "insufficient_quota" in str(await socket.recv())
        while (await ask(server, OTHER, tokens=5)).status_code == 200:
            pass
        if "tokens" in quota:
            assert "this key may use" in (await ask(server, OTHER)).text


async def test_a_tenants_quota_is_for_all_its_keys(tmp_path: Path) -> None:
    config = CONFIG.replace("[tiers.default]", "[tiers.default]\ntenant = { tokens_per_month = 30 }")
    async with serving(settings(**chosen(tmp_path, config))) as server:
        while (await ask(server, ONE, tokens=5)).status_code == 200:
            pass
        assert "this key's tenant may use 30 tokens per month" in (await ask(server, OTHER)).text


def test_a_quota_without_a_ledger_is_refused_at_the_start(tmp_path: Path) -> None:
    config = CONFIG.replace("[tiers.default]", "[tiers.default]\ntokens_per_day = 1")
    with pytest.raises(ValueError, match="'default' has a quota"):
        build(settings(**chosen(tmp_path, config, usage_url=SecretStr("off"))))


def test_both_routes_are_in_the_page_about_usage() -> None:
    page = (Path(__file__).parents[2] / "docs/usage.md").read_text()
    assert set(re.findall(r"`GET (/[^`]*)`", page)) == {"/v1/usage", "/admin/usage"}
