"""Two gateways, Valkey, PostgreSQL and nginx with the settings of docker-compose.yml, as processes on the loopback."""

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx2
import orjson
import pytest
import redis.asyncio
from harness import KEY, chat_body, events, script
from stack import PASSWORD, Stack, stack

TIERS = """
[tiers.default]
requests_per_minute = 12
input_tokens_per_minute = "unlimited"
output_tokens_per_minute = "unlimited"
concurrent_requests = "unlimited"
"""


@pytest.fixture
async def client() -> AsyncGenerator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {KEY}"}, timeout=30) as made:
        yield made


async def asked(client: httpx2.AsyncClient, running: Stack, sessions: range) -> Counter[int]:
    """What one request of each of so many sessions at the same time is answered with."""
    url = f"{running.url}/v1/chat/completions"
    answers = await asyncio.gather(
        *(client.post(url, json=chat_body(), headers={"x-session-id": str(number)}) for number in sessions)
    )
    return Counter(answer.status_code for answer in answers)


async def test_both_gateways_answer_under_one_budget_into_one_ledger_and_their_store_is_as_compose_has_it(
    client: httpx2.AsyncClient, tmp_path: Path
) -> None:
    tiers = tmp_path / "mulgil.toml"
    tiers.write_text(TIERS)
    async with stack(config=tiers) as running:
        assert await asked(client, running, range(40)) == {200: 12, 429: 28}
        for gateway in running.gateways:
            assert f"to {gateway.address}: " in running.front.logged
        async with asyncio.timeout(10):
            while (await client.get(f"{running.url}/v1/usage?by=")).json()["total"]["requests"] < 12:
                await asyncio.sleep(0.1)  # each of them writes once a second
        assert (await client.get(f"{running.url}/v1/usage?by=")).json()["total"]["requests"] == 12
        url = f"redis://:{PASSWORD}@127.0.0.1:{running.store.port}"
        async with redis.asyncio.from_url(url, decode_responses=True) as store:
            told = await store.config_get("appendonly", "maxmemory-policy")
            assert told == {"appendonly": "yes", "maxmemory-policy": "noeviction"}
        async with redis.asyncio.from_url(running.store.url) as stranger:
            with pytest.raises(redis.AuthenticationError):
                await stranger.ping()


async def test_a_key_that_is_made_beside_a_gateway_opens_all_of_them(tmp_path: Path) -> None:
    async with stack() as running:
        url = f"redis://:{PASSWORD}@127.0.0.1:{running.store.port}"
        make = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mulgil", "keys", "create", "--tenant", "me", "--json"),
            env=os.environ | {"MULGIL_REDIS_URL": url},
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
        )
        made, _ = await make.communicate()
        headers = {"authorization": f"Bearer {orjson.loads(made)['key']}"}
        async with httpx2.AsyncClient(headers=headers, timeout=30) as mine:
            assert await asked(mine, running, range(10)) == {200: 10}


async def test_a_gateway_that_is_killed_costs_its_own_streams_and_no_new_request(client: httpx2.AsyncClient) -> None:
    async with stack() as running:
        url = f"{running.url}/v1/chat/completions"
        body = chat_body(script(tokens=60, gap=0.03), stream=True)

        async def streamed(number: int) -> str:
            try:
                answer = await client.post(url, json=body, headers={"x-session-id": str(number)})
            except httpx2.TransportError:
                return "broken"
            return "whole" if events(answer.text)[-1] == "[DONE]" else "said"

        streams = [asyncio.create_task(streamed(number)) for number in range(20)]
        await asyncio.sleep(0.5)
        running.gateways[0].signal(signal.SIGKILL)
        assert await asked(client, running, range(100, 130)) == {200: 30}
        ended = Counter(await asyncio.gather(*streams))
        assert set(ended) == {"broken", "whole"}
