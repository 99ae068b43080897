"""One error, rendered as a response or as a frame of a stream that has already begun."""

from typing import Any

import orjson
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mulgil.api.context import observed_of
from mulgil.errors import BadRequestError, MethodNotAllowedError, MulgilError, NotFoundError

_MESSAGE_LIMIT = 2_000


class JSONBody(Response):
    """A JSON response, written by orjson."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


def envelope(error: MulgilError) -> dict[str, Any]:
    """OpenAI's error object: four keys, always all four."""
    return {
        "error": {
            "message": error.message[:_MESSAGE_LIMIT],
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


def error_response(error: MulgilError) -> Response:
    """The response for *error*."""
    return JSONBody(envelope(error), status_code=error.status, headers=error.headers)


def error_frame(error: MulgilError) -> bytes:
    """The last event of a stream that fails; no `[DONE]` follows it."""
    return b"data: " + orjson.dumps(envelope(error)) + b"\n\n"


def from_http_exception(request: Request, error: HTTPException) -> MulgilError:
    """What the router has to say (no such route, wrong method), as an error of ours."""
    where = f"{request.method} {request.url.path[:256]}"
    if error.status_code == 404:
        return NotFoundError(f"Invalid URL ({where}).")
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        return MethodNotAllowedError(f"Not allowed to {where}. Use {allow}.", allow=allow)
    return BadRequestError(str(error.detail))


def install(app: FastAPI) -> None:
    """Make *app* answer every failure with the envelope."""

    def told(request: Request, error: MulgilError) -> Response:
        observed_of(request.scope).error = error.code or error.type
        return error_response(error)

    async def on_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, MulgilError)
        return told(request, error)

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return told(request, from_http_exception(request, error))

    app.add_exception_handler(MulgilError, on_error)
    app.add_exception_handler(HTTPException, on_http_exception)
