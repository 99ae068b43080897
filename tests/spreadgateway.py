"""A gateway on vLLM in a process of its own, whose model is spread, and what must hold of it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from gatewayprocess import GatewayProcess, gateway_process
from harness import KEY, MODEL, UNLIMITED, chat_body, events, text_of

ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING", "HF_HUB_OFFLINE": "1"}


def on(model: Path, **more: Any) -> dict[str, Any]:
    """Settings, and the environment, of a gateway with *model*."""
    variables = ENVIRONMENT | more.pop("variables", {})
    return {
        "engine": "vllm",
        "model": model,
        "served_model_name": MODEL,
        "max_model_len": 2048,
        "max_num_seqs": 16,
        "config": UNLIMITED,
        "shutdown_grace": 5,
        "variables": variables,
    } | more


@asynccontextmanager
async def serving(folder: Path, **options: Any) -> AsyncGenerator[tuple[GatewayProcess, httpx2.AsyncClient]]:
    """A gateway that is ready, and its client."""
    async with (
        gateway_process(folder, **options) as running,
        httpx2.AsyncClient(base_url=running.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client,
    ):
        await becomes(client, "ready", within=120)
        yield running, client


async def becomes(client: httpx2.AsyncClient, state: str, *, within: float) -> dict[str, Any]:
    """What `/health` says once the engine is in this *state*."""
    async with asyncio.timeout(within):
        while (said := (await client.get("/health")).json())["status"] != state:
            await asyncio.sleep(0.1)
    return dict(said)


async def chat(client: httpx2.AsyncClient, content: str = "Say something.", **fields: Any) -> httpx2.Response:
    body = chat_body(content, **{"temperature": 0, "max_tokens": 40, "ignore_eos": True} | fields)
    return await client.post("/v1/chat/completions", json=body)


async def serves(client: httpx2.AsyncClient) -> None:
    """Plain and streamed answers are the same, a crowd is answered whole, and a hang-up leaves nothing."""
    plain, streamed = await chat(client), await chat(client, stream=True)
    assert plain.status_code == streamed.status_code == 200
    assert text_of(events(streamed.text)) == plain.json()["choices"][0]["message"]["content"]
    crowd = await asyncio.gather(*(chat(client, f"Number {number}.") for number in range(16)))
    assert {reply.json()["usage"]["completion_tokens"] for reply in crowd} == {40}
    leaving = [asyncio.create_task(chat(client, f"Count {n}.", max_tokens=1_900, stream=True)) for n in range(4)]
    await asyncio.sleep(0.5)
    assert (await client.get("/health")).json()["running"] == 4
    for one in leaving:
        one.cancel()
    async with asyncio.timeout(2):
        while (await client.get("/health")).json()["running"]:
            await asyncio.sleep(0.02)
