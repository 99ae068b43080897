"""A gateway and its clients in a network of their own, which is then taken away. Run by test_half_open.py.

Prints how many requests ran before and after.
"""

import asyncio
import contextlib
import fcntl
import socket
import struct
import sys

import orjson
from harness import chat_body, raw_request, script, serving, settings

WRITE_TIMEOUT = 2
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1  # of netdevice(7)


def loopback(*, up: bool) -> None:
    """Switch the network on or off; off, a peer is gone without a word, as one is whose cable was cut."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack_from("16xh", fcntl.ioctl(control, _GET_FLAGS, request))
        flags = flags | _UP if up else flags & ~_UP
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags))


async def main() -> None:
    """Three kinds of clients vanish: of a stream, of a silent stream, and of a plain answer."""
    loopback(up=True)
    bodies = [
        chat_body(script(tokens=10_000, gap=0.01), stream=True, max_tokens=8_000),
        chat_body(script(hang_at=1), stream=True),
        chat_body(script(hang_at=1)),
    ]
    async with serving(settings(write_timeout=WRITE_TIMEOUT, ping_interval=0.5)) as server:
        clients = [await server.open_socket() for _ in bodies]
        for (_, writer), body in zip(clients, bodies, strict=True):
            writer.write(raw_request(orjson.dumps(body)))
        while server.mulgil.gateway.running < len(bodies):
            await asyncio.sleep(0.01)
        before = server.mulgil.gateway.running
        loopback(up=False)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WRITE_TIMEOUT * 5):
                while server.mulgil.gateway.running:
                    await asyncio.sleep(0.05)
        after = server.mulgil.gateway.running
        loopback(up=True)
    sys.stdout.write(f"{before} {after}\n")


if __name__ == "__main__":
    asyncio.run(main())
