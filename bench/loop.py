"""How long the worst requests that the bounds allow hold the event loop.

    python -m bench.loop [simulated|vllm]

A gateway in a process of its own is sent one of them after the other, several times each. While one is served,
`/health` is asked every tenth of a second what its gauge has seen; the gauge looks every 2 ms here. Beside the worst
and the median lag: the longest that such a cheap request had to wait meanwhile. Both engines by default; vLLM runs the
demo model on CPU, and the first line of its table is its start.
"""

import asyncio
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import orjson
import uvloop
from pydantic import SecretStr

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from harness import KEY, MODEL, settings

from mulgil.app import build
from mulgil.demo_model import prepare_demo_embedder, prepare_demo_model
from mulgil.quickstart import cache_folder
from mulgil.server import GatewayServer

REPEATS = 5
POLL = 0.1
WINDOW = 3 * POLL
ADMIN = "the-token-of-an-operator"
EMBEDDER = "embedder"
LARGEST = 2 * 1024 * 1024
ROOM = LARGEST - 4_096
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
TOKENIZE, DETOKENIZE, KEYS = "/v1/tokenize", "/v1/detokenize", "/admin/keys"
WORDS = "the river reaches the sea and a good channel only shows the way, 물은 길을 따라 흐르고. "

Case = tuple[str, str, Callable[[], Any]]


def text(piece: str, room: int = ROOM) -> str:
    """*piece* again and again, *room* bytes of JSON in all."""
    return piece * (room // (len(orjson.dumps(piece)) - 2))


def many(entry: Any, room: int = ROOM) -> list[Any]:
    """*entry* again and again, *room* bytes of JSON in all."""
    return [entry] * (room // (len(orjson.dumps(entry)) + 1))


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    """A chat with these messages, or a short one."""
    said = list(messages) or [{"role": "user", "content": "hello"}]
    return {"model": MODEL, "messages": said, "max_tokens": 1, **fields}


def user(content: Any) -> dict[str, Any]:
    """A message."""
    return {"role": "user", "content": content}


def completion(prompt: Any, **fields: Any) -> dict[str, Any]:
    """A completion of one token."""
    return {"model": MODEL, "prompt": prompt, "max_tokens": 1, **fields}


def embedding(what: Any, **fields: Any) -> dict[str, Any]:
    """A request for embeddings."""
    return {"model": EMBEDDER, "input": what, **fields}


def wide(room: int) -> dict[str, Any]:
    """A JSON schema of many properties."""
    names = range(room // 36)
    return {"type": "object", "properties": {f"p{name}": {"type": "string"} for name in names}}


def tools(count: int, room: int) -> list[dict[str, Any]]:
    """So many tools, each with a schema of *room* bytes."""
    return [{"type": "function", "function": {"name": f"f{index}", "parameters": wide(room)}} for index in range(count)]


def nested(depth: int) -> list[Any]:
    """Arrays within arrays."""
    return [] if depth == 1 else [nested(depth - 1)]


def form(schema: dict[str, Any]) -> dict[str, Any]:
    """A `response_format` with a schema."""
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
PART = {"type": "text", "text": "a"}
ENUM = {"type": "string", "enum": [f"word{index}" for index in range(5_000)]}
CASES: tuple[Case, ...] = (
    ("chat: short", CHAT, chat),
    ("chat: 2 MB of one letter", CHAT, lambda: chat(user(text("a")))),
    ("chat: 2 MB of blanks", CHAT, lambda: chat(user(text(" ")))),
    ("chat: 2 MB of emoji", CHAT, lambda: chat(user(text("🌊")))),
    ("chat: 2 MB of words", CHAT, lambda: chat(user(text(WORDS)))),
    ("chat: 2 MB of control tokens", CHAT, lambda: chat(user(text("<|im_end|>")))),
    ("chat: 12 kB of one letter", CHAT, lambda: chat(user("a" * 12_000))),
    ("chat: 2,048 short messages", CHAT, lambda: chat(*[user("a")] * 2_048)),
    ("chat: 2,048 messages, 2 MB", CHAT, lambda: chat(*[user(text("a b", ROOM // 2_048 - 40))] * 2_048)),
    ("chat: 43,000 parts", CHAT, lambda: chat(user([PART] * 43_000))),
    ("chat: 18,000 calls", CHAT, lambda: chat({"role": "assistant", "tool_calls": [CALL] * 18_000})),
    ("chat: 500,000 wrong messages", CHAT, lambda: chat(*many(1))),
    ("chat: 500,000 wrong parts", CHAT, lambda: chat(user(many(1)))),
    ("chat: 20,000 wrong roles", CHAT, lambda: chat(*many({"role": 5, "content": 1}, 60_000))),
    ("chat: nested to the limit", CHAT, lambda: chat(unknown=[nested(60)] * 2_100)),
    ("chat: 700,000 arrays", CHAT, lambda: chat(unknown=many([]))),
    ("chat: a million numbers", CHAT, lambda: chat(unknown=many(1))),
    ("chat: 131,000 keys", CHAT, lambda: chat(unknown={str(index): 0 for index in range(131_000)})),
    ("chat: 180,000 fields", CHAT, lambda: chat(**{str(index): 0 for index in range(180_000)})),
    ("chat: a schema of 64 kB", CHAT, lambda: chat(response_format=form(wide(64_000)))),
    ("chat: a schema of 64 kB, one enum", CHAT, lambda: chat(response_format=form(ENUM))),
    ("chat: tools, 128 of 15 kB", CHAT, lambda: chat(tools=tools(128, 12_000))),
    ("chat: tools, 25 of 64 kB", CHAT, lambda: chat(tools=tools(25, 60_000), tool_choice="required")),
    ("chat: one tool of 64 kB, required", CHAT, lambda: chat(tools=tools(1, 60_000), tool_choice="required")),
    ("chat: 1,024 biases", CHAT, lambda: chat(logit_bias={str(index): 1 for index in range(256)})),
    ("chat: 4 stops of 1,024", CHAT, lambda: chat(stop=["a" * 1_024] * 4)),
    ("chat: 1,024 choices, 64 kB", CHAT, lambda: chat(structured_outputs={"choice": ["a" * 60] * 1_024})),
    ("chat: a regex of 64 kB", CHAT, lambda: chat(structured_outputs={"regex": "(a|b)" * 12_000})),
    ("chat: a grammar of 64 kB", CHAT, lambda: chat(structured_outputs={"grammar": 'root ::= "' + "a" * 60_000 + '"'})),
    (
        "chat: user and metadata",
        CHAT,
        lambda: chat(user=text("u", ROOM - 10_000), metadata={str(i): "m" * 512 for i in range(16)}),
    ),
    ("completion: 2 MB of one letter", COMPLETIONS, lambda: completion(text("a"))),
    ("completion: 2 MB of words", COMPLETIONS, lambda: completion(text(WORDS))),
    ("completion: a million ids", COMPLETIONS, lambda: completion(many(1))),
    ("completion: 128 prompts of 16 kB", COMPLETIONS, lambda: completion([text(WORDS, 16_000)] * 128)),
    ("completion: 128 prompts of 8,000 ids", COMPLETIONS, lambda: completion([[1] * 8_000] * 128)),
    ("completion: 128 prompts of 20 ids", COMPLETIONS, lambda: completion([[1] * 20] * 128)),
    ("completion: 128 prompts of 100 bytes", COMPLETIONS, lambda: completion([WORDS] * 128)),
    ("completion: echo with logprobs", COMPLETIONS, lambda: completion([1] * 2_000, echo=True, logprobs=5)),
    ("embeddings: 2 MB of one text", EMBEDDINGS, lambda: embedding(text(WORDS))),
    ("embeddings: 2,048 short texts", EMBEDDINGS, lambda: embedding(["a"] * 2_048)),
    ("embeddings: 2,048 texts, base64", EMBEDDINGS, lambda: embedding(["a"] * 2_048, encoding_format="base64")),
    ("embeddings: 2,048 texts of 1 kB", EMBEDDINGS, lambda: embedding([text("a" * 8 + " ", 1_000)] * 2_048)),
    ("embeddings: 2,048 lists of 500 ids", EMBEDDINGS, lambda: embedding([[5] * 500] * 2_048)),
    ("tokenize: 2 MB of one letter", TOKENIZE, lambda: {"prompt": text("a")}),
    ("tokenize: 2 MB of blanks", TOKENIZE, lambda: {"prompt": text(" ")}),
    ("tokenize: 2 MB of emoji", TOKENIZE, lambda: {"prompt": text("🌊")}),
    ("tokenize: 2 MB of words", TOKENIZE, lambda: {"prompt": text(WORDS)}),
    ("tokenize: 256 kB, with texts", TOKENIZE, lambda: {"prompt": text("a", 2**18), "return_token_strs": True}),
    ("tokenize: 2,048 messages", TOKENIZE, lambda: {"messages": [user(text("a b", ROOM // 2_048 - 40))] * 2_048}),
    ("tokenize: for embeddings", TOKENIZE, lambda: {"model": EMBEDDER, "prompt": text(WORDS)}),
    ("detokenize: a million ids", DETOKENIZE, lambda: {"tokens": many(1)}),
    ("detokenize: 262,144 ids", DETOKENIZE, lambda: {"tokens": [70] * 2**18}),
    ("admin: 2 MB of models", KEYS, lambda: {"tenant": "t", "models": many("m")}),
    ("admin: a tenant of 2 MB", KEYS, lambda: {"tenant": text("t")}),
)


@dataclass(frozen=True)
class Seen:
    """What one request did to the loop; milliseconds.

    Attributes:
        status: of its answer.
        took: until its answer.
        lag: the worst that the gauge saw.
        waited: the longest that a cheap request waited.
    """

    status: int
    took: float
    lag: float
    waited: float


async def serve(engine: str, folder: Path) -> None:
    """Be the gateway; its port is written into *folder*."""
    given: dict[str, Any] = {"embeddings_model": EMBEDDER, "embeddings_served_name": (EMBEDDER,)}
    if engine == "vllm":
        given |= {
            "engine": "vllm",
            "model": str(prepare_demo_model(cache_folder(), lambda line: None)),
            "served_model_name": (MODEL,),
            "max_num_seqs": 16,
            "max_model_len": 2_048,
            "tool_call_parser": "hermes",
            "embeddings_model": str(prepare_demo_embedder(cache_folder(), lambda line: None)),
        }
    (folder / "keys.toml").touch()
    given |= {"usage_url": None, "state_folder": folder}
    chosen = settings(admin_token=SecretStr(ADMIN), keys_file=folder / "keys.toml", engine_check_interval=1.0, **given)
    mulgil = build(chosen)
    mulgil.lag.interval, mulgil.lag.window = 0.002, WINDOW
    server = GatewayServer(chosen, mulgil)

    async def announce() -> None:
        while not server.started:  # noqa: ASYNC110 - uvicorn tells it by this flag alone
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        (folder / "port.new").write_text(str(port))
        (folder / "port.new").rename(folder / "port")

    announcing = asyncio.create_task(announce())
    gc.freeze()  # as `mulgil serve` does
    await server.serve()
    await announcing


def spawned(engine: str, folder: Path) -> subprocess.Popen[bytes]:
    """A process that is the gateway; what it logs is in *folder*."""
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [sys.executable, "-m", "bench.loop", "serve", engine, str(folder)]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


@asynccontextmanager
async def gateway(engine: str) -> AsyncGenerator[httpx2.AsyncClient]:
    """A client of a gateway in another process, which may still be loading."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process = spawned(engine, folder)
        try:
            while not (folder / "port").exists():
                assert process.poll() is None, "the gateway has ended"
                await asyncio.sleep(0.05)
            url = f"http://127.0.0.1:{(folder / 'port').read_text()}"
            async with httpx2.AsyncClient(base_url=url, timeout=120) as client:
                yield client
        finally:
            process.terminate()
            await asyncio.to_thread(process.wait)


async def watched(client: httpx2.AsyncClient, work: Coroutine[Any, Any, int]) -> Seen:
    """What *work* does to the loop, to its end."""
    begun, lag, waited = time.perf_counter(), 0.0, 0.0
    ended: list[float] = []
    task = asyncio.create_task(work)
    task.add_done_callback(lambda _: ended.append(time.perf_counter()))
    over = False
    while not over:
        over = bool(ended)  # one look after the end
        asked = time.perf_counter()
        report = (await client.get("/health")).json()
        waited = max(waited, (time.perf_counter() - asked) * 1e3)
        lag = max(lag, report["loop_lag_ms"]["worst"])
        await asyncio.wait({task}, timeout=0 if over else POLL)
    return Seen(task.result(), (ended[0] - begun) * 1e3, lag, waited)


async def ask(client: httpx2.AsyncClient, path: str, body: bytes) -> int:
    """The status of the answer to *body*."""
    key = ADMIN if path == KEYS else KEY
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    return (await client.post(path, content=body, headers=headers)).status_code


async def started(client: httpx2.AsyncClient) -> int:
    """The status when all engines are there."""
    while True:
        answer = await client.get("/health")
        if answer.status_code == 200 and answer.json()["embeddings"]["status"] == "ready":
            return answer.status_code
        await asyncio.sleep(POLL)


def tell(name: str, seen: list[Seen]) -> None:
    """Print a line of the table."""
    lags = [one.lag for one in seen]
    took, waited = statistics.median(one.took for one in seen), max(one.waited for one in seen)
    numbers = f"{took:7.0f}   {statistics.median(lags):6.0f}   {max(lags):6.0f}   {waited:6.0f}"
    print(f"{name:38}   {seen[-1].status}   {numbers}", flush=True)  # noqa: T201 - the result


async def measure(engine: str) -> None:
    """Print the table of one engine."""
    print(f"\n{engine:38}  status  took, ms  lag, ms     most   others")  # noqa: T201 - the result
    async with gateway(engine) as client:
        tell("start", [await watched(client, started(client))])
        for name, path, body in CASES:
            content = orjson.dumps(body())
            assert len(content) <= LARGEST, name
            seen = []
            for _ in range(REPEATS):
                await asyncio.sleep(WINDOW + POLL)
                seen.append(await watched(client, ask(client, path, content)))
            tell(name, seen)


def main(arguments: list[str]) -> None:
    """Print a table for each engine."""
    if arguments[:1] == ["serve"]:
        uvloop.run(serve(arguments[1], Path(arguments[2])))
        return
    for engine in arguments or ["simulated", "vllm"]:
        asyncio.run(measure(engine))


if __name__ == "__main__":
    main(sys.argv[1:])
