"""The chat over WebSocket, behind a real nginx."""

import json

from harness import KEY, Server, eventually, script
from nginxserver import nginx
from websockets.asyncio.client import connect

BEARER = {"authorization": f"Bearer {KEY}"}


async def test_turns_tickets_and_cancel_pass_through_nginx(shared: Server) -> None:
    async with nginx(f"127.0.0.1:{shared.port}") as front:
        url = f"ws://127.0.0.1:{front.port}/ws/chat"
        ticket = (await shared.client.post("/v1/tickets")).json()["ticket"]
        for where, headers in ((url, BEARER), (f"{url}?ticket={ticket}", {})):
            async with connect(where, additional_headers=headers, proxy=None) as socket:
                await socket.send(json.dumps({"type": "chat", "content": script(text="물길 flows", gap=0.02)}))
                heard = [json.loads(await socket.recv())]
                while heard[-1]["type"] != "done":
                    heard.append(json.loads(await socket.recv()))
                assert [one["content"] for one in heard] == ["물길", "물길 flows", "물길 flows"]
                await socket.send(json.dumps({"type": "chat", "content": script(tokens=10_000, gap=0.01)}))
                await socket.recv()
                await socket.send(json.dumps({"type": "cancel"}))
                await eventually(lambda: shared.engine.load().unfinished == 0)


async def test_a_wrong_key_is_refused_in_words_through_nginx_too(shared: Server) -> None:
    async with (
        nginx(f"127.0.0.1:{shared.port}") as front,
        connect(f"ws://127.0.0.1:{front.port}/ws/chat", additional_headers={}, proxy=None) as socket,
    ):
        assert json.loads(await socket.recv())["error"]["message"]
        await socket.wait_closed()
        assert socket.close_code == 4401
