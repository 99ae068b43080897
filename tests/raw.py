"""HTTP as bytes: requests that no client library would send, and what must be true of every refusal."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from harness import Server

ENOUGH = 4_096
"""No refusal is longer, in bytes."""


@dataclass(frozen=True)
class Answer:
    """A response, read to its end; the names of its headers are in lower case."""

    status_code: int
    headers: Mapping[str, str]
    content: bytes


async def ask(server: Server, request: bytes) -> Answer:
    """The answer to *request* on a connection of its own."""
    reader, writer = await server.open_socket()
    try:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        length = 0 if request.startswith(b"HEAD ") else int(headers["content-length"])
        return Answer(int(head[0].split()[1]), headers, await reader.readexactly(length))
    finally:
        writer.transport.abort()


def request_line(method: str, path: str, *headers: bytes, body: bytes = b"") -> bytes:
    """An HTTP/1.1 request with these header lines and no key."""
    lines = (f"{method} {path} HTTP/1.1".encode(), b"host: test", b"content-length: %d" % len(body), *headers)
    return b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


def error_of(answer: Any) -> dict[str, str | None]:
    """The error in *answer*, which must have all that every failure has."""
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"].startswith("req_")
    assert len(answer.content) < ENOUGH
    body = orjson.loads(answer.content)
    assert body.keys() == {"error"}
    error: dict[str, str | None] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert isinstance(error["type"], str)
    assert error["type"] == ("server_error" if answer.status_code >= 500 else "invalid_request_error")
    return error
