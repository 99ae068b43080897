"""`POST /v1/embeddings`."""

import asyncio
import base64
import sys
from array import array

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mulgil.api.body import BodyRules, read_checked, validated
from mulgil.api.context import caller_of, observed_of
from mulgil.api.disconnect import unless_gone
from mulgil.api.openapi import documented
from mulgil.embedding import Embedded, EmbeddingGateway
from mulgil.engine.embedding import Vector
from mulgil.schemas.embedding import EmbeddingList, EmbeddingRequest

# About a megabyte of text: written in a few milliseconds.
_NUMBERS_AT_ONCE = 50_000


def routes(gateway: EmbeddingGateway, rules: BodyRules) -> APIRouter:
    """The embeddings route, served by *gateway*."""
    router = APIRouter()

    @router.post(
        "/v1/embeddings",
        summary="Turn texts into vectors",
        openapi_extra=documented(request=EmbeddingRequest, response=EmbeddingList),
    )
    async def create_embeddings(request: Request) -> Response:
        asked = await read_checked(request, rules, lambda body: validated(EmbeddingRequest, body, rules))
        embedded = await unless_gone(
            request.receive, gateway.embed(asked, caller_of(request.scope), observed_of(request.scope))
        )
        body = await _written(asked, embedded)
        return Response(body, media_type="application/json", headers=embedded.lease.headers())

    return router


async def _written(asked: EmbeddingRequest, embedded: Embedded) -> bytes:
    """An `EmbeddingList`, written a piece at a time: two thousand vectors would stop the event loop for long."""
    pieces, numbers = [], 0
    for index, vector in enumerate(embedded.vectors):
        entry = {"object": "embedding", "index": index, "embedding": _encoded(vector, asked.encoding_format)}
        pieces.append(orjson.dumps(entry))
        numbers += len(vector)
        if numbers >= _NUMBERS_AT_ONCE:
            numbers = 0
            await asyncio.sleep(0)
    tokens = embedded.prompt_tokens
    rest = orjson.dumps({"model": asked.model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})
    return b'{"object":"list","data":[' + b",".join(pieces) + b"]," + rest[1:]


def _encoded(vector: Vector, encoding: str | None) -> list[float] | str:
    if encoding != "base64":
        return vector.tolist()
    return base64.b64encode(_little_endian(vector).tobytes()).decode()


def _little_endian(vector: Vector) -> Vector:
    if sys.byteorder == "little":
        return vector
    swapped = array("f", vector)
    swapped.byteswap()
    return swapped
