"""`/ws/chat`: many turns on one connection. The text of an answer comes cumulative, so a lost message costs nothing."""

import asyncio
import contextlib
from dataclasses import dataclass
from itertools import compress
from typing import Any
from urllib.parse import urlsplit

import orjson
from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect

from mulgil.api.body import BodyRules, parsed
from mulgil.api.chat import checked_chat
from mulgil.api.context import caller_of, observed_of
from mulgil.api.errors import envelope
from mulgil.api.generations import usage, wishes_of
from mulgil.api.websocket_door import refuse, spoken
from mulgil.auth.keys import Caller
from mulgil.engine.truncation import kept
from mulgil.errors import (
    InternalServerError,
    InvalidFieldError,
    MulgilError,
    PermissionDeniedError,
    RequestTooLargeError,
)
from mulgil.gateway import Gateway
from mulgil.generation import Generation
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.schemas.usage import PromptTokensDetails, Usage
from mulgil.telemetry.observation import Observation

_ROUTE = "/ws/chat"
_CLIENT_GONE = 499
_NORMAL, _RESTARTING, _UNSUPPORTED, _IDLE = 1000, 1012, 1003, 4408


@dataclass(frozen=True, slots=True)
class SocketRules:
    """What a connection may be.

    Attributes:
        origins: of pages that may connect, beside those of the server itself; `*` for any.
        idle: seconds without a turn after which it is closed.
    """

    origins: tuple[str, ...] = ()
    idle: float = 600.0


def routes(gateway: Gateway, rules: BodyRules, sockets: SocketRules) -> APIRouter:
    """The chat over WebSocket, served by *gateway*."""
    router = APIRouter()

    @router.websocket(_ROUTE)
    async def chat(websocket: WebSocket) -> None:
        if not _may_connect(websocket, sockets.origins):
            error = PermissionDeniedError("Pages of this origin may not connect.")
            await refuse(error, websocket.scope, websocket.receive, websocket.send)
            return
        await websocket.accept(spoken(websocket.scope))
        await _Conversation(websocket, gateway, rules).hold(sockets.idle)

    return router


def _may_connect(websocket: WebSocket, origins: tuple[str, ...]) -> bool:
    """Only browsers send an origin; nobody's page may use what its reader has."""
    origin = websocket.headers.get("origin")
    if origin is None or "*" in origins or origin in origins:
        return True
    return urlsplit(origin).netloc == websocket.headers.get("host")


class _Conversation:
    """One connection: at most one turn at a time, and what was said so far."""

    def __init__(self, websocket: WebSocket, gateway: Gateway, rules: BodyRules) -> None:
        self._socket = websocket
        self._gateway = gateway
        self._rules = rules
        self._caller: Caller = caller_of(websocket.scope)
        self._wishes = wishes_of(websocket.headers)
        self._observed = observed_of(websocket.scope)
        self._history: list[dict[str, Any]] = []
        self._size = 0
        self._turn: asyncio.Task[None] | None = None
        self._generation: Generation | None = None
        self._cancelled = False
        self._line = asyncio.Lock()

    async def hold(self, idle: float) -> None:
        """Talk until somebody leaves."""
        try:
            while True:
                await self._hear(await self._next(idle))
        except WebSocketDisconnect:
            pass
        except TimeoutError:
            await self._socket.close(_IDLE, "nothing was asked for a while")
        finally:
            await self._end_turn()

    async def _next(self, idle: float) -> Any:
        while True:
            try:
                async with asyncio.timeout(idle):
                    return await self._socket.receive()
            except TimeoutError:
                if self._turn is None or self._turn.done():
                    raise

    async def _hear(self, message: Any) -> None:
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", _NORMAL))
        if message.get("text") is None:
            await self._socket.close(_UNSUPPORTED, "only text messages with JSON are understood")
            raise WebSocketDisconnect(_UNSUPPORTED)
        turn: str | None = None
        try:
            raw = message["text"].encode("utf-8", "surrogatepass")
            said = await self._rules.aside.run(lambda: parsed(raw, self._rules), size=len(raw))
            turn = said["id"] if isinstance(said.get("id"), str) else None
            await self._obey(said, turn, len(raw))
        except MulgilError as error:
            await self._tell("error", turn, **envelope(error))

    async def _obey(self, said: dict[str, Any], turn: str | None, size: int) -> None:
        kind = said.get("type")
        if kind == "ping":
            await self._tell("pong", turn)
        elif kind == "cancel":
            if self._generation is not None:
                self._cancelled = True
                self._gateway.abandon(self._generation)
            elif self._turn is not None and not self._turn.done():
                self._cancelled = True
                self._turn.cancel()  # nothing runs yet: it waits for its turn in the queue
        elif kind != "chat":
            raise _invalid("type", "it must be 'chat', 'cancel' or 'ping'")
        elif self._turn is not None and not self._turn.done():
            raise _invalid("type", "the turn before is not over; wait for its end, or cancel it")
        else:
            asked = await self._asked(said, size)
            self._cancelled = False
            self._turn = asyncio.create_task(self._answer(asked, turn))

    async def _asked(self, said: dict[str, Any], size: int) -> ChatCompletionRequest:
        body = {name: value for name, value in said.items() if name not in ("type", "id", "content")}
        body.setdefault("model", self._gateway.catalogue.main)
        if "messages" not in body:
            body["messages"] = [*self._history, {"role": "user", "content": said.get("content")}]
            size += self._size
        if size > self._rules.max_bytes:
            raise RequestTooLargeError(f"The conversation is larger than {self._rules.max_bytes} bytes.")
        body |= {"stream": True}
        asked = await self._rules.aside.run(lambda: checked_chat(body, self._rules), size=size)
        if asked.choices > 1:
            raise _invalid("n", "a connection tells one answer at a time")
        self._history, self._size = body["messages"], size
        return asked

    async def _answer(self, asked: ChatCompletionRequest, turn: str | None) -> None:
        observed = self._observed.turn(_ROUTE)
        try:
            self._generation = generation = await self._gateway.start(
                asked, self._caller, wishes=self._wishes, observed=observed
            )
            observed.answers(200)
            if generation.dropped_messages:
                self._forget(asked, generation.dropped_messages)
            try:
                await self._follow(generation, turn)
            finally:
                self._gateway.abandon(generation)
        except WebSocketDisconnect:
            observed.hung_up = True
        except asyncio.CancelledError:
            if not (self._cancelled and self._generation is None):
                observed.hung_up = True
                raise
            await self._tell("done", turn, content="", finish_reason="cancelled", usage=_nothing_used())
        except MulgilError as error:
            await self._fail(error, turn, observed)
        except Exception:
            failure = InternalServerError("The server had an error while processing your request.")
            await self._fail(failure, turn, observed)
            raise
        finally:
            self._generation = None
            observed.status = observed.status or _CLIENT_GONE
            observed.answered()

    def _forget(self, asked: ChatCompletionRequest, dropped: int) -> None:
        """What does not fit any more is not sent again: the conversation would end at the bounds of a body."""
        self._history = list(compress(self._history, kept(asked.messages, dropped)))
        self._size = len(orjson.dumps(self._history))

    async def _follow(self, generation: Generation, turn: str | None) -> None:
        told = thought = ""
        try:
            async for news in generation.follow():
                for piece in news:
                    told, thought = told + piece.text, thought + piece.reasoning
                    if piece.reasoning:
                        await self._tell("reasoning", turn, content=thought)
                    if piece.text:
                        await self._tell("text", turn, content=told)
        except MulgilError:
            if not self._cancelled:
                raise
        snapshot = generation.snapshot
        choice = snapshot.choices[0]
        calls = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in choice.tool_calls
        ]
        answer = {"role": "assistant", "content": choice.text} | ({"tool_calls": calls} if calls else {})
        self._history = [*self._history, answer]
        self._size += len(orjson.dumps(answer))
        await self._tell(
            "done",
            turn,
            content=choice.text,
            finish_reason="cancelled" if self._cancelled else choice.finish_reason,
            usage=usage(generation, snapshot).model_dump(),
            **({"tool_calls": calls} if calls else {}),
            **_way(generation),
        )

    async def _fail(self, error: MulgilError, turn: str | None, observed: Observation) -> None:
        observed.status, observed.error = observed.status or error.status, error.code or error.type
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await self._tell("error", turn, **envelope(error))
            if self._gateway.draining:
                await self._socket.close(_RESTARTING, "the server is shutting down")

    async def _tell(self, kind: str, turn: str | None, **fields: Any) -> None:
        message = {"type": kind, **({"id": turn} if turn is not None else {}), **fields}
        async with self._line:
            await self._socket.send_text(orjson.dumps(message).decode())

    async def _end_turn(self) -> None:
        if self._generation is not None:
            self._gateway.abandon(self._generation)
        if self._turn is not None:
            self._cancelled = False  # there is nobody to be told
            self._turn.cancel()
            await asyncio.wait([self._turn])


def _way(generation: Generation) -> dict[str, Any]:
    """What became of a turn on its way; the headers of an answer over HTTP say the same."""
    observed = generation.observed
    told = {
        "truncated_messages": generation.dropped_messages,
        "variant": observed.variant if observed.fallback is None else None,
        "fallback": observed.fallback,
    }
    return {name: value for name, value in told.items() if value}


def _nothing_used() -> dict[str, Any]:
    nothing = Usage(
        prompt_tokens=0, completion_tokens=0, total_tokens=0, prompt_tokens_details=PromptTokensDetails(cached_tokens=0)
    )
    return nothing.model_dump()


def _invalid(param: str, reason: str) -> InvalidFieldError:
    return InvalidFieldError(f"Invalid '{param}': {reason}.", param=param, code="invalid_value")
