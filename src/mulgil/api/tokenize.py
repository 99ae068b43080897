"""`POST /v1/tokenize` and `POST /v1/detokenize`."""

from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mulgil.api.body import BodyRules, read_checked, validated
from mulgil.api.context import caller_of
from mulgil.api.disconnect import unless_gone
from mulgil.api.errors import JSONBody
from mulgil.api.openapi import documented
from mulgil.embedding import EmbeddingGateway
from mulgil.gateway import Gateway
from mulgil.schemas.messages import check_messages
from mulgil.schemas.tokenize import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest
from mulgil.schemas.tools import check_tools


def routes(gateway: Gateway, rules: BodyRules, embeddings: EmbeddingGateway | None = None) -> APIRouter:
    """The tokenizer's routes; of the embedding model, too, where there is one. They need a key and charge nothing."""
    router = APIRouter()

    @router.post(
        "/v1/tokenize",
        summary="Count the tokens of a text or a conversation",
        openapi_extra=documented(request=TokenizeRequest, response=Tokenized),
    )
    async def tokenize(request: Request) -> Response:
        asked = await read_checked(request, rules, lambda body: _checked(body, rules))
        asking = embeddings if embeddings and asked.model in embeddings.models else gateway
        told = await unless_gone(request.receive, asking.tokenize(asked, caller_of(request.scope)))
        body = await rules.aside.run(lambda: orjson.dumps(dict(told)), size=told.count)
        return Response(body, media_type="application/json")

    @router.post(
        "/v1/detokenize",
        summary="Turn tokens back into text",
        openapi_extra=documented(request=DetokenizeRequest, response=Detokenized),
    )
    async def detokenize(request: Request) -> Response:
        asked = await read_checked(request, rules, lambda body: validated(DetokenizeRequest, body, rules))
        told = await unless_gone(request.receive, gateway.detokenize(asked, caller_of(request.scope)))
        return JSONBody(told.model_dump())

    return router


def _checked(body: dict[str, Any], rules: BodyRules) -> TokenizeRequest:
    asked = validated(TokenizeRequest, body, rules)
    check_tools(asked)
    check_messages(asked.messages or [])
    return asked
