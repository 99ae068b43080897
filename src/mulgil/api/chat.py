"""`POST /v1/chat/completions`."""

from collections.abc import AsyncGenerator
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mulgil.api.body import BodyRules, read_object, validated
from mulgil.api.context import caller_of
from mulgil.api.disconnect import unless_gone
from mulgil.api.errors import JSONBody
from mulgil.api.openapi import documented
from mulgil.api.sse import EventStream, event
from mulgil.engine.base import Snapshot
from mulgil.gateway import Gateway
from mulgil.generation import Generation
from mulgil.schemas.chat import (
    AssistantMessage,
    ChatChoice,
    ChatCompletion,
    ChatCompletionRequest,
    PromptTokensDetails,
    Usage,
    check_agreement,
    check_offered,
)


def routes(gateway: Gateway, rules: BodyRules) -> APIRouter:
    """The chat route, served by *gateway*."""
    router = APIRouter()

    @router.post(
        "/v1/chat/completions",
        summary="Answer a conversation",
        openapi_extra=documented(request=ChatCompletionRequest, response=ChatCompletion, streams=True),
    )
    async def create_chat_completion(request: Request) -> Response:
        body = await read_object(request, rules)
        asked = validated(ChatCompletionRequest, body, rules)
        check_offered(body)
        check_agreement(asked)
        generation = await unless_gone(request.receive, gateway.start(asked, caller_of(request.scope)))

        def abandon() -> None:
            gateway.abandon(generation)

        if asked.stream:
            include_usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)
            return EventStream(
                _frames(generation, include_usage=include_usage), abandon, headers=generation.lease.headers()
            )
        try:
            snapshot = await unless_gone(request.receive, generation.finished())
        finally:
            abandon()
        return JSONBody(_completion(generation, snapshot).model_dump(), headers=generation.lease.headers())

    return router


def _completion(generation: Generation, snapshot: Snapshot) -> ChatCompletion:
    return ChatCompletion(
        id=_public_id(generation),
        created=generation.created,
        model=generation.model,
        choices=[
            ChatChoice(
                index=index,
                message=AssistantMessage(content=choice.text),
                finish_reason=choice.finish_reason,
            )
            for index, choice in enumerate(snapshot.choices)
        ],
        usage=_usage(generation, snapshot),
    )


async def _frames(generation: Generation, *, include_usage: bool) -> AsyncGenerator[bytes]:
    """Role chunks, content chunks as the text grows, finish chunks, and the usage chunk if asked for."""
    head = {
        "id": _public_id(generation),
        "object": "chat.completion.chunk",
        "created": generation.created,
        "model": generation.model,
    }
    choices = range(len(generation.snapshot.choices))
    # Only the text differs from one content chunk to the next, so the rest is encoded once.
    before = [_content_prefix(head, index) for index in choices]
    for index in choices:
        yield event({**head, "choices": [_choice(index, {"role": "assistant", "content": ""})]})
    async for news in generation.follow():
        for piece in news:
            yield before[piece.index] + orjson.dumps(piece.text) + _CONTENT_SUFFIX
    snapshot = generation.snapshot
    for index, choice in enumerate(snapshot.choices):
        yield event({**head, "choices": [_choice(index, {}, choice.finish_reason)]})
    if include_usage:
        yield event({**head, "choices": [], "usage": _usage(generation, snapshot).model_dump()})


_CONTENT_SUFFIX = b'},"logprobs":null,"finish_reason":null}]}\n\n'


def _content_prefix(head: dict[str, Any], index: int) -> bytes:
    whole = event({**head, "choices": [_choice(index, {"content": ""})]})
    return whole.removesuffix(b'""' + _CONTENT_SUFFIX)


def _choice(index: int, delta: dict[str, str], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


def _usage(generation: Generation, snapshot: Snapshot) -> Usage:
    return Usage(
        prompt_tokens=generation.prompt_tokens,
        completion_tokens=snapshot.completion_tokens,
        total_tokens=generation.prompt_tokens + snapshot.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=snapshot.cached_tokens),
    )


def _public_id(generation: Generation) -> str:
    return f"chatcmpl-{generation.id.partition('-')[2]}"
