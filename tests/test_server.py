"""What uvicorn is told."""

import orjson
import pytest
from harness import Server


@pytest.mark.parametrize(
    "nonsense",
    [
        b"HELLO\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03",
    ],
)
async def test_what_is_no_http_gets_the_envelope_and_the_connection_is_closed(shared: Server, nonsense: bytes) -> None:
    reader, writer = await shared.open_socket()
    writer.write(nonsense)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head
    assert b"x-request-id: req_" in head
    assert orjson.loads(body)["error"].keys() == {"message", "type", "param", "code"}
