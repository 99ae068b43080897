"""`POST /v1/embeddings` as a client meets it, on the simulated embedder."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import orjson
import pytest
from embeddings import (
    EMBEDDER,
    balance,
    cosine,
    embed,
    embedder_of,
    embedding_server,
    limited,
    raw_embedding,
    vectors,
)
from harness import KEY, MODEL, Server, eventually, hanging_up, serving, settings
from openai import AsyncOpenAI
from raw import error_of

from mulgil.schemas.embedding import EmbeddingList

SLOW = '/simulate {"delay": 60}'


@pytest.fixture(scope="module")
async def embedding() -> AsyncGenerator[Server]:
    """One gateway for the tests that leave it as they found it."""
    async with embedding_server(max_embedding_inputs=300) as running:
        yield running


@pytest.fixture
async def own() -> AsyncGenerator[Server]:
    """A gateway of the test's own."""
    async with embedding_server() as running:
        yield running


async def test_the_reply_has_openais_form(embedding: Server) -> None:
    reply = await embed(embedding, ["a river", "the sea"])
    whole = EmbeddingList.model_validate_json(reply.content)
    assert reply.headers["content-type"] == "application/json"
    assert whole.model_dump() == reply.json()
    assert [entry.index for entry in whole.data] == [0, 1]
    assert whole.model == EMBEDDER
    assert whole.usage.prompt_tokens == whole.usage.total_tokens == 8


async def test_vectors_have_length_one_and_tell_texts_apart(embedding: Server) -> None:
    one, same, near, far = vectors(await embed(embedding, ["a deep river", "a deep river", "deep river", "cheese"]))
    assert len(one) == 384
    assert cosine(one, one) == pytest.approx(1, abs=1e-5)
    assert one == same
    assert cosine(one, near) > 0.5 > abs(cosine(one, far))


async def test_a_base64_vector_is_the_same_as_one_of_floats(embedding: Server) -> None:
    plain, packed = [
        await embed(embedding, ["물길", "a river"], encoding_format=encoding) for encoding in ("float", "base64")
    ]
    assert isinstance(packed.json()["data"][0]["embedding"], str)
    assert vectors(packed) == vectors(plain)
    assert vectors(await embed(embedding, ["물길", "a river"])) == vectors(plain)


async def test_the_official_client_reads_them(embedding: Server) -> None:
    async with AsyncOpenAI(base_url=f"{embedding.url}/v1", api_key=KEY) as client:
        packed = await client.embeddings.create(model=EMBEDDER, input=["a", "b"])
        plain = await client.embeddings.create(model=EMBEDDER, input=["a", "b"], encoding_format="float", user="u")
    assert [entry.embedding for entry in packed.data] == [entry.embedding for entry in plain.data]
    assert packed.usage.total_tokens == 6


async def test_order_is_kept_over_many_inputs(embedding: Server) -> None:
    texts = [f"text number {number}" for number in range(300)]
    together = vectors(await embed(embedding, texts))
    for index in (0, 63, 64, 150, 299):
        assert vectors(await embed(embedding, texts[index])) == [together[index]]


async def test_token_ids_are_taken_as_they_are(embedding: Server) -> None:
    reply = await embed(embedding, [[5, 6, 7], [8]])
    assert reply.json()["usage"]["prompt_tokens"] == 4
    assert vectors(await embed(embedding, [5, 6, 7])) == vectors(reply)[:1]


async def test_ids_of_another_vocabulary_are_refused_with_the_advice_to_send_strings(embedding: Server) -> None:
    refused = await embed(embedding, [[5], [9906, 100_000]])
    assert refused.status_code == 422
    error = error_of(refused)
    assert (error["param"], error["code"]) == ("input[1]", "invalid_value")
    assert "send strings" in str(error["message"])
    assert "check_embedding_ctx_length=False" in str(error["message"])


async def test_an_input_that_is_too_long_is_named(embedding: Server) -> None:
    refused = await embed(embedding, ["short", "long " * 9_000])
    assert refused.status_code == 400
    error = error_of(refused)
    assert (error["param"], error["code"]) == ("input[1]", "context_length_exceeded")
    assert str(error["message"]).startswith("Input tokens exceed the configured limit of 8192 tokens. Your input ")


async def test_dimensions_shorten_the_vector_and_too_many_are_refused(embedding: Server) -> None:
    (short,) = vectors(await embed(embedding, "a river", dimensions=8))
    assert len(short) == 8
    assert cosine(short, short) == pytest.approx(1, abs=1e-5)
    refused = await embed(embedding, "a river", dimensions=385)
    assert (refused.status_code, error_of(refused)["param"]) == (400, "dimensions")


@pytest.mark.parametrize(("given", "param"), [(["a", ""], "input[1]"), ([], "input"), (["a"] * 301, "input")])
async def test_a_wrong_field_is_a_422(embedding: Server, given: Any, param: str) -> None:
    refused = await embed(embedding, given)
    assert (refused.status_code, error_of(refused)["param"]) == (422, param)


async def test_both_models_are_listed_and_each_answers_its_own_route_only(embedding: Server) -> None:
    listed = [model["id"] for model in (await embedding.client.get("/v1/models")).json()["data"]]
    assert listed == [MODEL, EMBEDDER]
    assert (await embedding.client.get(f"/v1/models/{EMBEDDER}")).json()["id"] == EMBEDDER
    for refused in (await embed(embedding, "x", model=MODEL), await embedding.chat(model=EMBEDDER)):
        assert refused.status_code == 404
        assert error_of(refused)["code"] == "model_not_found"


async def test_a_model_may_have_several_names() -> None:
    async with embedding_server(embeddings_served_name=("one", "two")) as server:
        assert (await embed(server, "x", model="two")).json()["model"] == "two"
        assert (await embed(server, "x")).status_code == 404


async def test_a_key_is_needed(embedding: Server) -> None:
    refused = await embedding.client.post("/v1/embeddings", json={}, headers={"authorization": "Bearer no"})
    assert refused.status_code == 401


async def test_a_tier_that_may_not_use_the_model_is_told_so(tmp_path: Path) -> None:
    async with embedding_server(config=limited(tmp_path, models=[MODEL])) as server:
        refused = await embed(server, "x")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_allowed")
        assert (await server.chat(max_tokens=1)).status_code == 200


async def test_without_the_setting_there_is_no_such_route() -> None:
    async with serving(settings()) as server:
        refused = await embed(server, "x")
        assert (refused.status_code, error_of(refused)["code"]) == (404, "unknown_url")


async def test_the_budget_is_charged_exactly_and_the_reply_says_what_is_left(tmp_path: Path) -> None:
    limits = {"requests_per_minute": 10, "input_tokens_per_minute": 100, "output_tokens_per_minute": 50}
    async with embedding_server(config=limited(tmp_path, **limits)) as server:
        reply = await embed(server, ["one two three", "four"])
        used = await balance(server)
        assert reply.json()["usage"]["prompt_tokens"] == 8
        assert (used.requests, used.input_tokens, used.output_tokens, used.held_tokens) == (1, 8, 0, 0)
        assert used.concurrency == 0
        assert reply.headers["x-ratelimit-remaining-requests"] == "9"
        assert reply.headers["x-ratelimit-remaining-input-tokens"] == "92"
        assert reply.headers["x-ratelimit-remaining-output-tokens"] == "50"


async def test_what_is_refused_costs_nothing(tmp_path: Path) -> None:
    async with embedding_server(config=limited(tmp_path, input_tokens_per_minute=10)) as server:
        assert (await embed(server, "one two three four")).status_code == 200
        full = await embed(server, "one two three")
        assert (full.status_code, full.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        never = await embed(server, "one two three four five six seven eight nine")
        assert (never.status_code, never.json()["error"]["code"]) == (429, "request_exceeds_limit")
        assert (await balance(server)).requests == 1
        assert (await balance(server)).input_tokens == 6


async def test_requests_at_the_same_time_count_against_concurrency(tmp_path: Path) -> None:
    async with embedding_server(config=limited(tmp_path, concurrent_requests=1)) as server:
        async with hanging_up(server, raw_embedding(SLOW)):
            await eventually(lambda: embedder_of(server).load().unfinished == 1)
            assert (await embed(server, "x")).status_code == 429
        await eventually(lambda: server.mulgil.running == 0)
        assert (await embed(server, "x")).status_code == 200


async def test_a_hang_up_stops_the_work_and_is_settled(own: Server) -> None:
    async with hanging_up(own, raw_embedding(["quick", SLOW] * 100)):
        await eventually(lambda: embedder_of(own).load().unfinished == 1)
        assert own.mulgil.leases.live == own.mulgil.running == 1
    await eventually(lambda: embedder_of(own).load().unfinished == 0, within=0.25)
    await eventually(lambda: own.mulgil.leases.live == own.mulgil.running == 0, within=0.25)
    used = await balance(own)
    assert (used.requests, used.concurrency, used.input_tokens > 0) == (1, 0, True)


async def test_a_hundred_hang_ups_at_random_moments_leave_nothing(own: Server) -> None:
    async def come_and_go(seed: int) -> None:
        async with hanging_up(own, raw_embedding([f'{seed} /simulate {{"delay": 0.01}}'] * 70)):
            await asyncio.sleep((seed * 37 % 50) / 1000)

    await asyncio.gather(*(come_and_go(seed) for seed in range(100)))
    await eventually(lambda: own.mulgil.leases.live == own.mulgil.running == 0)
    assert embedder_of(own).load().unfinished == 0
    assert (await balance(own)).concurrency == 0


async def test_a_failure_costs_nothing_and_others_go_on(own: Server) -> None:
    failed = await embed(own, ["fine", '/simulate {"fail": true}'])
    assert (failed.status_code, error_of(failed)["code"]) == (500, "engine_error")
    used = await balance(own)
    assert (used.requests, used.input_tokens, used.concurrency) == (0, 0, 0)
    assert (await embed(own, "fine")).status_code == 200


async def test_a_dead_embedder_is_a_503_and_chat_goes_on(own: Server) -> None:
    waiting = asyncio.create_task(embed(own, SLOW))
    await eventually(lambda: embedder_of(own).load().unfinished == 1)
    killed = await embed(own, '/simulate {"die": true}')
    for refused in (killed, await waiting, await embed(own, "x")):
        assert (refused.status_code, error_of(refused)["code"]) == (503, "engine_unavailable")
        assert int(refused.headers["retry-after"]) >= 1
    assert (await own.chat()).status_code == 200
    ready = await own.client.get("/health/ready")
    assert ready.status_code == 200
    assert ready.json()["status"] == "ready"
    assert ready.json()["embeddings"]["status"] == "failed"
    assert (await balance(own)).input_tokens > 0  # the chat's alone
    assert own.mulgil.leases.live == 0


async def test_a_dead_chat_engine_leaves_embeddings_alone(own: Server) -> None:
    await own.chat('/simulate {"die_at": 0}')
    assert (await own.client.get("/health/ready")).status_code == 503
    assert (await embed(own, "x")).status_code == 200


async def test_what_runs_at_a_shutdown_is_told_so_and_costs_nothing(own: Server) -> None:
    waiting = asyncio.create_task(embed(own, SLOW))
    await eventually(lambda: embedder_of(own).load().unfinished == 1)
    await own.mulgil.drain()
    for refused in (await waiting, await embed(own, "x")):
        assert (refused.status_code, error_of(refused)["message"]) == (503, "The server is shutting down.")
    assert (await balance(own)).requests == 0


async def test_tokenize_counts_for_the_embedding_model_too(embedding: Server) -> None:
    text = "물길을 따라 a river"
    told = (await embedding.client.post("/v1/tokenize", json={"model": EMBEDDER, "prompt": text})).json()
    assert told["count"] == len(told["tokens"]) == (await embed(embedding, text)).json()["usage"]["prompt_tokens"]
    assert told["max_model_len"] == 8192
    assert vectors(await embed(embedding, told["tokens"])) == vectors(await embed(embedding, text))
    message = {"role": "user", "content": "x"}
    for fields, param in (
        ({"messages": [message]}, "messages"),
        ({"prompt": "x", "return_token_strs": True}, "return_token_strs"),
    ):
        refused = await embedding.client.post("/v1/tokenize", json={"model": EMBEDDER, **fields})
        assert (refused.status_code, error_of(refused)["param"]) == (400, param)


async def test_a_script_that_makes_no_sense_is_refused(embedding: Server) -> None:
    refused = await embed(embedding, ["x", '/simulate {"delay": "long"}'])
    assert (refused.status_code, error_of(refused)["param"]) == (422, "input[1]")


async def test_the_description_has_the_route(embedding: Server) -> None:
    schema = (await embedding.client.get("/openapi.json")).json()
    assert {"EmbeddingRequest", "EmbeddingList"} <= schema["components"]["schemas"].keys()
    assert "422" not in schema["paths"]["/v1/embeddings"]["post"]["responses"]
    orjson.dumps(schema)
