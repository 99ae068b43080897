"""Streams cut at any byte, behind a real nginx, on both engines: the text is exact, and charged once."""

import random
from typing import Any

import httpx2
import pytest
from harness import KEY, Server, chat_body, script, serving
from nginxserver import nginx
from streamreader import Read

from mulgil.admission.store import Account

CUTS = 300


async def charged(server: Server) -> int:
    caller = await server.mulgil.keys.find(KEY.encode())
    assert caller is not None
    return (await server.mulgil.store.balances(Account(caller.tenant, caller.key_id))).key.output_tokens


async def cut_and_resumed(client: httpx2.AsyncClient, url: str, chance: random.Random) -> tuple[Read, int]:
    """What a reader has whose line breaks again and again, and how often it did."""
    reader, cuts = Read(), 0
    while reader.status is None:
        body, left = b"", chance.randrange(1, 700)
        headers = {"last-event-id": str(reader.last_id)} if reader.last_id else {}
        async with client.stream("GET", url, headers=headers) as reply:
            assert reply.status_code == 200
            async for piece in reply.aiter_raw():
                body += piece[:left]
                left -= len(piece)
                if left <= 0:
                    cuts += 1
                    break
        # Half an event is as good as none.
        reader.feed(body.decode(errors="ignore"))
    return reader, cuts


async def assert_exact(server: Server, asked: Any) -> int:
    """Cut and resume so many times; the tokens that were made."""
    chance = random.Random(11)
    made, cuts, number = 0, 0, 0
    headers = {"authorization": f"Bearer {KEY}"}
    async with nginx(f"127.0.0.1:{server.port}") as front, httpx2.AsyncClient(headers=headers, timeout=30) as client:
        while cuts < CUTS:
            number += 1
            told = (await client.post(f"{front.url}/v1/streams", json=asked(number))).json()
            reader, cut = await cut_and_resumed(client, front.url + told["url"], chance)
            cuts += cut
            whole = Read()
            whole.feed((await client.get(front.url + told["url"])).text)
            assert (reader.text, reader.finish, reader.usage) == (whole.text, whole.finish, whole.usage)
            assert reader.status == "completed"
            made += whole.usage["completion_tokens"]
    return made


async def test_300_cuts_on_the_simulated_engine_lose_nothing_and_double_nothing() -> None:
    def asked(number: int) -> Any:
        prompt = script(text="물길은 막지 않고 🌊 이끈다. " * 8 + str(number), gap=0.001, split_characters=True)
        return chat_body(prompt, stream_options={"include_usage": True})

    async with serving() as server:
        made = await assert_exact(server, asked)
        assert await charged(server) == made, "however often it is read, it is paid for once"


@pytest.mark.model
async def test_300_cuts_on_the_real_model_lose_nothing_and_double_nothing(vllm_server: Server) -> None:
    def asked(number: int) -> Any:
        prompt = f"Write a long story about water, a dragon and the number {number}."
        return chat_body(prompt, max_tokens=120, seed=number, stream_options={"include_usage": True})

    assert await assert_exact(vllm_server, asked) > 0
    assert vllm_server.mulgil.leases.live == 0
