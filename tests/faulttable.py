"""The table of faults: what is done to a running gateway, and what may come of it."""

import asyncio
import contextlib
import resource
import signal
import socket
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import libfaketime
import orjson
from faultstage import ADMIN, CULPRIT, Stage
from harness import MODEL, chat_body, eventually, raw_request, script

FAKETIME = Path(libfaketime.__file__).parent / "vendor/libfaketime/src/libfaketime.so.1"
LIMITS = {"nofile": resource.RLIMIT_NOFILE, "fsize": resource.RLIMIT_FSIZE}
VERBOSE = "a model with a name of four thousand characters".ljust(4_000, "!")
"""It is in every chunk."""
WHOLE = frozenset({"whole"})
UNLIMITED = frozenset({"whole", "limiter_unavailable"})

Strike = Callable[[Stage], AbstractAsyncContextManager[None]]


@dataclass(frozen=True)
class Fault:
    """A row of the table.

    Attributes:
        name: of the row.
        strike: inside of its block the fault is there.
        streams: how streams that run when it comes may end.
        requests: how new requests may end while it is there.
        heals: seconds until all is as before, at most.
        forgets: the store has lost what was charged.
        settings: of the gateway.
    """

    name: str
    strike: Strike
    streams: frozenset[str] = WHOLE
    requests: frozenset[str] = WHOLE
    heals: float = 5.0
    forgets: bool = False
    started: Callable[[Path], Mapping[str, Any]] = lambda folder: {}

    def __str__(self) -> str:
        return self.name


@asynccontextmanager
async def engine_dies(stage: Stage) -> AsyncGenerator[None]:
    assert (await stage.chat(script(die_at=2), key=CULPRIT)).how == "engine_unavailable"
    yield


@asynccontextmanager
async def step_fails(stage: Stage) -> AsyncGenerator[None]:
    assert (await stage.chat(script(fail_at=2), key=CULPRIT)).how == "engine_error"
    assert (await stage.chat(script(fail_at=0), key=CULPRIT)).how == "engine_error"
    yield


@asynccontextmanager
async def store_killed(stage: Stage) -> AsyncGenerator[None]:
    stage.store.kill()
    yield
    await asyncio.to_thread(stage.store.start)


@asynccontextmanager
async def store_stopped(stage: Stage) -> AsyncGenerator[None]:
    stage.store.process.send_signal(signal.SIGSTOP)
    yield
    stage.store.process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def store_slow(stage: Stage) -> AsyncGenerator[None]:
    stage.way.delay = 0.06
    yield
    stage.way.delay = 0.0


@asynccontextmanager
async def store_too_slow(stage: Stage) -> AsyncGenerator[None]:
    stage.way.delay = 1.0
    yield
    stage.way.delay = 0.0


@asynccontextmanager
async def store_black_holed(stage: Stage) -> AsyncGenerator[None]:
    stage.way.hole = True
    yield
    stage.way.hole = False


@asynccontextmanager
async def limited(stage: Stage, what: str, value: int) -> AsyncGenerator[None]:
    """The process may use no more than *value* of *what*."""
    before = stage.gateway.seen.rlimit(LIMITS[what])
    stage.gateway.seen.rlimit(LIMITS[what], (value, before[1]))
    try:
        yield
    finally:
        stage.gateway.seen.rlimit(LIMITS[what], before)


@asynccontextmanager
async def disk_full(stage: Stage) -> AsyncGenerator[None]:
    """No file can grow: that of the keys, the audit log, and the log itself."""
    keys, audit = stage.folder / "keys.toml", stage.folder / "audit.jsonl"
    assert (await new_key(stage)).status_code == 200
    before = keys.read_bytes(), audit.read_bytes()
    async with limited(stage, "fsize", 0):
        refused = await new_key(stage)
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "server_error")
        yield
    assert (keys.read_bytes(), audit.read_bytes()) == before, "nothing is lost, and nothing is half written"
    assert (await new_key(stage)).status_code == 200
    assert audit.read_bytes().startswith(before[1])


async def new_key(stage: Stage) -> httpx2.Response:
    asked = {"tenant": "another"}
    headers = {"authorization": f"Bearer {ADMIN}"}
    return await stage.client.post("/admin/keys", json=asked, headers=headers)


@asynccontextmanager
async def gateway_killed(stage: Stage) -> AsyncGenerator[None]:
    stage.gateway.popen.kill()
    await stage.gateway.ended()
    yield
    stage.gateway.start()
    await eventually(lambda: stage.gateway.address is not None, within=20)
    stage.client.base_url = httpx2.URL(stage.gateway.url)


@asynccontextmanager
async def clock_jumps(stage: Stage) -> AsyncGenerator[None]:
    """A day on, and back again."""
    clock = stage.folder / "clock"
    clock.write_text("+1d")
    reply = await stage.client.post("/v1/chat/completions", json=chat_body(script(tokens=1)))
    assert reply.json()["created"] > time.time() + 80_000, "or this row shows nothing"
    stage.received["tokens"] += reply.json()["usage"]["completion_tokens"]
    yield
    clock.write_text("+0")


def with_fake_clock(folder: Path) -> dict[str, Any]:
    """A process whose clock can be set while it runs."""
    (folder / "clock").write_text("+0")
    variables = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(folder / "clock"),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",  # as on a machine whose clock is set
    }
    return {"variables": variables}


def with_files(folder: Path) -> dict[str, Any]:
    (folder / "keys.toml").touch()
    return {"keys_file": "keys.toml", "audit_log": "audit.jsonl"}


@asynccontextmanager
async def slow_readers(stage: Stage) -> AsyncGenerator[None]:
    """A thousand streams that nobody reads, of chunks so large that no buffer holds them."""
    body = chat_body(script(tokens=60), stream=True) | {"model": VERBOSE}
    request = raw_request(orjson.dumps(body), authorization=f"Bearer {CULPRIT}")
    loop, address = asyncio.get_running_loop(), stage.gateway.address
    assert address is not None
    host, port = address.split(":")
    open_ones: list[socket.socket] = []
    try:
        for _ in range(1_000):
            reader = socket.socket()
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            reader.setblocking(False)
            open_ones.append(reader)
            await loop.sock_connect(reader, (host, int(port)))
            await loop.sock_sendall(reader, request)
        yield
        # Not closed by us: the write time-out is what must get rid of them.
        ours = {reader.getsockname()[1] for reader in open_ones}
        peers = stage.gateway.seen.net_connections
        await eventually(lambda: not any(peer.raddr and peer.raddr[1] in ours for peer in peers()), within=40)
    finally:
        for reader in open_ones:
            reader.close()


@asynccontextmanager
async def descriptors_used_up(stage: Stage) -> AsyncGenerator[None]:
    """The process can open nothing any more, and 50 strangers knock at its door."""
    address = stage.gateway.address
    assert address is not None
    host, port = address.split(":")
    async with limited(stage, "nofile", stage.gateway.seen.num_fds() + 2), contextlib.AsyncExitStack() as open_ones:
        for _ in range(50):
            _, writer = await asyncio.open_connection(host, int(port))
            open_ones.callback(writer.close)
        before = stage.gateway.seen.cpu_times().user
        yield
        assert stage.gateway.seen.cpu_times().user - before < 1.5, "it does not spin while it cannot accept"


FAULTS = (
    Fault(
        "the engine dies",
        engine_dies,
        streams=frozenset({"engine_unavailable"}),
        requests=frozenset({"whole", "engine_unavailable"}),
    ),
    Fault("the engine fails a step of one request", step_fails),
    Fault("the store is killed and comes back empty", store_killed, requests=UNLIMITED, forgets=True),
    Fault("the store stops answering", store_stopped, requests=UNLIMITED),
    Fault("the store is slow", store_slow),
    Fault("the store is too slow", store_too_slow, requests=UNLIMITED),
    Fault("the way to the store is a black hole", store_black_holed, requests=UNLIMITED),
    Fault("the disk is full", disk_full, started=with_files),
    Fault(
        "the gateway is killed",
        gateway_killed,
        streams=frozenset({"cut"}),
        requests=frozenset({"cut"}),
        heals=15,
        forgets=True,
    ),
    Fault("the clock jumps by a day", clock_jumps, started=with_fake_clock),
    Fault(
        "a thousand readers do not read",
        slow_readers,
        heals=15,
        started=lambda folder: {"write_timeout": 3, "served_model_name": f"{MODEL},{VERBOSE}"},
    ),
    Fault("no file descriptor is left", descriptors_used_up, requests=frozenset({"whole", "cut"})),
)
