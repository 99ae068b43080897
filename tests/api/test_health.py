"""What orchestrators and balancers are told while the engine loads, serves and is dead."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
import pytest
from harness import KEY, Server, chat_body, eventually, script, serving, settings
from raw import ask, error_of, request_line

from mulgil import __version__
from mulgil.app import build
from mulgil.engine.base import Engine
from mulgil.errors import EngineUnavailableError

CHAT = "/v1/chat/completions"
PATHS = ("/health/live", "/health/ready", "/health")


async def loading_forever() -> Engine:
    """An engine that never comes."""
    await asyncio.Event().wait()
    raise AssertionError


async def unable_to_start() -> Engine:
    """An engine that cannot be had."""
    raise EngineUnavailableError("There is no such model.")


@asynccontextmanager
async def without_engine(engine: object) -> AsyncGenerator[httpx2.AsyncClient]:
    """A client, without a key, of an application whose engine is not ready."""
    mulgil = build(settings(), engine=engine, on_engine_failed=lambda: None)  # type: ignore[arg-type]  # each test's own builder
    transport = httpx2.ASGITransport(mulgil.app)
    async with (
        mulgil.app.router.lifespan_context(mulgil.app),
        httpx2.AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        yield client


async def statuses(client: httpx2.AsyncClient) -> list[int]:
    return [(await client.get(path)).status_code for path in PATHS]


async def test_a_ready_engine_is_alive_and_ready(shared: Server) -> None:
    for path in PATHS:
        answer = await ask(shared, request_line("GET", path))
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["cache-control"] == "no-store"
        assert "retry-after" not in answer.headers
    report = (await shared.client.get("/health")).json()
    assert isinstance(report.pop("since"), int)
    late = report.pop("loop_lag_ms")
    assert 0 <= late["last"] <= late["worst"]
    assert report == {
        "status": "ready",
        "reason": "The engine answers.",
        "limiter": "available",
        "version": __version__,
        "running": 0,
    }


async def test_health_counts_what_is_running(server: Server) -> None:
    asked = asyncio.create_task(server.chat(script(hang_at=1)))
    await eventually(lambda: server.mulgil.gateway.running == 1)
    assert (await server.client.get("/health")).json()["running"] == 1
    asked.cancel()
    await eventually(lambda: server.mulgil.gateway.running == 0)
    assert (await server.client.get("/health")).json()["running"] == 0


async def test_a_loading_engine_is_alive_and_not_ready() -> None:
    async with without_engine(loading_forever) as client:
        assert await statuses(client) == [200, 503, 503]
        answer = await client.get("/health/ready")
        assert answer.headers["retry-after"] == "1"
        report = answer.json()
        assert (report["status"], report["reason"]) == ("loading", "The engine is loading.")


@pytest.mark.parametrize("stream", [False, True])
async def test_while_the_engine_loads_a_request_is_told_when_to_come_again(stream: bool) -> None:
    async with without_engine(loading_forever) as client:
        answer = await client.post(CHAT, json=chat_body(stream=stream), headers={"authorization": f"Bearer {KEY}"})
        assert answer.status_code == 503
        assert error_of(answer) == {
            "message": "The model cannot answer now: The engine is loading.",
            "type": "server_error",
            "param": None,
            "code": "engine_unavailable",
        }
        # More than a minute and the official clients would not wait for it, but try again at once.
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert int(answer.headers["retry-after-ms"]) == 1_000 * int(answer.headers["retry-after"])


async def test_while_the_engine_loads_the_models_are_listed_and_keys_are_checked() -> None:
    async with without_engine(loading_forever) as client:
        assert (await client.get("/v1/models")).status_code == 200
        assert (await client.post(CHAT, json=chat_body())).status_code == 401
        wrong = await client.post(CHAT, json=chat_body(n=0), headers={"authorization": f"Bearer {KEY}"})
        assert wrong.status_code == 422


async def test_an_engine_that_cannot_be_started_is_not_alive_and_says_why() -> None:
    async with without_engine(unable_to_start) as client:
        await asyncio.sleep(0)
        assert await statuses(client) == [503, 503, 503]
        report = (await client.get("/health/live")).json()
        assert (report["status"], report["reason"]) == ("failed", "There is no such model.")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_dead_engine_is_neither_alive_nor_ready_at_once(server: Server, stream: bool) -> None:
    died = await server.chat(script(die_at=1), stream=stream)
    assert "engine_unavailable" in died.text
    assert "[DONE]" not in died.text
    assert await statuses(server.client) == [503, 503, 503]
    report = (await server.client.get("/health/live")).json()
    assert (report["status"], report["reason"]) == ("failed", "The engine died.")
    refused = await server.chat(stream=stream)
    assert refused.status_code == 503
    assert error_of(refused)["code"] == "engine_unavailable"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert "retry-after-ms" in refused.headers


async def test_health_needs_no_key_when_the_engine_is_dead() -> None:
    async with serving() as server:
        await server.chat(script(die_at=0))
        for path in PATHS:
            answer = await ask(server, request_line("GET", path))
            assert answer.status_code == 503
            assert b'"status":"failed"' in answer.content
