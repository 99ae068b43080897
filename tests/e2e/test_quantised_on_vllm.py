"""Quantised and fine-tuned models on real vLLM: they answer with the numbers that are in their files."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from harness import MODEL, VLLM, Server, serving, settings
from quantised import fine_tuned, quantised
from reference import Reference

from bench.tiny_model import prepare_tiny_model
from mulgil.quickstart import cache_folder

pytestmark = pytest.mark.model
HEAVY = pytest.mark.heavy(reason="an engine for each format")

TEXT = "The sea is deep and blue, and the ships that cross it carry bread, wine and letters to the towns of the north."
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="session")
def tiny_model(demo_model: Path) -> Path:
    """The folder of a model of two random layers; made once and kept between runs."""
    return prepare_tiny_model(cache_folder(), demo_model)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that ask no hub, and leave memory to the others of this session."""
    for name, value in (("HF_HUB_OFFLINE", "1"), ("VLLM_CPU_KVCACHE_SPACE", "1"), ("VLLM_LOGGING_LEVEL", "WARNING")):
        monkeypatch.setenv(name, value)


async def ids_of(server: Server, text: str) -> list[int]:
    reply = await server.client.post("/v1/tokenize", json={"model": MODEL, "prompt": text})
    return [int(token) for token in reply.json()["tokens"]]


async def likelihoods(server: Server, ids: Sequence[int]) -> list[float]:
    """What the server says of each token after the first one."""
    body = {"model": MODEL, "prompt": ids, "echo": True, "logprobs": 0, "max_tokens": 1, "temperature": 0}
    reply = await server.client.post("/v1/completions", json=body)
    told = reply.json()["choices"][0]["logprobs"]["token_logprobs"]
    return [float(value) for value in told[1 : len(ids)]]


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    """How far two lists of logarithms are apart, in the mean."""
    assert len(one) == len(other) > 10
    return sum(abs(left - right) for left, right in zip(one, other, strict=True)) / len(one)


@pytest.mark.parametrize("form", ["int8-w8a8", pytest.param("fp8", marks=HEAVY)])
@pytest.mark.timeout(180)
async def test_the_demo_model_in_8_bits_answers_sensibly_and_close_to_itself(
    demo_model: Path, tmp_path: Path, form: str
) -> None:
    folder = quantised(demo_model, tmp_path / form, form)
    async with serving(settings(**VLLM, model=str(folder), engine_metrics=False)) as server:
        answer = (await server.chat(QUESTION, temperature=0, max_tokens=32)).json()["choices"][0]["message"]["content"]
        ids = await ids_of(server, TEXT)
        told = await likelihoods(server, ids)
    assert "Paris" in answer
    exact = await asyncio.to_thread(lambda: Reference(demo_model).likelihoods(ids))
    # Rounding makes 0.37 (INT8) and 0.18 (FP8) of so small a model, in transformers too; a wrong scale 5 and more.
    assert 0 < apart(told, exact) < 0.6


@pytest.mark.parametrize("form", ["awq", pytest.param("gptq", marks=HEAVY), pytest.param("int4-w4a16", marks=HEAVY)])
@pytest.mark.timeout(180)
async def test_weights_of_4_bits_count_exactly_as_their_format_says(
    tiny_model: Path, tmp_path: Path, form: str
) -> None:
    folder = quantised(tiny_model, tmp_path / form, form)
    async with serving(settings(**VLLM, model=str(folder), engine_metrics=False)) as server:
        ids = await ids_of(server, TEXT)
        told = await likelihoods(server, ids)

    exact, before = await asyncio.to_thread(
        lambda: (Reference(tiny_model, form).likelihoods(ids), Reference(tiny_model).likelihoods(ids))
    )
    assert apart(told, exact) < 0.1
    assert apart(told, before) > 2 * apart(told, exact), "what 4 bits lose is seen"


@pytest.mark.timeout(180)
async def test_a_merged_fine_tune_answers_as_its_weights_say_and_not_as_its_base(
    demo_model: Path, tmp_path: Path
) -> None:
    folder = fine_tuned(demo_model, tmp_path / "tuned")
    async with serving(settings(**VLLM, model=str(folder), engine_metrics=False)) as server:
        reply = await server.client.post(
            "/v1/tokenize", json={"model": MODEL, "messages": [{"role": "user", "content": QUESTION}]}
        )
        asked = reply.json()["tokens"]
        answer = (await server.chat(QUESTION, temperature=0, max_tokens=16)).json()["choices"][0]["message"]["content"]
        told = await likelihoods(server, ids := await ids_of(server, TEXT))
        made = await ids_of(server, answer)
    tuned, base = await asyncio.to_thread(lambda: (Reference(folder), Reference(demo_model)))
    assert made[:10] == tuned.greedy(asked, 10)
    assert made != base.greedy(asked, 16)[:-1], "the base ends its turn earlier"
    assert apart(told, tuned.likelihoods(ids)) < 0.1 < apart(told, base.likelihoods(ids))
