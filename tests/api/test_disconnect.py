"""A client that leaves stops the engine, whatever the engine was doing for it."""

import asyncio
import socket
import struct
from typing import Any

import orjson
import pytest
from harness import Server, chat_body, eventually, hanging_up, raw_request, script

# From closing the socket to an idle engine: the server notices within a few ms, then has 100 ms.
SOON = 0.25


def body(stream: bool, **directives: Any) -> bytes:
    return raw_request(orjson.dumps(chat_body(script(**directives), stream=stream)))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("directives", [{"tokens": 10_000, "gap": 0.01}, {"ttft": 60}, {"hang_at": 3}])
async def test_hanging_up_leaves_nothing_running(server: Server, stream: bool, directives: dict[str, Any]) -> None:
    async with hanging_up(server, body(stream, **directives)) as reader:
        await eventually(lambda: server.engine.load().unfinished == 1)
        if stream:
            await reader.readuntil(b"\n\n")
    await eventually(lambda: server.engine.load().unfinished == 0, within=SOON)
    await eventually(lambda: server.mulgil.gateway.running == 0, within=0.25)


async def test_a_reset_connection_is_a_hang_up_too(server: Server) -> None:
    reader, writer = await server.open_socket()
    writer.write(body(True, hang_at=3))
    await reader.readuntil(b"\n\n")
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    await eventually(lambda: server.engine.load().unfinished == 0, within=SOON)


async def test_two_hundred_hang_ups_at_random_moments_leave_nothing(server: Server) -> None:
    async def come_and_go(seed: int) -> None:
        async with hanging_up(server, body(bool(seed % 2), tokens=30, gap=0.001)):
            await asyncio.sleep((seed * 37 % 50) / 1000)

    await asyncio.gather(*(come_and_go(seed) for seed in range(200)))
    await eventually(lambda: server.engine.load().unfinished == 0, within=SOON)
    await eventually(lambda: server.mulgil.gateway.running == 0, within=0.25)
    assert (await server.chat()).status_code == 200


async def test_a_client_that_leaves_while_it_sends_its_body_is_no_error(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with hanging_up(server, raw_request(b'{"model":', content_length="1000")):
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.05)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_one_client_hanging_up_does_not_disturb_another(server: Server) -> None:
    staying = asyncio.create_task(server.chat(script(tokens=40, gap=0.005)))
    for _ in range(10):
        async with hanging_up(server, body(True, tokens=1000, gap=0.005)) as reader:
            await reader.readuntil(b"\n\n")
    assert (await staying).json()["usage"]["completion_tokens"] == 40
