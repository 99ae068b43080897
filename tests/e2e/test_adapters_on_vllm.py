"""LoRA adapters on real vLLM as clients meet them: each is a model of its own, in the same step as the others."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness import Server, chat_body, events, text_of
from loras import alike, make_adapter

pytestmark = pytest.mark.model


async def likeliest(server: Server, model: str) -> dict[str, float]:
    """The likeliest first tokens of a stream."""
    asked: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": 1, "logprobs": True, "top_logprobs": 20}
    body = chat_body("Tell me about water.", **asked, stream=True)
    answer = await server.client.post("/v1/chat/completions", json=body)
    told = [chunk["choices"][0]["logprobs"] for chunk in events(answer.text)[:-1] if chunk["choices"]]
    first = next(one["content"][0] for one in told if one and one["content"])
    return {one["token"]: one["logprob"] for one in first["top_logprobs"]}


async def ask(server: Server, model: str, **fields: Any) -> str:
    asked: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": 24}
    answer = await server.client.post("/v1/chat/completions", json=chat_body("Tell me about water.", **asked | fields))
    assert answer.status_code == 200, answer.text
    if fields.get("stream"):
        return text_of(events(answer.text))
    content: str = answer.json()["choices"][0]["message"]["content"]
    return content


async def test_an_adapter_answers_in_its_own_words_plain_and_streamed_beside_the_model_alone(
    vllm_with_adapters: Server, eight_heads: Path, tmp_path: Path
) -> None:
    server, base = vllm_with_adapters, eight_heads.name
    alone, begun = await ask(server, base), await ask(server, "begun")
    engine, adapters = server.mulgil.supervisor.engine, server.mulgil.adapters
    (folder,) = adapters._rules.folders
    await adapters.load(engine, "later", make_adapter(folder / tmp_path.name, eight_heads, seed=3))
    try:
        later = await ask(server, "later")
        assert len({alone, begun, later}) == 3
        assert await ask(server, "later", stream=True) == later
        wanted = {name: await likeliest(server, name) for name in (base, "begun", "later")}
        names = [name for name in wanted for _ in range(3)]
        for name, told in zip(names, await asyncio.gather(*(likeliest(server, one) for one in names)), strict=True):
            assert [other for other, known in wanted.items() if alike(told, known)] == [name]
        listed = (await server.client.get("/v1/models")).json()["data"]
        assert [one["id"] for one in listed] == list(wanted)
    finally:
        await adapters.unload(engine, "later")
    gone = await server.client.post("/v1/chat/completions", json=chat_body(model="later"))
    assert gone.status_code == 404
    assert await ask(server, base) == alone
