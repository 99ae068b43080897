"""What only vLLM can get wrong about embeddings."""

import asyncio
import re
import time
from pathlib import Path

import psutil
import pytest
from embeddings import EMBEDDER, balance, cosine, embed, embedder_of, raw_embedding, vectors
from harness import MODEL, Server, eventually, hanging_up, serving, settings

from mulgil.engine.base import Engine
from mulgil.engine.simulated import SimulatedEngine

pytestmark = pytest.mark.model


async def test_texts_that_mean_the_same_lie_closer_together(vllm_server: Server) -> None:
    texts = ["A man is eating food.", "A man is eating a piece of bread.", "The stock market fell sharply."]
    food, bread, market = vectors(await embed(vllm_server, texts))
    assert cosine(food, bread) > 0.7
    assert abs(cosine(food, market)) < 0.2


async def test_vectors_are_those_of_the_reference_implementation(vllm_server: Server, demo_embedder: Path) -> None:
    """Mean pooling over the last layer, made to length 1, as the model's own card has it."""
    import torch  # noqa: PLC0415 - an optional extra
    from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415 - an optional extra

    tokenizer, model = AutoTokenizer.from_pretrained(demo_embedder), AutoModel.from_pretrained(demo_embedder)
    for text in ("A man is eating food.", "물길", "🌊 water flows where the ground allows it " * 15):
        inputs = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            mean = model(**inputs).last_hidden_state[0].mean(dim=0)
        expected = (mean / mean.norm()).tolist()
        reply = await embed(vllm_server, text)
        assert cosine(vectors(reply)[0], expected) > 0.9999
        assert reply.json()["usage"]["prompt_tokens"] == inputs["input_ids"].shape[1]


async def test_base64_is_the_same_numbers(vllm_server: Server) -> None:
    plain, packed = [
        vectors(await embed(vllm_server, ["water", "stone"], encoding_format=one)) for one in ("float", "base64")
    ]
    for one, other in zip(plain, packed, strict=True):
        assert cosine(one, other) > 0.999999


async def test_the_budget_is_charged_exactly(vllm_server: Server) -> None:
    before = (await balance(vllm_server)).input_tokens
    texts = [f"text {number} of many " + "water " * (number % 7) for number in range(200)]
    reply = await embed(vllm_server, texts)
    assert [entry["index"] for entry in reply.json()["data"]] == list(range(200))
    assert (await balance(vllm_server)).input_tokens - before == reply.json()["usage"]["prompt_tokens"] > 1000


async def test_both_engines_work_at_once(vllm_server: Server) -> None:
    async def chat() -> str:
        reply = await vllm_server.chat("What is the capital of France?", temperature=0, max_tokens=20)
        return str(reply.json()["choices"][0]["message"]["content"])

    (alone,) = vectors(await embed(vllm_server, "water"))
    answers = asyncio.gather(*(chat() for _ in range(4)))
    replies = await asyncio.gather(*(embed(vllm_server, ["water", f"number {one}"]) for one in range(8)))
    for reply in replies:
        assert cosine(vectors(reply)[0], alone) > 0.9999
    assert await answers == ["The capital of France is Paris."] * 4


async def test_the_second_engine_leaves_the_metrics_of_the_first_alone(vllm_server: Server) -> None:
    from prometheus_client import REGISTRY  # noqa: PLC0415 - comes with vLLM

    await vllm_server.chat(max_tokens=1)
    labels = {"model_name": MODEL, "engine": "0"}
    assert REGISTRY.get_sample_value("vllm:prompt_tokens_total", labels)


async def test_a_hang_up_stops_the_engine_and_is_settled(vllm_server: Server) -> None:
    texts = ["a long text about water and stone " * 30] * 500
    async with hanging_up(vllm_server, raw_embedding(texts)):
        await eventually(lambda: embedder_of(vllm_server).load().unfinished == 64)
    await eventually(lambda: embedder_of(vllm_server).load().unfinished == 0, within=0.5)
    await eventually(lambda: vllm_server.mulgil.running == 0, within=0.25)
    assert (await balance(vllm_server)).concurrency == 0
    assert (await embed(vllm_server, "water")).status_code == 200


async def test_many_texts_do_not_stop_the_event_loop(vllm_server: Server) -> None:
    longest, watching = 0.0, True

    async def watch() -> None:
        nonlocal longest
        while watching:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            longest = max(longest, time.perf_counter() - before)

    watcher = asyncio.create_task(watch())
    reply = await embed(vllm_server, ["water and stone"] * 1000, encoding_format="float")
    watching = False
    await watcher
    assert len(vectors(reply)) == 1000
    # The engine's two processes and this client want the two cores too; work done in one go takes seconds.
    assert longest < 1.5


async def test_a_killed_engine_is_a_503_within_a_second_and_chat_goes_on(demo_embedder: Path) -> None:
    others = set(engine_cores())
    chosen = settings(engine="vllm", model=MODEL, embeddings_model=str(demo_embedder))
    async with serving(chosen, engine=simulated) as server:
        assert server.mulgil.embeddings is not None
        watch = server.mulgil.embeddings.supervisor
        during = await embed(server, "water", model=demo_embedder.name)
        assert (during.status_code, during.json()["error"]["code"]) == (503, "engine_unavailable")
        assert (await server.client.get("/health/ready")).json()["embeddings"]["status"] == "loading"
        await asyncio.wait_for(watch.until_ready(), 120)
        working = asyncio.create_task(embed(server, ["water " * 200] * 500, model=demo_embedder.name))
        await eventually(lambda: embedder_of(server).load().unfinished == 64)
        (core,) = set(engine_cores()) - others
        core.kill()
        refused = await asyncio.wait_for(working, 10)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_unavailable")
        await eventually(lambda: watch.health.state == "failed", within=1)
        assert (await embed(server, "water", model=demo_embedder.name)).status_code == 503
        assert (await server.chat()).status_code == 200
        assert (await server.client.get("/health/ready")).status_code == 200
        assert server.mulgil.leases.live == 0
    await eventually(lambda: set(engine_cores()) <= others)


def engine_cores() -> list[psutil.Process]:
    """vLLM's cores under this process."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "EngineCore" in " ".join(child.cmdline())]


async def simulated() -> Engine:
    return SimulatedEngine()


async def test_an_engine_argument_that_vllm_does_not_have_is_refused(tmp_path: Path) -> None:
    from mulgil.engine.vllm.pooling import VLLMEmbedder  # noqa: PLC0415 - imports vLLM
    from mulgil.settings import EmbeddingSettings  # noqa: PLC0415 - beside its user

    with pytest.raises(ValueError, match=re.escape("embeddings_engine_args: vLLM has no engine argument named typo")):
        VLLMEmbedder(EmbeddingSettings(embeddings_model=EMBEDDER, embeddings_engine_args={"typo": 1}), tmp_path)
