"""What the tests of embeddings share: a gateway that has them, and vectors to compare."""

import asyncio
import base64
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import orjson
from harness import KEY, Server, raw_request, serving, settings

from mulgil.admission.policy import Balance
from mulgil.admission.store import Account
from mulgil.engine.embedding import Embedder

EMBEDDER = "minilm"


@asynccontextmanager
async def embedding_server(**changes: Any) -> AsyncGenerator[Server]:
    """A gateway with both engines simulated, ready to embed."""
    async with serving(settings(**{"embeddings_model": EMBEDDER} | changes)) as running:
        assert running.mulgil.embeddings is not None
        await asyncio.wait_for(running.mulgil.embeddings.supervisor.until_ready(), 120)
        yield running


def embedder_of(server: Server) -> Embedder:
    assert server.mulgil.embeddings is not None
    return server.mulgil.embeddings.supervisor.engine()


def embedding_body(given: Any, **fields: Any) -> dict[str, Any]:
    return {"model": EMBEDDER, "input": given, **fields}


async def embed(server: Server, given: Any, **fields: Any) -> httpx2.Response:
    """A request for embeddings, read to its end."""
    return await server.client.post("/v1/embeddings", json=embedding_body(given, **fields))


def raw_embedding(given: Any, **fields: Any) -> bytes:
    return raw_request(orjson.dumps(embedding_body(given, **fields)), path="/v1/embeddings")


def vectors(reply: httpx2.Response) -> list[list[float]]:
    """The vectors of a reply, whichever way they are written."""
    assert reply.status_code == 200, reply.text
    return [decoded(entry["embedding"]) for entry in reply.json()["data"]]


def decoded(embedding: list[float] | str) -> list[float]:
    if not isinstance(embedding, str):
        return embedding
    packed = base64.b64decode(embedding, validate=True)
    return list(struct.unpack(f"<{len(packed) // 4}f", packed))


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Of two vectors of length 1."""
    return sum(a * b for a, b in zip(one, other, strict=True))


def limited(tmp_path: Path, **limits: object) -> Path:
    """A file whose only tier has these limits; those not given are unlimited."""
    names = ("requests_per_minute", "input_tokens_per_minute", "output_tokens_per_minute", "concurrent_requests")
    table = {name: limits.pop(name, "unlimited") for name in names} | limits
    config = tmp_path / "mulgil.toml"
    lines = (f"{name} = {orjson.dumps(value).decode()}\n" for name, value in table.items())
    config.write_text("[tiers.default]\n" + "".join(lines))
    return config


async def balance(server: Server) -> Balance:
    """What the suite's key has used."""
    caller = await server.mulgil.keys.find(KEY.encode())
    assert caller is not None
    return (await server.mulgil.store.balances(Account(caller.tenant, caller.key_id))).key
