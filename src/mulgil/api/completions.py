"""`POST /v1/completions`."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mulgil.answers.answering import Answers
from mulgil.api.body import BodyRules, read_checked, validated
from mulgil.api.generations import Telling, finite, public_id, reply, usage
from mulgil.api.openapi import documented
from mulgil.api.sse import Silence, event
from mulgil.engine.snapshot import ChoiceSnapshot, Snapshot, TokenLogprob
from mulgil.generation import Generation
from mulgil.schemas.completions import Completion, CompletionRequest, check_agreement, check_offered


def routes(answers: Answers, rules: BodyRules, silence: Silence) -> APIRouter:
    """The completions route, served by *answers*."""
    router = APIRouter()

    @router.post(
        "/v1/completions",
        summary="Continue a text",
        openapi_extra=documented(request=CompletionRequest, response=Completion, streams=True, answers=True),
    )
    async def create_completion(request: Request) -> Response:
        asked = await read_checked(request, rules, lambda body: _checked(body, rules))

        def completion(generation: Generation, snapshot: Snapshot) -> dict[str, Any]:
            return _completion(generation, snapshot, asked)

        telling = Telling(lambda generation: _frames(generation, asked), _heartbeat, completion)
        return await reply(request, answers, asked, telling, silence)

    return router


def _checked(body: dict[str, Any], rules: BodyRules) -> CompletionRequest:
    asked = validated(CompletionRequest, body, rules)
    check_offered(body)
    check_agreement(asked, rules.limits)
    return asked


def _completion(generation: Generation, snapshot: Snapshot, asked: CompletionRequest) -> dict[str, Any]:
    chosen = _best(snapshot.choices, made=asked.choices, wanted=asked.n or 1)
    choices = [
        _choice(index, choice.text, _logprobs(choice.logprobs, asked), choice.finish_reason)
        for index, choice in enumerate(chosen)
    ]
    return {**_head(generation), "choices": choices, "usage": usage(generation, snapshot).model_dump()}


async def _frames(generation: Generation, asked: CompletionRequest) -> AsyncGenerator[bytes]:
    """Text chunks as the text grows, a finish chunk for each choice, and the usage chunk if asked for."""
    head, options = _head(generation), asked.stream_options

    def chunk(choice: dict[str, Any]) -> bytes:
        now = {}
        if options is not None and options.continuous_usage_stats:
            now = {"usage": usage(generation, generation.snapshot).model_dump()}
        return event({**head, "choices": [choice], **now})

    async for news in generation.follow():
        for piece in news:
            yield chunk(_choice(piece.index, piece.text, _logprobs(piece.logprobs, asked)))
    for index, choice in enumerate(generation.snapshot.choices):
        yield chunk(_choice(index, "", None, choice.finish_reason))
    if options is not None and options.include_usage:
        yield event({**head, "choices": [], "usage": usage(generation, generation.snapshot).model_dump()})


def _heartbeat(generation: Generation) -> bytes:
    return event({**_head(generation), "choices": [_choice(0, "", None)]})


def _head(generation: Generation) -> dict[str, Any]:
    return {
        "id": public_id(generation, "cmpl"),
        "object": "text_completion",
        "created": generation.created,
        "model": generation.model,
        "system_fingerprint": generation.fingerprint,
    }


def _choice(index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None = None) -> dict[str, Any]:
    # Calls are a matter of chats; a text has simply ended.
    reason = "stop" if finish_reason == "tool_calls" else finish_reason
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _logprobs(tokens: tuple[TokenLogprob, ...], asked: CompletionRequest) -> dict[str, Any] | None:
    if asked.logprobs is None:
        return None
    # The token itself is always among the likeliest that are told, as OpenAI has it.
    tops = [
        None
        if one.logprob is None
        else {text: finite(logprob) for text, logprob in (*one.top, (one.text, one.logprob))}
        for one in tokens
    ]
    return {
        "tokens": [one.text for one in tokens],
        "token_logprobs": [None if one.logprob is None else finite(one.logprob) for one in tokens],
        "top_logprobs": tops,
        "text_offset": [one.start for one in tokens],
    }


def _best(choices: Sequence[ChoiceSnapshot], *, made: int, wanted: int) -> list[ChoiceSnapshot]:
    """Of the choices *made* for each prompt the *wanted* likeliest, by the mean logprob of their tokens."""
    if made == wanted:
        return list(choices)
    chosen: list[ChoiceSnapshot] = []
    for first in range(0, len(choices), made):
        ranked = sorted(choices[first : first + made], key=_mean_logprob, reverse=True)
        chosen += ranked[:wanted]
    return chosen


def _mean_logprob(choice: ChoiceSnapshot) -> float:
    known = [finite(one.logprob) for one in choice.logprobs if one.logprob is not None]
    return sum(known) / len(known) if known else 0.0
