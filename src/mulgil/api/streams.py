"""`/v1/streams`: answers that outlive the line to their reader; `/v1/tickets` and `/stream` for EventSource."""

from collections.abc import AsyncGenerator
from functools import partial

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mulgil.api.body import BodyRules
from mulgil.api.chat import read_chat
from mulgil.api.chat_stream import frames, heartbeat, last_id
from mulgil.api.context import caller_of, context_of, observed_of
from mulgil.api.disconnect import unless_gone
from mulgil.api.errors import JSONBody, error_frame
from mulgil.api.generations import headers_of, wishes_of
from mulgil.api.openapi import documented
from mulgil.api.sse import Events, EventStream, Silence
from mulgil.auth.tickets import Tickets
from mulgil.errors import InvalidFieldError, MulgilError
from mulgil.kept import KeptStream, KeptStreams
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.schemas.messages import ChatMessage
from mulgil.schemas.sampling import StreamOptions
from mulgil.schemas.streams import Stream, StreamDeleted, Ticket

# A ticket in the URL must not travel on, and what it opens must not be kept by others.
_PRIVATE = {"cache-control": "no-store, no-transform", "referrer-policy": "no-referrer"}
_RETRY = b"retry: 2000\n"
_LONGEST_OFFSET = 12


def routes(streams: KeptStreams, tickets: Tickets, rules: BodyRules, silence: Silence) -> APIRouter:
    """The routes of kept streams."""
    router = APIRouter()

    @router.post(
        "/v1/streams",
        summary="Start an answer that can be read again",
        status_code=201,
        openapi_extra=documented(request=ChatCompletionRequest, response=Stream, status="201", answers=True),
    )
    async def create_stream(request: Request) -> Response:
        asked = await read_chat(request, rules, streamed=True)
        caller = caller_of(request.scope)
        kept = await _start(request, streams, asked)
        ticket, use_by = tickets.mint(caller, kept.id)
        generation = kept.generation
        told = Stream(
            id=kept.id,
            created=generation.created,
            model=generation.model,
            status=kept.status,
            url=f"/v1/streams/{kept.id}",
            ticket=ticket,
            expires_at=int(use_by),
        )
        return JSONBody(told.model_dump(), status_code=201, headers=headers_of(generation))

    @router.get(
        "/v1/streams/{stream_id}",
        summary="Read it, from the beginning or from where a reader stopped",
        openapi_extra=documented(streams=True),
    )
    async def read_stream(request: Request, stream_id: str) -> Response:
        return _read(request, streams.find(stream_id, caller_of(request.scope)), streams, silence)

    @router.delete("/v1/streams/{stream_id}", summary="Stop it", openapi_extra=documented(response=StreamDeleted))
    async def delete_stream(request: Request, stream_id: str) -> Response:
        streams.delete(streams.find(stream_id, caller_of(request.scope)))
        return JSONBody(StreamDeleted(id=stream_id).model_dump())

    @router.post("/v1/tickets", summary="A ticket for /stream or /ws/chat", openapi_extra=documented(response=Ticket))
    async def create_ticket(request: Request) -> Response:
        ticket, use_by = tickets.mint(caller_of(request.scope))
        return JSONBody(Ticket(ticket=ticket, expires_at=int(use_by)).model_dump(), headers=_PRIVATE)

    @router.get("/stream", summary="Ask, as an EventSource can", openapi_extra=documented(streams=True))
    async def ask(request: Request) -> Response:
        ticket = context_of(request.scope).ticket
        if ticket is None:
            kept = await _start(request, streams, _question(request, streams))
            return _read(request, kept, streams, silence)
        async with ticket.starting:
            if ticket.stream_id is None:
                kept = await _start(request, streams, _question(request, streams))
                ticket.stream_id = kept.id
        return _read(request, streams.find(ticket.stream_id, ticket.caller), streams, silence)

    return router


async def _start(request: Request, streams: KeptStreams, asked: ChatCompletionRequest) -> KeptStream:
    starting = streams.start(asked, caller_of(request.scope), observed_of(request.scope), wishes_of(request.headers))
    return await unless_gone(request.receive, starting)


def _read(request: Request, kept: KeptStream, streams: KeptStreams, silence: Silence) -> Response:
    offset, length = _offset(request), _length(kept)
    if kept.generation.closed and offset >= last_id(kept.generation, kept.request):
        # The reader has had the last event; an EventSource comes back for ever until it hears this.
        return Response(status_code=204, headers=_PRIVATE)
    if offset > length and not kept.generation.closed:
        raise _wrong_offset(f"it is beyond what has been sent, which is {length}")
    generation, asked = kept.generation, kept.request
    events = Events(
        _first_with_retry(frames(generation, asked, offset=offset, with_ids=True)),
        streams.join(kept),
        partial(heartbeat, generation, asked),
        has_ids=True,
        last=lambda error: _end(kept, error),
    )
    return EventStream(events, silence, headers=headers_of(generation) | _PRIVATE)


def _question(request: Request, streams: KeptStreams) -> ChatCompletionRequest:
    question = request.query_params.get("q", "")
    if not question:
        raise InvalidFieldError("Missing required parameter: 'q'.", param="q", code="missing_required_parameter")
    return ChatCompletionRequest(
        model=request.query_params.get("model") or streams.main_model,
        messages=[ChatMessage(role="user", content=question)],
        stream=True,
        stream_options=StreamOptions(include_usage=True),
    )


def _offset(request: Request) -> int:
    sent = request.headers.get("last-event-id") or request.query_params.get("offset") or "0"
    if not (sent.isascii() and sent.isdigit() and len(sent) <= _LONGEST_OFFSET):
        raise _wrong_offset("it must be the id of an event, which is a number")
    return int(sent)


def _wrong_offset(reason: str) -> InvalidFieldError:
    return InvalidFieldError(f"Invalid 'Last-Event-ID': {reason}.", param="Last-Event-ID", code="invalid_value")


def _length(kept: KeptStream) -> int:
    timeline = kept.generation.timeline
    return timeline.length if timeline else 0


async def _first_with_retry(events: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """How long an EventSource waits before it comes back; alone it would be an event that clients cannot parse."""
    before = _RETRY
    async for one in events:
        yield before + one
        before = b""


def _end(kept: KeptStream, error: MulgilError | None) -> bytes:
    # Who stopped it, or let it go unread, knows why it ended.
    told = error_frame(error) if error is not None and kept.status != "cancelled" else b""
    status = orjson.dumps({"status": kept.status})
    return told + b"id: %d\nevent: done\ndata: %s\n\n" % (last_id(kept.generation, kept.request), status)
