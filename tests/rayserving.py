"""Two replicas of a gateway on Ray Serve, in a process of their own, and what must hold of them."""

import asyncio
import json
import os
import secrets
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
from harness import KEY, MODEL, chat_body, events, eventually, text_of
from keyrecords import record_of
from storeservers import StoreServer, free_port

from mulgil.admission.policy import Balance
from mulgil.admission.store import Account
from mulgil.auth.source import StaticKeys
from mulgil.stores.redis import RedisStore
from mulgil.stores.redis_keys import RedisKeys

HERE = Path(__file__).parent
REPLICA = "ServeReplica:mulgil:Mulgil"
LIMITED = f"sk-mg-{'L' * 43}"
LIMIT = 10
_TIERS = """
[tiers.default]
requests_per_minute = "unlimited"
input_tokens_per_minute = "unlimited"
output_tokens_per_minute = "unlimited"
concurrent_requests = "unlimited"

[tiers.limited]
requests_per_minute = 10
"""


class RayServe:
    """A running application.

    Args:
        process: of rayserver.py.
        store: that the replicas share.
        client: reaches either of them.
        log: what Ray and the replicas say.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, store: StoreServer, client: httpx2.AsyncClient, log: Path
    ) -> None:
        self._process = process
        self._store = store
        self.client = client
        self.log = log

    async def said(self) -> Any:
        """What it says next."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            try:
                return json.loads(line)
            except ValueError:
                continue  # Ray's own words
        raise AssertionError(f"it has ended: {self.log.read_text()[-2000:]}")

    async def ask(self, question: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{question}\n".encode())
        return await self.said()

    def replicas(self) -> list[psutil.Process]:
        """Their processes."""
        return [one for one in psutil.Process(self._process.pid).children(recursive=True) if _titled(one, REPLICA)]

    def below(self, replica: psutil.Process, name: str) -> list[psutil.Process]:
        """The processes of its engine that are called so."""
        return [one for one in replica.children(recursive=True) if _titled(one, name)]

    def spoken(self, words: str) -> set[str]:
        """Which replicas have said these *words* in their log; it comes a little later."""
        lines = [line for line in self.log.read_text().splitlines() if words in line and "ServeReplica" in line]
        return {line.split("pid=")[1].split(")")[0] for line in lines}

    async def whole(self, *, within: float, replicas: int = 2) -> None:
        """Wait until so many replicas run, and no more."""
        async with asyncio.timeout(within):
            while (await self.ask("states")) != {"RUNNING": replicas} or len(self.replicas()) != replicas:
                await asyncio.sleep(0.2)

    async def all_serve(self) -> None:
        """Wait until each replica has answered something: Ray's proxy learns of them a little later."""
        async with asyncio.timeout(30):
            while not {str(one.pid) for one in self.replicas()} <= self.spoken("POST"):
                await asyncio.gather(*(self.chat(max_tokens=2) for _ in range(10)))

    async def chat(self, content: str = "hello", *, key: str = KEY, **fields: Any) -> httpx2.Response:
        return await self.client.post(
            "/v1/chat/completions", json=chat_body(content, **fields), headers={"authorization": f"Bearer {key}"}
        )

    async def balance(self, key: str = KEY) -> Balance:
        """What the key has used at both, by the store."""
        caller = await StaticKeys([key]).find(key.encode())
        assert caller is not None
        store = RedisStore(self._store.url)
        try:
            return (await store.balances(Account(caller.tenant, caller.key_id))).key
        finally:
            await store.close()

    async def quiet(self, *, within: float) -> None:
        """Wait until no replica runs anything, and nothing is held back."""
        async with asyncio.timeout(within):
            while (left := await self.balance()).concurrency or left.held_tokens:
                await asyncio.sleep(0.05)

    async def streams(self, number: int, content: str, **fields: Any) -> "list[Stream]":
        """So many streams at both, each of which has begun."""
        streams = [Stream(self.client, chat_body(f"{n} {content}", stream=True, **fields)) for n in range(number)]
        async with asyncio.timeout(30):
            while not all("content" in stream.text for stream in streams):
                await asyncio.sleep(0.02)
        return streams


class Stream:
    """A streamed answer as it comes.

    Attributes:
        text: what came so far.
        broke: the connection did.
    """

    def __init__(self, client: httpx2.AsyncClient, body: dict[str, Any]) -> None:
        self.text = ""
        self.broke = False
        self.task = asyncio.create_task(self._read(client, body))

    async def _read(self, client: httpx2.AsyncClient, body: dict[str, Any]) -> None:
        try:
            async with client.stream(
                "POST", "/v1/chat/completions", json=body, headers={"authorization": f"Bearer {KEY}"}
            ) as reply:
                async for piece in reply.aiter_text():
                    self.text += piece
        except httpx2.TransportError:
            self.broke = True

    async def how(self, *, within: float) -> str:
        """How it ended: `whole`, `cut`, or the code of its error."""
        await asyncio.wait_for(self.task, within)
        last = events(self.text.rpartition("\n\n")[0])[-1]
        if self.broke or (last != "[DONE]" and "error" not in last):
            return "cut"
        return "whole" if last == "[DONE]" else str(last["error"]["code"])


@asynccontextmanager
async def piped(
    folder: Path, script: Path, *arguments: str, variables: Mapping[str, str]
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A Python *script* that ends when its standard input does; nothing that it has started outlives the block.

    Args:
        folder: that it runs in, and where it leaves `ray.log`.
        script: to run.
        arguments: for it.
        variables: of its environment, beside ours.
    """
    with (folder / "ray.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(script), *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            cwd=folder,
            env=os.environ | dict(variables),
        )
    family: list[psutil.Process] = []
    try:
        yield process
        family = psutil.Process(process.pid).children(recursive=True)
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 60)
    finally:
        if process.returncode is None:
            family = psutil.Process(process.pid).children(recursive=True)
            process.kill()
            await process.wait()
        for one in family:
            if one.is_running():
                one.kill()


@asynccontextmanager
async def two_replicas(
    folder: Path, store: StoreServer, *, variables: Mapping[str, str] | None = None, **settings: Any
) -> AsyncGenerator[RayServe]:
    """Both ready. Everybody is unlimited, but for the key `LIMITED`."""
    async with deployed(folder, store, {"num_replicas": 2}, variables=variables or {}, **settings) as running:
        await running.whole(within=120)
        yield running


@asynccontextmanager
async def deployed(
    folder: Path, store: StoreServer, deployment: Mapping[str, Any], *, variables: Mapping[str, str], **settings: Any
) -> AsyncGenerator[RayServe]:
    """An application that Ray says is running; *deployment* as in its config."""
    (folder / "mulgil.toml").write_text(_TIERS)
    keys = RedisKeys(store.url)
    await keys.add(record_of(LIMITED, tenant="acme", tier="limited"))
    await keys.close()
    port = free_port()
    application = {
        "name": "mulgil",
        "import_path": "mulgil.ray_serve:application",
        "route_prefix": "/",
        "args": {"model": MODEL, "config": str(folder / "mulgil.toml"), "shutdown_grace": 2} | settings,
        "deployments": [{"name": "Mulgil", **deployment}],
    }
    config = {"http_options": {"host": "127.0.0.1", "port": port}, "applications": [application]}
    given = {"MULGIL_API_KEYS": KEY, "MULGIL_REDIS_URL": store.url, "RAY_DEDUP_LOGS": "0"}
    limits = httpx2.Limits(max_connections=200)
    async with (
        piped(
            folder,
            HERE / "rayserver.py",
            json.dumps(config),
            variables=given | ray_variables() | dict(variables),
        ) as process,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, limits=limits) as client,
    ):
        running = RayServe(process, store, client, folder / "ray.log")
        assert (said := await running.said()) == "running", said
        yield running


def ray_variables() -> dict[str, str]:
    """The environment of a Ray that reports to nobody, and that nobody else may talk to."""
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }


async def a_budget_is_shared_exactly(running: RayServe) -> None:
    """Of many requests that come to both at once as many are admitted as the limit says, and both have served."""
    await running.all_serve()
    asked = await asyncio.gather(*(running.chat(key=LIMITED, max_tokens=2) for _ in range(50)))
    statuses = Counter(reply.status_code for reply in asked)
    assert statuses == {200: LIMIT, 429: 50 - LIMIT}, statuses
    await eventually(lambda: len(running.spoken(" 429 ")) == 2)


async def streams_are_whole_and_hang_ups_leave_nothing(running: RayServe, long: Mapping[str, Any]) -> None:
    """*long* is a request that is answered at length."""
    plain = await running.chat("Say it.", max_tokens=20, temperature=0)
    streamed = await running.chat("Say it.", max_tokens=20, temperature=0, stream=True)
    assert answer_of(plain) == answer_of(streamed)
    assert streamed.headers.get_list("x-request-id") == [streamed.headers["x-request-id"]]
    streams = await running.streams(6, **long)
    assert (await running.balance()).concurrency == 6
    for stream in streams:
        stream.task.cancel()
    await running.quiet(within=3)
    assert not running.spoken("Traceback")


async def a_replica_that_is_killed_takes_only_its_own_streams_with_it(
    running: RayServe, long: Mapping[str, Any]
) -> None:
    """New requests go on meanwhile, and it comes back."""
    await running.all_serve()
    streams = await running.streams(8, **long)
    running.replicas()[0].kill()
    asked = []
    async with asyncio.timeout(20):
        for _ in range(40):
            asked.append((await running.chat("Say it.", max_tokens=2)).status_code)
            await asyncio.sleep(0.05)
    assert set(asked) == {200}
    await running.whole(within=120)
    for stream in streams:
        stream.task.cancel()
    broken = sum(stream.broke for stream in streams)
    assert 0 < broken < len(streams)
    await running.quiet(within=40)


def _titled(process: psutil.Process, name: str) -> bool:
    try:
        return name in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def answer_of(reply: httpx2.Response) -> str:
    """The text of a plain or streamed answer."""
    if reply.headers["content-type"].startswith("text/event-stream"):
        return text_of(events(reply.text))
    return str(reply.json()["choices"][0]["message"]["content"])
