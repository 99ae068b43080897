"""The response cache on the real model: what is kept is what it made."""

import asyncio

import pytest
from harness import MODEL, Server, chat_body

from mulgil.admission.gates import Gates
from mulgil.answers.answering import Answers, Caching
from mulgil.auth.keys import Caller
from mulgil.cache.key import AnswerKeys
from mulgil.cache.responses import CacheRules, ResponseCache
from mulgil.cache.sealing import Seal
from mulgil.generation import Generation
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.stores.memory_answers import MemoryAnswers
from mulgil.telemetry.observation import Observation

pytestmark = pytest.mark.model


async def test_an_answer_of_the_model_is_shared_kept_and_told_again(vllm_server: Server) -> None:
    gateway = vllm_server.mulgil.gateway
    seal = Seal(b"the secret of the tests")
    cache = ResponseCache(MemoryAnswers(most_entries=10, most_bytes=1_000_000), seal, CacheRules())
    # Beside the gateway's own, which keeps nothing, since the other tests want the model's answers.
    gates = Gates(gateway._tiers, vllm_server.mulgil.leases, gateway.queue, gateway._ledger)
    answers = Answers(gateway, gates, Caching(frozenset({MODEL}), AnswerKeys(seal), cache))
    asked = {"temperature": 0, "max_tokens": 24, "logprobs": True, "top_logprobs": 2}
    request = ChatCompletionRequest.model_validate(chat_body("What is a cache?", **asked))

    async def start() -> Generation:
        observed = Observation()
        observed.begin("read")
        return await answers.start(request, Caller("key-1", "a tenant of the cache"), observed=observed)

    generations = await asyncio.gather(*(start() for _ in range(5)))
    made, *shared = [await generation.finished() for generation in generations]
    await answers.drain()
    again = await start()
    kept = await again.finished()
    assert [one.observed.cache for one in (*generations, again)] == ["miss", *["hit"] * 5]
    assert made.completion_tokens == 24
    assert len(made.choices[0].logprobs) == 24
    for told in (*shared, kept):
        assert told.choices == made.choices
        assert told.cached_tokens == again.prompt_tokens
    assert "".join([piece.text async for news in again.follow() for piece in news]) == made.choices[0].text
