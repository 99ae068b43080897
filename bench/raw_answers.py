"""A server without a framework, so fast that the load generator is the limit: it shows what that can do.

    python -m bench.raw_answers PORT

Each request gets the same bytes, event by event.
"""

import asyncio
import re
import sys
from typing import cast

import uvloop

_TOKENS = re.compile(rb'"max_tokens": (\d+)')
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunk(event: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(event), event)


_TOKEN = _chunk(
    b'data: {"id":"chatcmpl-0123456789abcdef01234567","object":"chat.completion.chunk","created":1800000000,'
    b'"model":"bench","system_fingerprint":"fp_0123456789","choices":[{"index":0,"delta":{"content":" river"},'
    b'"logprobs":null,"finish_reason":null}]}\n\n'
)


class Answers(asyncio.Protocol):
    """Answers whatever comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        if found := _TOKENS.search(data):
            self._transport.write(_HEAD)
            self._go_on(int(found[1]), int(found[1]))
        else:
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")

    def _go_on(self, left: int, tokens: int) -> None:
        if left:
            self._transport.write(_TOKEN)
            asyncio.get_running_loop().call_soon(self._go_on, left - 1, tokens)
            return
        usage = b'data: {"choices":[],"usage":{"completion_tokens":%d}}\n\n' % tokens
        self._transport.write(_chunk(usage) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def main() -> None:
    """Serve on the port of the command line, on the loopback."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answers, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
