"""Where faults happen: a gateway process, its store behind a proxy, and users who note what they got."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import orjson
import redis.asyncio
from gatewayprocess import GatewayProcess, gateway_process
from harness import KEY, UNLIMITED, chat_body, events, script
from storeservers import Proxy, StoreServer, proxied

from mulgil.admission.policy import Balance
from mulgil.admission.store import Account
from mulgil.auth.source import StaticKeys
from mulgil.stores.redis import RedisStore

CULPRIT = "sk-mg-the-key-of-whoever-makes-the-trouble"
ADMIN = "the-admin-token-of-the-suite"
USAGE = {"include_usage": True, "continuous_usage_stats": True}
LONG = {"tokens": 100, "gap": 0.02}
"""A stream that runs while the fault comes, and after it has gone."""


@dataclass(frozen=True)
class Ended:
    """How a request ended.

    Attributes:
        how: `whole`, the code of an error of ours, `cut` for a connection that broke, `late`, or what else it was.
        tokens: of the answer that came.
    """

    how: str
    tokens: int = 0


@dataclass
class Stage:
    """A gateway under observation.

    Attributes:
        gateway: the process.
        store: its budgets; the gateway reaches it by *way*.
        client: of a tenant who has done nothing.
        folder: for files.
        pieces: of streams that came so far.
        received: tokens that this tenant has got since the budgets were last empty.
    """

    gateway: GatewayProcess
    store: StoreServer
    way: Proxy
    client: httpx2.AsyncClient
    folder: Path
    pieces: int = 0
    received: Counter[str] = field(default_factory=Counter)

    async def chat(self, content: str, *, key: str = KEY, **fields: Any) -> Ended:
        """Ask, streamed, and note what came."""
        text = ""
        body = chat_body(content, stream=True, stream_options=USAGE, **fields)
        try:
            async with self.client.stream(
                "POST", "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"}
            ) as reply:
                async for piece in reply.aiter_text():
                    text += piece
                    self.pieces += 1
        except httpx2.TimeoutException:
            return Ended("late")
        except httpx2.TransportError:
            return self._ended("cut", text, key)
        if reply.status_code != 200:
            return Ended(str(orjson.loads(text)["error"]["code"]))
        seen = events(text)
        return self._ended("whole" if seen[-1] == "[DONE]" else str(seen[-1]["error"]["code"]), text, key)

    def _ended(self, how: str, text: str, key: str) -> Ended:
        chunks = [chunk for chunk in events(text.rpartition("\n\n")[0]) if chunk != "[DONE]"]
        tokens = max((int(chunk["usage"]["completion_tokens"]) for chunk in chunks if chunk.get("usage")), default=0)
        if key == KEY:
            self.received["tokens"] += tokens
            self.received["unsure"] += how != "whole"  # a token may have been on its way
        return Ended(how, tokens)

    async def asking(self, seconds: float) -> set[str]:
        """How new requests of several users end for so long."""
        until = asyncio.get_running_loop().time() + seconds

        async def user(number: int) -> set[str]:
            seen = set()
            while asyncio.get_running_loop().time() < until:
                seen.add((await self.chat(script(f"user {number}", tokens=3))).how)
                await asyncio.sleep(0.05)
            return seen

        return set().union(*await asyncio.gather(*map(user, range(3))))

    async def balance(self) -> Balance:
        """What the tenant has used, by the store itself."""
        caller = await StaticKeys([KEY]).find(KEY.encode())
        assert caller is not None
        store = RedisStore(self.store.url)
        try:
            return (await store.balances(Account(caller.tenant, caller.key_id))).key
        finally:
            await store.close()

    async def quiet(self) -> bool:
        """Nothing runs, and nothing is held back."""
        left = await self.balance()
        running = (await self.client.get("/health")).json()["running"]
        return (running, left.concurrency, left.held_tokens) == (0, 0, 0)

    async def answers_again(self, *, within: float) -> None:
        """A request is answered as if nothing had been; fails when none is *within* seconds."""
        async with asyncio.timeout(within):
            while (await self.chat(script(tokens=2), max_tokens=2)).how != "whole":
                await asyncio.sleep(0.1)

    async def settles(self, *, within: float, forgotten: bool = False) -> None:
        """Everything is given back, and charged to the token, *within* seconds; the budgets are empty afterwards.

        Args:
            within: seconds.
            forgotten: the store may have lost a part of it.
        """
        async with asyncio.timeout(within):
            while not await self.quiet():
                await asyncio.sleep(0.05)
        charged, received = (await self.balance()).output_tokens, self.received
        assert charged <= received["tokens"] + received["unsure"]
        assert forgotten or charged >= received["tokens"]
        async with redis.asyncio.from_url(self.store.url) as admin:
            await admin.flushdb()
        self.received.clear()


@asynccontextmanager
async def staged(folder: Path, store: StoreServer, *, loads: float = 10, **options: Any) -> AsyncGenerator[Stage]:
    """A gateway that is ready to serve, by default on the simulated engine.

    Args:
        folder: of its files.
        store: of its budgets.
        loads: seconds that it may take to be ready.
        options: its settings, or the process's.
    """
    async with proxied(store) as way:
        given: dict[str, Any] = {
            "api_keys": f"{KEY},{CULPRIT}",
            "config": UNLIMITED,
            "redis_url": way.url,
            "max_concurrent_requests": 2_000,
            "admin_token": ADMIN,
            "lease_ttl": 10,
            "lease_renew_interval": 1,
            "shutdown_grace": 2,
            "store_timeout": 1,
        }
        async with gateway_process(folder, **(given | options)) as running:
            headers = {"authorization": f"Bearer {KEY}"}
            async with httpx2.AsyncClient(base_url=running.url, headers=headers, timeout=20) as client:
                stage = Stage(running, store, way, client, folder)
                await stage.answers_again(within=loads)
                await stage.settles(within=5)
                yield stage
