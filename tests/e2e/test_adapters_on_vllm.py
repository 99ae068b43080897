"""LoRA adapters on the real model: each is a model of its own, beside the others and in the same step."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness import MODEL, Server, chat_body, events, text_of
from loras import make_adapter

pytestmark = pytest.mark.model


async def ask(server: Server, model: str, **fields: Any) -> str:
    body = chat_body("Tell me about water.", **{"model": model, "temperature": 0, "max_tokens": 24} | fields)
    answer = await server.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return text_of(events(answer.text)) if body.get("stream") else answer.json()["choices"][0]["message"]["content"]


async def test_an_adapter_answers_in_other_words_than_the_model_alone_plain_and_streamed_and_at_the_same_time(
    vllm_server: Server, demo_model: Path, tmp_path: Path
) -> None:
    alone = await ask(vllm_server, MODEL)
    adapters, engine = vllm_server.mulgil.adapters, vllm_server.mulgil.supervisor.engine
    (folder,) = adapters._rules.folders
    names = ["pirate", "parrot"]
    try:
        for seed, name in enumerate(names):
            await adapters.load(engine, name, make_adapter(folder / f"{tmp_path.name}-{name}", demo_model, seed=seed))
        plain = [await ask(vllm_server, name) for name in names]
        assert len({alone, *plain}) == 3
        both = await asyncio.gather(
            *(ask(vllm_server, name, stream=True) for name in (*names, MODEL) for _ in range(3))
        )
        assert both == [text for text in (*plain, alone) for _ in range(3)]
        listed = (await vllm_server.client.get("/v1/models")).json()["data"]
        assert {one["id"] for one in listed} >= {MODEL, *names}
    finally:
        for name in names:
            if adapters.find(name):
                await adapters.unload(engine, name)
    assert await ask(vllm_server, MODEL) == alone
