"""Many turns on one connection, with the same keys and budgets as over HTTP."""

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from harness import KEY, MODEL, UNLIMITED, Server, eventually, script, serving, settings
from sockets import connected, say, turn
from websockets.exceptions import ConnectionClosed


async def refused(server: Server, query: str = "", **options: Any) -> tuple[int, Any]:
    """The close code, and the message before it."""
    async with connected(server, query, **options) as connection:
        said = json.loads(await connection.recv())
        with pytest.raises(ConnectionClosed):
            await connection.recv()
        assert connection.close_code is not None
        return connection.close_code, said


async def test_text_comes_cumulative_and_the_end_says_how_and_how_much(shared: Server) -> None:
    async with connected(shared) as connection:
        heard = await turn(connection, id="t1", content=script(text="물길 flows on.", gap=0.01))
    texts = [message["content"] for message in heard if message["type"] == "text"]
    assert len(texts) == 3
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))
    done = heard[-1]
    assert (done["type"], done["content"], done["finish_reason"]) == ("done", "물길 flows on.", "stop")
    assert done["usage"]["completion_tokens"] == 3
    assert {message["id"] for message in heard} == {"t1"}


async def test_the_next_turn_remembers_the_one_before(shared: Server) -> None:
    async with connected(shared) as connection:
        first = (await turn(connection, content=script(text="One.")))[-1]
        second = (await turn(connection, content=script(text="Two.")))[-1]
        assert second["usage"]["prompt_tokens"] > 2 * first["usage"]["prompt_tokens"]
        fresh = [{"role": "user", "content": script(text="Three.")}]
        third = (await turn(connection, messages=fresh))[-1]
        assert third["usage"]["prompt_tokens"] < second["usage"]["prompt_tokens"]


async def test_cancel_stops_the_engine_at_once_and_the_line_stays(shared: Server) -> None:
    async with connected(shared) as connection:
        await say(connection, type="chat", content=script(tokens=10_000, gap=0.01))
        assert json.loads(await connection.recv())["type"] == "text"
        await say(connection, type="cancel")
        await eventually(lambda: shared.engine.load().unfinished == 0, within=0.5)
        while (last := json.loads(await connection.recv()))["type"] != "done":
            pass
        assert last["finish_reason"] == "cancelled"
        assert last["usage"]["completion_tokens"] > 0
        assert (await turn(connection, content=script(text="Again.")))[-1]["content"] == "Again."


async def test_cancel_gives_up_a_turn_that_waits_in_the_queue() -> None:
    async with (
        serving(settings(max_concurrent_requests=1)) as server,
        connected(server) as one,
        connected(server) as two,
    ):
        queue = server.mulgil.gateway.queue
        await say(one, type="chat", content=script(tokens=10_000, gap=0.01))
        await one.recv()
        await say(two, type="chat", id="t", content="hello")
        await eventually(lambda: queue.waiting == 1)
        await say(two, type="cancel")
        last = json.loads(await two.recv())
        assert (last["type"], last["id"], last["content"], last["finish_reason"]) == ("done", "t", "", "cancelled")
        assert last["usage"]["total_tokens"] == 0
        assert queue.waiting == 0
        await say(two, type="chat", content="hello")
        await eventually(lambda: queue.waiting == 1)
        await two.close()
        await eventually(lambda: queue.waiting == 0)
        assert server.mulgil.leases.live == 1


async def test_hanging_up_stops_the_engine_and_settles(shared: Server) -> None:
    async with connected(shared) as connection:
        await say(connection, type="chat", content=script(tokens=10_000, gap=0.01))
        await connection.recv()
    await eventually(lambda: shared.engine.load().unfinished == 0)
    await eventually(lambda: shared.mulgil.gateway.running == 0)


async def test_reasoning_and_calls_are_told_too(shared: Server) -> None:
    calls = [{"name": "f", "arguments": {"city": "서울"}}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    async with connected(shared) as connection:
        heard = await turn(connection, content=script(reasoning="Hm.", tool_calls=calls), tools=tools)
    assert heard[0] == {"type": "reasoning", "content": "Hm."}
    assert json.loads(heard[-1]["tool_calls"][0]["function"]["arguments"]) == {"city": "서울"}
    assert heard[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("no json", "invalid_json"),
        ("[1]", "invalid_json"),
        ('{"type": "dance"}', "invalid_value"),
        ('{"type": "chat"}', "missing_required_parameter"),
        ('{"type": "chat", "content": 5}', "invalid_type"),
        ('{"type": "chat", "content": "a", "temperature": 9}', "decimal_above_max_value"),
        ('{"type": "chat", "content": "a", "model": "nope"}', "model_not_found"),
        ('{"type": "chat", "content": "a", "n": 2}', "invalid_value"),
    ],
)
async def test_what_is_wrong_is_said_and_the_line_stays(shared: Server, message: str, code: str) -> None:
    async with connected(shared) as connection:
        await connection.send(message)
        assert json.loads(await connection.recv())["error"]["code"] in (code, "invalid_type")
        await say(connection, type="ping")
        assert json.loads(await connection.recv()) == {"type": "pong"}


async def test_a_second_turn_before_the_first_is_over_is_refused_and_the_first_goes_on(shared: Server) -> None:
    async with connected(shared) as connection:
        await say(connection, type="chat", id="a", content=script(text="slow but whole", gap=0.1))
        await say(connection, type="chat", id="b", content="hello")
        heard = [json.loads(await connection.recv())]
        while heard[-1]["type"] != "done":
            heard.append(json.loads(await connection.recv()))
    assert [one["error"]["param"] for one in heard if one["type"] == "error"] == ["type"]
    assert (heard[-1]["id"], heard[-1]["content"]) == ("a", "slow but whole")


async def test_a_failing_engine_is_said_and_the_line_stays(shared: Server) -> None:
    async with connected(shared) as connection:
        assert (await turn(connection, content=script(tokens=9, fail_at=4)))[-1]["error"]["code"] == "engine_error"
        assert (await turn(connection, content=script(text="Fine.")))[-1]["content"] == "Fine."


async def test_a_wrong_key_or_none_is_refused_in_words_and_with_4401(shared: Server) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}):
        code, said = await refused(shared, headers=headers)
        assert (code, said["type"]) == (4401, "error")
        assert "key" in said["error"]["message"]
    code, _ = await refused(shared, headers={}, subprotocols=["mulgil", "mulgil-key.sk-wrong"])
    assert code == 4401


async def test_a_page_may_send_its_key_as_a_subprotocol_that_is_never_sent_back(shared: Server) -> None:
    for form in ("mulgil-key.", "openai-insecure-api-key."):
        async with connected(shared, headers={}, subprotocols=["realtime", f"{form}{KEY}"]) as connection:
            assert connection.subprotocol == "realtime"
            assert (await turn(connection, content=script(text="In.")))[-1]["content"] == "In."


async def test_a_ticket_opens_it_and_no_key_in_the_url_does(shared: Server) -> None:
    ticket = (await shared.client.post("/v1/tickets")).json()["ticket"]
    async with connected(shared, f"?ticket={ticket}", headers={}) as connection:
        assert (await turn(connection, content=script(text="In.")))[-1]["content"] == "In."
    assert (await refused(shared, f"?ticket={KEY}", headers={}))[0] == 4404
    assert (await refused(shared, f"?api_key={KEY}", headers={}))[0] == 4401


async def test_only_pages_of_allowed_origins_may_connect() -> None:
    async with serving(settings(cors_origins=("https://app.example",))) as server:
        for origin in ("https://app.example", server.url):
            async with connected(server, origin=origin) as connection:
                assert (await turn(connection, content=script(text="In.")))[-1]["content"] == "In."
        code, said = await refused(server, origin="https://evil.example")
        assert (code, said["error"]["type"]) == (4403, "permission_error")


async def test_binary_messages_and_large_ones_close_the_line(shared: Server) -> None:
    for message, code in ((b"\x00", 1003), ("x" * 3_000_000, 1009)):
        async with connected(shared) as connection:
            with pytest.raises(ConnectionClosed):
                await connection.send(message)
                await connection.recv()
            assert connection.close_code == code


async def test_a_line_without_a_turn_is_closed_after_a_while() -> None:
    async with serving(settings(websocket_idle=0.3)) as server, connected(server) as connection:
        heard = await turn(connection, content=script(tokens=8, gap=0.1))
        assert heard[-1]["type"] == "done", "a turn is no idleness"
        with pytest.raises(ConnectionClosed):
            await connection.recv()
        assert connection.close_code == 4408


async def test_the_limit_of_concurrent_requests_holds_over_http_and_sockets_together(tmp_path: Path) -> None:
    config = tmp_path / "mulgil.toml"
    config.write_text("[tiers.default]\nconcurrent_requests = 2\n")
    async with serving(settings(config=config)) as server, connected(server) as one, connected(server) as two:
        await say(one, type="chat", content=script(tokens=10_000, gap=0.01))
        await one.recv()
        running = asyncio.create_task(server.chat(script(tokens=10_000, gap=0.01), stream=True))
        await eventually(lambda: server.engine.load().unfinished == 2)
        assert (await turn(two, content="hello"))[-1]["error"]["code"] == "rate_limit_exceeded"
        await say(one, type="cancel")
        await eventually(lambda: server.engine.load().unfinished == 1)
        async with asyncio.timeout(5):
            while (await turn(two, content=script(text="Now.")))[-1]["type"] != "done":
                await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.wait([running])


async def test_a_shutdown_is_said_and_closes_with_1012() -> None:
    async with serving(settings(shutdown_grace=0)) as server, connected(server) as connection:
        await say(connection, type="chat", content=script(tokens=10_000, gap=0.01))
        await connection.recv()
        await server.mulgil.drain()
        with pytest.raises(ConnectionClosed):
            while True:
                last = json.loads(await connection.recv())
        assert last["type"] == "error"
        assert connection.close_code == 1012


async def test_a_conversation_grows_no_larger_than_one_body_may_be_and_can_begin_anew() -> None:
    async with serving(settings(max_body_bytes=5_000)) as server, connected(server) as connection:
        said = 0
        while (last := (await turn(connection, content=script("word " * 200, text="Yes.")))[-1])["type"] == "done":
            said += 1
        assert 2 < said < 5
        assert last["error"]["code"] == "request_too_large"
        fresh = [{"role": "user", "content": script(text="Anew.")}]
        assert (await turn(connection, messages=fresh))[-1]["content"] == "Anew."
        assert (await turn(connection, content=script(text="On.")))[-1]["content"] == "On."


async def test_a_large_message_is_checked_as_any_other(shared: Server) -> None:
    async with connected(shared) as connection:
        wrong = await turn(connection, id="large", content=[{"type": "text", "text": "a"}] * 3_000 + [1])
        assert (wrong[-1]["id"], wrong[-1]["error"]["param"]) == ("large", "messages[0].content[3000]")
        assert (await turn(connection, content="a " * 40_000))[-1]["error"]["code"] == "context_length_exceeded"


async def test_a_conversation_that_may_be_truncated_never_ends(tmp_path: Path) -> None:
    config = tmp_path / "mulgil.toml"
    config.write_text(f"{UNLIMITED.read_text()}\n[models.{MODEL}]\ntruncation = 'auto'\n")
    chosen = settings(config=config, max_model_len=256, max_messages=12, max_body_bytes=4_096)
    async with serving(chosen) as server, connected(server) as connection:
        dropped = 0
        for number in range(30):
            done = (await turn(connection, content=script("water " * 20, text=f"{number}"), max_tokens=20))[-1]
            assert done["type"] == "done", done
            assert done["content"] == str(number)
            assert done["usage"]["prompt_tokens"] <= 256 - 20
            dropped += done.get("truncated_messages", 0)
        assert dropped > 40, "two for each turn, as soon as the context is full"
        refused = (await turn(connection, content="water " * 120, max_tokens=20, truncation="disabled"))[-1]
        assert refused["error"]["code"] == "context_length_exceeded"
