"""What only another server can get wrong."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from embeddings import EMBEDDER, balance, embed, embedder_of, embedding_server, limited, raw_embedding, vectors
from embeddingserver import Upstream, scripted_upstream
from harness import KEY, Server, eventually, hanging_up
from pydantic import SecretStr

UPSTREAM_KEY = "sk-of-the-other-server"
ENVELOPE = {"message": "no such thing", "type": "invalid_request_error", "param": "input", "code": "some_code"}


@pytest.fixture
async def upstream() -> AsyncGenerator[Upstream]:
    async with scripted_upstream() as running:
        yield running


@asynccontextmanager
async def in_front_of(url: str, **changes: Any) -> AsyncGenerator[Server]:
    """A gateway whose embeddings are made at *url*."""
    given = {"embeddings_model": None, "embeddings_url": f"{url}/v1", "embeddings_served_name": (EMBEDDER,)}
    async with embedding_server(**given | {"embeddings_api_key": SecretStr(UPSTREAM_KEY)} | changes) as server:
        yield server


async def test_keys_and_budgets_are_ours_and_vectors_the_other_servers(tmp_path: Path) -> None:
    async with embedding_server() as other:
        texts = ["a deep river", "물길", "the sea"]
        direct = vectors(await embed(other, texts, encoding_format="float"))
        config = limited(tmp_path, requests_per_minute=10, input_tokens_per_minute=1000)
        async with in_front_of(other.url, embeddings_api_key=SecretStr(KEY), config=config) as server:
            for encoding in ("float", "base64"):
                assert vectors(await embed(server, texts, encoding_format=encoding)) == direct
            reply = await embed(server, texts, dimensions=8)
            assert len(vectors(reply)[0]) == 8
            used = await balance(server)
            assert (used.requests, used.input_tokens) == (3, 3 * reply.json()["usage"]["prompt_tokens"])
            assert reply.headers["x-ratelimit-remaining-requests"] == "7"
            refused = await server.client.post("/v1/embeddings", json={}, headers={"authorization": "Bearer no"})
            assert refused.status_code == 401


async def test_what_the_other_server_is_sent(upstream: Upstream) -> None:
    async with in_front_of(upstream.url) as server:
        await embed(server, "물", user="ada", dimensions=2)
        (sent,) = [request for request in upstream.requests if request[1] == "/v1/embeddings"]
        assert orjson.loads(sent[3]) == {
            "model": EMBEDDER, "input": "물", "user": "ada", "dimensions": 2, "encoding_format": "base64",
        }  # fmt: skip
        assert all(headers["authorization"] == f"Bearer {UPSTREAM_KEY}" for _, _, headers, _ in upstream.requests)
        assert KEY not in str(upstream.requests)


async def test_tokens_are_counted_before_anything_is_embedded(upstream: Upstream, tmp_path: Path) -> None:
    async with in_front_of(upstream.url, config=limited(tmp_path, input_tokens_per_minute=5)) as server:
        assert (await embed(server, "x")).json()["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
        assert (await embed(server, "x")).status_code == 429
        assert [path for _, path, _, _ in upstream.requests].count("/v1/embeddings") == 1
        assert (await balance(server)).input_tokens == 3


async def test_an_input_beyond_the_context_that_tokenize_tells_is_named(upstream: Upstream) -> None:
    upstream.says("/tokenize", {"count": 101, "max_model_len": 100})
    async with in_front_of(upstream.url) as server:
        refused = await embed(server, ["x"])
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        assert refused.json()["error"]["param"] == "input[0]"


async def test_without_a_tokenize_endpoint_nothing_is_served_and_the_reason_is_said(upstream: Upstream) -> None:
    del upstream.answers["/tokenize"]
    async with in_front_of(upstream.url) as server:
        refused = await embed(server, "x")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
        await eventually(lambda: server.mulgil.embeddings.supervisor.health.state == "unresponsive")  # type: ignore[union-attr]  # it is there
        ready = await server.client.get("/health/ready")
        assert ready.status_code == 200
        assert "no tokenize endpoint" in ready.json()["embeddings"]["reason"]
        assert (await server.chat()).status_code == 200


@pytest.mark.parametrize(
    ("status", "passed", "code"),
    [(400, 400, "some_code"), (422, 422, "some_code"), (413, 413, "request_too_large")]
    + [(status, 503, "engine_unavailable") for status in (301, 307, 401, 403, 404, 500, 502)]
    + [(status, 503, "overloaded") for status in (429, 503)],
)
async def test_a_clients_fault_is_passed_on_and_any_other_is_a_503(
    upstream: Upstream, status: int, passed: int, code: str
) -> None:
    upstream.says("/v1/embeddings", {"error": ENVELOPE}, status, location="/elsewhere", retry_after="7")
    async with in_front_of(upstream.url) as server:
        refused = await embed(server, "x")
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (passed, code)
        if passed == 503:
            assert 1 <= int(refused.headers["retry-after"]) <= 30
            assert "no such thing" not in error["message"]
        elif status != 413:
            assert (error["message"], error["param"]) == ("no such thing", "input")
        if code == "overloaded":
            assert refused.headers["retry-after"] == "7"
        assert (await balance(server)).requests == 0
        assert "/elsewhere" not in str([path for _, path, _, _ in upstream.requests])


@pytest.mark.parametrize(
    "answer",
    [
        b"not json",
        b"[]",
        b"{}",
        {"data": [], "usage": {"prompt_tokens": 3}},
        {"data": [{"index": 1, "embedding": [1.0]}], "usage": {"prompt_tokens": 3}},
        {"data": [{"index": 0, "embedding": "###"}], "usage": {"prompt_tokens": 3}},
        {"data": [{"index": 0, "embedding": "AAA="}], "usage": {"prompt_tokens": 3}},
        {"data": [{"index": 0, "embedding": ["x"]}], "usage": {"prompt_tokens": 3}},
        {"data": [{"index": 0}], "usage": {"prompt_tokens": 3}},
        {"data": [{"index": 0, "embedding": [1.0]}]},
        {"data": None, "usage": None},
    ],
    ids=str,
)
async def test_an_answer_that_cannot_be_read_is_a_503_and_costs_nothing(upstream: Upstream, answer: object) -> None:
    upstream.says("/v1/embeddings", answer)
    async with in_front_of(upstream.url) as server:
        refused = await embed(server, "x")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
        assert (await balance(server)).requests == 0


async def test_vectors_are_put_in_order(upstream: Upstream) -> None:
    data = [{"index": 1, "embedding": [0.0, 1.0]}, {"index": 0, "embedding": [1.0, 0.0]}]
    upstream.says("/v1/embeddings", {"data": data, "usage": {"prompt_tokens": 6}})
    async with in_front_of(upstream.url) as server:
        assert vectors(await embed(server, ["x", "y"])) == [[1.0, 0.0], [0.0, 1.0]]


async def test_a_server_that_is_silent_is_given_up_at_its_deadline(upstream: Upstream) -> None:
    async with in_front_of(upstream.url, embeddings_timeout=0.2) as server:
        upstream.delay = 10
        refused = await asyncio.wait_for(embed(server, "x"), 3)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
        await eventually(lambda: upstream.under_way == 0)
        assert server.mulgil.leases.live == 0


async def test_a_hang_up_reaches_the_other_server(upstream: Upstream) -> None:
    async with in_front_of(upstream.url) as server:
        await embed(server, "x")
        upstream.delay = 30
        async with hanging_up(server, raw_embedding([1, 2, 3])):
            await eventually(lambda: upstream.under_way > 0 and server.mulgil.running == 1)
        await eventually(lambda: embedder_of(server).load().unfinished == 0, within=0.5)
        await eventually(lambda: server.mulgil.leases.live == server.mulgil.running == 0, within=0.5)


async def test_a_server_that_goes_away_and_comes_back_needs_no_restart(upstream: Upstream) -> None:
    async with in_front_of(upstream.url, engine_check_interval=0.01) as server:
        health = server.mulgil.embeddings.supervisor  # type: ignore[union-attr]  # it is there
        await embed(server, "x")
        upstream.says("/v1/models", {}, 500)
        await eventually(lambda: health.health.state == "unresponsive")
        assert (await embed(server, "x")).status_code == 503
        upstream.says("/v1/models", {"data": []})
        await eventually(lambda: health.health.state == "ready")
        assert (await embed(server, "x")).status_code == 200


async def test_a_server_that_cannot_be_reached_is_a_503() -> None:
    async with in_front_of("http://127.0.0.1:9") as server:
        refused = await embed(server, "x")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")


async def test_counts_that_contradict_each_other_are_logged_once(
    upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    data = [{"index": 0, "embedding": [1.0]}]
    upstream.says("/v1/embeddings", {"data": data, "usage": {"prompt_tokens": 5}})
    async with in_front_of(upstream.url) as server:
        for _ in range(3):
            assert (await embed(server, "x")).json()["usage"]["prompt_tokens"] == 3
    assert [record.levelno for record in caplog.records if "counted" in record.getMessage()] == [logging.WARNING]
