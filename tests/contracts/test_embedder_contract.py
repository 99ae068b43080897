"""What `Embedder` promises, kept by every adapter."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from embeddings import EMBEDDER, cosine, embedder_of, embedding_body, embedding_server
from harness import KEY, Server, eventually

from mulgil.engine.embedding import Embedder, Vector
from mulgil.engine.remote_embedding import RemoteEmbedder
from mulgil.engine.simulated_embedding import SimulatedEmbedder
from mulgil.errors import ContextLengthError, InvalidFieldError, MulgilError
from mulgil.schemas.embedding import EmbeddingRequest


@pytest.fixture
async def simulated_embedder() -> Embedder:
    simulated = SimulatedEmbedder()
    await simulated.start()
    return simulated


@pytest.fixture
async def remote_embedder() -> AsyncGenerator[Embedder]:
    async with embedding_server() as upstream:
        remote = RemoteEmbedder(f"{upstream.url}/v1", model=EMBEDDER, api_key=KEY)
        await remote.start()
        yield remote
        await remote.stop()


@pytest.fixture
def vllm_embedder(vllm_server: Server) -> Embedder:
    return embedder_of(vllm_server)


@pytest.fixture(params=["simulated", "remote", pytest.param("vllm", marks=pytest.mark.model)])
def embedder(request: pytest.FixtureRequest) -> Embedder:
    # Not an async fixture: those cannot ask for one another.
    chosen: Embedder = request.getfixturevalue(f"{request.param}_embedder")
    return chosen


def asked(given: Any, **fields: Any) -> EmbeddingRequest:
    return EmbeddingRequest.model_validate(embedding_body(given, **fields))


async def run(embedder: Embedder, given: Any, **fields: Any) -> list[Vector]:
    return await embedder.embed(await embedder.prepare(asked(given, **fields)))


async def test_each_input_has_its_vector_of_length_one(embedder: Embedder) -> None:
    vectors = await run(embedder, ["water", "물길", "🌊", " "])
    assert {len(vector) for vector in vectors} == {384}
    assert {vector.typecode for vector in vectors} == {"f"}
    for vector in vectors:
        assert cosine(vector, vector) == pytest.approx(1, abs=1e-4)


async def test_order_is_kept_over_many_inputs(embedder: Embedder) -> None:
    texts = [f"{number} is a number" for number in range(200)]
    together = await run(embedder, texts)
    assert len(together) == 200
    for index in (0, 1, 63, 64, 65, 128, 199):
        (alone,) = await run(embedder, texts[index])
        assert cosine(alone, together[index]) > 0.9999


async def test_tokens_are_counted_for_each_input(embedder: Embedder) -> None:
    request = asked(["water", "water water", "water"])
    one, two, again = (await embedder.prepare(request)).counts
    assert 0 < one < two
    assert one == again
    assert (await embedder.prepare(request)).prompt_tokens == one + two + again


async def test_a_texts_own_token_ids_have_its_vector(embedder: Embedder) -> None:
    (ids, bare) = [await embedder.tokenize("a quiet river", special=special) for special in (True, False)]
    assert len(ids) == (await embedder.prepare(asked("a quiet river"))).prompt_tokens > len(bare) > 0
    assert len(await embedder.tokenize("water " * 9_000)) > 9_000
    by_text, by_ids = await run(embedder, "a quiet river"), await run(embedder, ids)
    assert cosine(by_text[0], by_ids[0]) > 0.9999


async def test_token_ids_count_as_many_as_they_are_and_their_order_is_kept(embedder: Embedder) -> None:
    prepared = await embedder.prepare(asked([[7, 8, 9], [10]]))
    assert prepared.counts == (3, 1)
    vectors = await embedder.embed(prepared)
    (alone,) = await run(embedder, [10])
    assert cosine(alone, vectors[1]) > 0.9999


async def test_the_same_text_has_the_same_vector(embedder: Embedder) -> None:
    one, other = await run(embedder, ["a quiet river", "a quiet river"])
    assert cosine(one, other) > 0.9999


async def test_an_id_outside_the_vocabulary_is_refused_with_advice(embedder: Embedder) -> None:
    with pytest.raises(InvalidFieldError, match="send strings") as refusal:
        await run(embedder, [[5], [100_255]])
    assert refusal.value.param == "input[1]"


@pytest.mark.parametrize("given", ["water " * 9_000, [7] * 9_000], ids=["text", "ids"])
async def test_an_input_that_does_not_fit_is_refused_before_anything_runs(embedder: Embedder, given: Any) -> None:
    with pytest.raises(MulgilError) as refusal:
        await embedder.embed(await embedder.prepare(asked([[5], given] if isinstance(given, list) else ["x", given])))
    assert (refusal.value.status, refusal.value.code) == (400, "context_length_exceeded")
    assert refusal.value.param == "input[1]"
    assert ContextLengthError.code == refusal.value.code
    assert embedder.load().unfinished == 0


async def test_dimensions_are_honoured_or_refused(embedder: Embedder) -> None:
    try:
        (vector,) = await run(embedder, "water", dimensions=16)
    except MulgilError as refusal:
        assert (refusal.status, refusal.code, refusal.param) == (400, "unsupported_parameter", "dimensions")
    else:
        assert len(vector) == 16
        assert cosine(vector, vector) == pytest.approx(1, abs=1e-4)


async def test_a_cancelled_call_leaves_nothing_running(embedder: Embedder) -> None:
    prepared = await embedder.prepare(asked(["water " * 150, '/simulate {"delay": 20}'] * 50))
    running = asyncio.create_task(embedder.embed(prepared))
    await eventually(lambda: embedder.load().unfinished > 0)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    await eventually(lambda: embedder.load().unfinished == 0, within=0.5)


async def test_requests_at_the_same_time_keep_apart(embedder: Embedder) -> None:
    texts = ["water", "stone", "rain", "sand"] * 4
    alone = {text: (await run(embedder, text))[0] for text in set(texts)}
    for text, (vector,) in zip(texts, await asyncio.gather(*(run(embedder, text) for text in texts)), strict=True):
        assert cosine(vector, alone[text]) > 0.9999


async def test_a_round_trip_through_a_healthy_one_says_nothing(embedder: Embedder) -> None:
    await embedder.check()
    await embedder.check()
    assert not embedder.dead
