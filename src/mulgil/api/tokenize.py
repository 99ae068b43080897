"""`POST /v1/tokenize` and `POST /v1/detokenize`."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mulgil.api.body import BodyRules, read_object, validated
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
        asked = validated(TokenizeRequest, await read_object(request, rules), rules)
        check_tools(asked)
        check_messages(asked.messages or [])
        asking = embeddings if embeddings and asked.model in embeddings.models else gateway
        told = await unless_gone(request.receive, asking.tokenize(asked, caller_of(request.scope)))
        return JSONBody(told.model_dump())

    @router.post(
        "/v1/detokenize",
        summary="Turn tokens back into text",
        openapi_extra=documented(request=DetokenizeRequest, response=Detokenized),
    )
    async def detokenize(request: Request) -> Response:
        asked = validated(DetokenizeRequest, await read_object(request, rules), rules)
        told = await unless_gone(request.receive, gateway.detokenize(asked, caller_of(request.scope)))
        return JSONBody(told.model_dump())

    return router
