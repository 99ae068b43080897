"""The limit of the frameworks: Starlette under uvicorn, streaming bytes that were made beforehand.

    python -m bench.ready_made PORT

It reads `max_tokens` of the body, and sends as many chunks, shaped like the gateway's. With `"wake": true` in the body
it yields to the event loop before each chunk, as whatever waits for a token must.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

_HEAD = {
    "id": "chatcmpl-0123456789abcdef01234567",
    "object": "chat.completion.chunk",
    "created": 1_800_000_000,
    "model": "bench",
    "system_fingerprint": "fp_0123456789",
}


def _event(choices: list[dict[str, Any]], **more: object) -> bytes:
    return b"data: " + json.dumps({**_HEAD, "choices": choices, **more}, separators=(",", ":")).encode() + b"\n\n"


def _delta(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    return _event([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}])


_FIRST = _delta({"role": "assistant", "content": ""})
_CHUNK = _delta({"content": " river"})
_FINISH = _delta({}, "length")


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 40, "completion_tokens": tokens, "total_tokens": 40 + tokens}


async def _events(tokens: int, *, wake: bool) -> AsyncIterator[bytes]:
    yield _FIRST
    for _ in range(tokens):
        if wake:
            await asyncio.sleep(0)
        yield _CHUNK
    yield _FINISH
    yield _event([], usage=_usage(tokens))
    yield b"data: [DONE]\n\n"


async def chat(request: Request) -> Response:
    """As many chunks as tokens are asked for."""
    asked = json.loads(await request.body())
    tokens = asked["max_tokens"]
    if asked.get("stream"):
        return StreamingResponse(_events(tokens, wake=asked.get("wake", False)), media_type="text/event-stream")
    message = {"index": 0, "message": {"role": "assistant", "content": " river" * tokens}, "finish_reason": "length"}
    body = {**_HEAD, "choices": [message], "usage": _usage(tokens)}
    return Response(json.dumps(body), media_type="application/json")


async def health(_: Request) -> Response:
    """It is there."""
    return PlainTextResponse("ok")


def main() -> None:
    """Serve on the port of the command line, on the loopback."""
    routes = [Route("/v1/chat/completions", chat, methods=["POST"]), Route("/health", health)]
    application = Starlette(routes=routes)
    settings: dict[str, Any] = {"loop": "uvloop", "http": "httptools", "access_log": False, "log_level": "warning"}
    uvicorn.run(application, host="127.0.0.1", port=int(sys.argv[1]), **settings)


if __name__ == "__main__":
    main()
