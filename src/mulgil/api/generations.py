"""What chat and completions have in common: from a checked request to a plain or a streamed reply."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from mulgil.answers.answering import Answers
from mulgil.api.context import caller_of, observed_of
from mulgil.api.disconnect import unless_gone
from mulgil.api.errors import JSONBody
from mulgil.api.sse import Events, EventStream, Silence
from mulgil.asked import Wishes
from mulgil.cache.control import ANY, cache_control
from mulgil.catalogue import FALLBACK_HEADER, VARIANT_HEADER
from mulgil.engine.base import TextRequest
from mulgil.engine.snapshot import Snapshot, TokenLogprob
from mulgil.generation import Generation
from mulgil.schemas.usage import CompletionTokensDetails, PromptTokensDetails, Usage

# JSON has no infinity; OpenAI writes this instead.
_IMPOSSIBLE = -9999.0


@dataclass(frozen=True, slots=True)
class Telling:
    """How a generation is told to its client.

    Attributes:
        frames: the events of a stream.
        heartbeat: an event that says nothing.
        body: the plain reply.
    """

    frames: Callable[[Generation], AsyncGenerator[bytes]]
    heartbeat: Callable[[Generation], bytes]
    body: Callable[[Generation, Snapshot], dict[str, Any]]


async def reply(request: Request, answers: Answers, asked: TextRequest, telling: Telling, silence: Silence) -> Response:
    """Generate, and answer with a stream or a plain reply, as *asked*.

    Raises:
        MulgilError: it was refused, or failed before anything was sent.
        ClientGone: nobody waits for the reply any more.
    """
    observed = observed_of(request.scope)
    starting = answers.start(asked, caller_of(request.scope), observed=observed, wishes=wishes_of(request.headers))
    generation = await unless_gone(request.receive, starting)

    def abandon() -> None:
        answers.abandon(generation)

    if asked.stream:
        events = Events(telling.frames(generation), abandon, partial(telling.heartbeat, generation))
        return EventStream(events, silence, headers=headers_of(generation))
    try:
        snapshot = await unless_gone(request.receive, generation.finished())
    finally:
        abandon()
    return JSONBody(telling.body(generation, snapshot), headers=headers_of(generation))


def wishes_of(headers: Headers) -> Wishes:
    """What the headers of a request ask for."""
    cache = headers.getlist("cache-control")
    return Wishes(
        cache=cache_control(",".join(cache)) if cache else ANY,
        variant=headers.get(VARIANT_HEADER),
        passed_on=FALLBACK_HEADER in headers,
    )


def headers_of(generation: Generation) -> dict[str, str]:
    """What the headers of an answer tell: its budgets, and what became of the request on its way."""
    observed, dropped = generation.observed, generation.dropped_messages
    told = {
        "x-mulgil-truncated-messages": str(dropped) if dropped else None,
        "x-mulgil-cache": observed.cache,
        VARIANT_HEADER: observed.variant if observed.fallback is None else None,
        FALLBACK_HEADER: observed.fallback,
    }
    return generation.lease.headers() | {name: value for name, value in told.items() if value}


def usage(generation: Generation, snapshot: Snapshot) -> Usage:
    """The exact counts after *snapshot*."""
    reasoning = snapshot.reasoning_tokens
    return Usage(
        prompt_tokens=generation.prompt_tokens,
        completion_tokens=snapshot.completion_tokens,
        total_tokens=generation.prompt_tokens + snapshot.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=snapshot.cached_tokens),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=reasoning) if reasoning else None,
    )


def finite(logprob: float) -> float:
    """*logprob* as a number that JSON has."""
    return max(logprob, _IMPOSSIBLE)


def told_logprobs(tokens: tuple[TokenLogprob, ...]) -> dict[str, Any]:
    """A chat choice's `logprobs`."""

    def told(token: str, logprob: float) -> dict[str, Any]:
        return {"token": token, "logprob": finite(logprob), "bytes": list(token.encode())}

    return {
        "content": [
            {**told(one.text, one.logprob or 0.0), "top_logprobs": [told(*likely) for likely in one.top]}
            for one in tokens
        ],
        "refusal": None,
    }


def public_id(generation: Generation, prefix: str) -> str:
    """The id that the client sees; the engine's own never leaves the process."""
    return f"{prefix}-{generation.id.partition('-')[2]}"
