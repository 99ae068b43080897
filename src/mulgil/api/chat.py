"""`POST /v1/chat/completions`."""

from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mulgil.answers.answering import Answers
from mulgil.api.body import BodyRules, read_checked, validated
from mulgil.api.chat_stream import frames, heartbeat
from mulgil.api.context import caller_of, observed_of
from mulgil.api.disconnect import unless_gone
from mulgil.api.generations import Telling, headers_of, public_id, reply, told_logprobs, usage, wishes_of
from mulgil.api.openapi import documented
from mulgil.api.sse import Events, EventStream, Silence
from mulgil.engine.snapshot import ChoiceSnapshot, Snapshot
from mulgil.generation import Generation
from mulgil.kept import KeptStream, KeptStreams
from mulgil.schemas.chat import (
    AssistantMessage,
    CalledFunction,
    CallToMake,
    ChatChoice,
    ChatCompletion,
    ChatCompletionRequest,
    check_agreement,
    check_offered,
)
from mulgil.schemas.usage import ChoiceLogprobs


def routes(answers: Answers, rules: BodyRules, silence: Silence, streams: KeptStreams) -> APIRouter:
    """The chat route, served by *answers*; resumable streams are kept among *streams*."""
    router = APIRouter()

    @router.post(
        "/v1/chat/completions",
        summary="Answer a conversation",
        openapi_extra=documented(request=ChatCompletionRequest, response=ChatCompletion, streams=True, answers=True),
    )
    async def create_chat_completion(request: Request) -> Response:
        asked = await read_chat(request, rules)
        if asked.stream_options is not None and asked.stream_options.resumable:
            wishes = wishes_of(request.headers)
            starting = streams.start(asked, caller_of(request.scope), observed_of(request.scope), wishes)
            kept = await unless_gone(request.receive, starting)
            with_ids = "text/event-stream" in request.headers.get("accept", "")
            return kept_stream(streams, kept, silence, with_ids=with_ids)

        def completion(generation: Generation, snapshot: Snapshot) -> dict[str, Any]:
            return _completion(generation, snapshot, asked).model_dump()

        telling = Telling(
            lambda generation: frames(generation, asked), lambda generation: heartbeat(generation, asked), completion
        )
        return await reply(request, answers, asked, telling, silence)

    return router


async def read_chat(request: Request, rules: BodyRules, *, streamed: bool = False) -> ChatCompletionRequest:
    """The checked chat request in the body.

    Args:
        request: what came.
        rules: what it may be.
        streamed: it asks for a stream, whatever its body says.

    Raises:
        MulgilError: it cannot be served.
        ClientGone: the client left while sending it.
    """
    return await read_checked(
        request, rules, lambda body: checked_chat(body | {"stream": True} if streamed else body, rules)
    )


def checked_chat(body: dict[str, Any], rules: BodyRules) -> ChatCompletionRequest:
    """*body* as a chat request.

    Raises:
        MulgilError: it cannot be served.
    """
    asked = validated(ChatCompletionRequest, body, rules)
    check_offered(body)
    check_agreement(asked, rules.limits)
    _ = asked.weight  # known from here on: of many parts it takes a while to add up
    return asked


def kept_stream(streams: KeptStreams, kept: KeptStream, silence: Silence, *, with_ids: bool) -> EventStream:
    """A kept stream to its first reader, as any chat stream; it goes on when the reader leaves."""
    generation, asked = kept.generation, kept.request
    told = frames(generation, asked, with_ids=with_ids)
    events = Events(told, streams.join(kept), partial(heartbeat, generation, asked), has_ids=with_ids)
    return EventStream(events, silence, headers=headers_of(generation) | {"x-mulgil-stream": kept.id})


def _completion(generation: Generation, snapshot: Snapshot, asked: ChatCompletionRequest) -> ChatCompletion:
    return ChatCompletion(
        id=public_id(generation, "chatcmpl"),
        created=generation.created,
        model=generation.model,
        system_fingerprint=generation.fingerprint,
        service_tier="default" if asked.service_tier else None,
        choices=[
            ChatChoice(
                index=index,
                message=_message(choice),
                logprobs=ChoiceLogprobs.model_validate(told_logprobs(choice.logprobs)) if asked.logprobs else None,
                finish_reason=choice.finish_reason,
            )
            for index, choice in enumerate(snapshot.choices)
        ],
        usage=usage(generation, snapshot),
    )


def _message(choice: ChoiceSnapshot) -> AssistantMessage:
    calls = [
        CallToMake(id=call.id, function=CalledFunction(name=call.name, arguments=call.arguments))
        for call in choice.tool_calls
    ]
    return AssistantMessage(
        content=choice.text if choice.text or not calls else None,
        reasoning_content=choice.reasoning or None,
        tool_calls=calls or None,
    )
