"""The bytes that a client of /v1/chat/completions meets."""

import asyncio
import re
from itertools import pairwise

import orjson
import pytest
from harness import MODEL, Server, chat_body, events, raw_request, script, text_of

from mulgil.engine.simulated_tokens import encode_message


async def test_a_plain_reply_has_every_field_that_clients_read(server: Server) -> None:
    prompt = script(text="Paris is it.")
    prompt_tokens = len(encode_message(prompt))
    reply = (await server.chat(prompt)).json()
    assert re.fullmatch("fp_[0-9a-f]{10}", reply.pop("system_fingerprint"))
    assert reply.pop("id").startswith("chatcmpl-")
    assert isinstance(reply.pop("created"), int)
    assert reply == {
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Paris is it.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 3,
            "total_tokens": prompt_tokens + 3,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_a_stream_is_these_bytes(server: Server) -> None:
    prompt = script(text="물길 flows", gap=0.02)
    count = len(encode_message(prompt))
    body = chat_body(prompt, stream=True, stream_options={"include_usage": True})
    response = await server.client.post("/v1/chat/completions", json=body)
    first = events(response.text)[0]
    head = (
        f'data: {{"id":"{first["id"]}","object":"chat.completion.chunk","created":{first["created"]},"model":"{MODEL}",'
        f'"system_fingerprint":"{first["system_fingerprint"]}",'
    )
    tail = ',"logprobs":null,"finish_reason":null}]}\n\n'
    assert response.text == (
        head + '"choices":[{"index":0,"delta":{"role":"assistant","content":""}' + tail
        + head + '"choices":[{"index":0,"delta":{"content":"물길"}' + tail
        + head + '"choices":[{"index":0,"delta":{"content":" flows"}' + tail
        + head + '"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}\n\n'
        + head + f'"choices":[],"usage":{{"prompt_tokens":{count},"completion_tokens":2,"total_tokens":{count + 2},'
        '"prompt_tokens_details":{"cached_tokens":0}}}\n\n'
        + "data: [DONE]\n\n"
    )  # fmt: skip


async def test_a_stream_has_the_headers_that_keep_proxies_from_holding_it_back(server: Server) -> None:
    response = await server.chat(stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache, no-transform"
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in response.headers
    assert "content-length" not in response.headers
    assert response.headers["x-request-id"].startswith("req_")


async def test_usage_is_sent_only_when_asked_for(server: Server) -> None:
    chunks = events((await server.chat(stream=True)).text)
    assert all("usage" not in chunk for chunk in chunks[:-1])


async def test_each_event_is_one_write(server: Server) -> None:
    reader, writer = await server.open_socket()
    writer.write(raw_request(orjson.dumps(chat_body(script(tokens=5, gap=0.02), stream=True))))
    await reader.readuntil(b"\r\n\r\n")
    chunks = []
    while size := int(await reader.readline(), 16):
        chunks.append((await reader.readexactly(size + 2)).removesuffix(b"\r\n"))
    writer.close()
    assert len(chunks) == 1 + 5 + 1 + 1
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") and chunk.count(b"\n") == 2 for chunk in chunks)


async def test_tokens_are_sent_when_they_are_made(server: Server) -> None:
    arrivals = []
    async with server.client.stream(
        "POST", "/v1/chat/completions", json=chat_body(script(tokens=4, gap=0.2), stream=True)
    ) as response:
        async for line in response.aiter_lines():
            if '"content":"' in line and '"role"' not in line:
                arrivals.append(asyncio.get_running_loop().time())
    assert len(arrivals) == 4
    assert all(later - earlier > 0.1 for earlier, later in pairwise(arrivals))


@pytest.mark.parametrize("fields", [{}, {"max_tokens": 7}, {"n": 3}, {"stop": [" the"]}, {"seed": 7}])
@pytest.mark.parametrize(
    "content", ["hello", "안녕 🌊", script(text="한국어 👨‍👩‍👧‍👦 e\u0301 العربية", split_characters=True)]
)
async def test_the_deltas_put_together_are_the_plain_answer(
    server: Server, content: str, fields: dict[str, object]
) -> None:
    plain = (await server.chat(content, **fields)).json()
    stream = events((await server.chat(content, stream=True, stream_options={"include_usage": True}, **fields)).text)
    assert stream.pop() == "[DONE]"
    for choice in plain["choices"]:
        assert text_of(stream, choice["index"]) == choice["message"]["content"]
        assert "\ufffd" not in choice["message"]["content"]
        finish = [
            one["finish_reason"]
            for chunk in stream
            for one in chunk["choices"]
            if one["index"] == choice["index"] and one["finish_reason"]
        ]
        assert finish == [choice["finish_reason"]]
    assert stream[-1]["usage"] == plain["usage"]


async def test_with_several_choices_the_role_chunks_come_first_and_in_order(server: Server) -> None:
    chunks = events((await server.chat(stream=True, n=3)).text)
    assert [chunk["choices"][0]["index"] for chunk in chunks[:3]] == [0, 1, 2]
    assert all(chunk["choices"][0]["delta"] == {"role": "assistant", "content": ""} for chunk in chunks[:3])
    assert all(len(chunk["choices"]) == 1 for chunk in chunks[:-1])


async def test_a_cut_answer_says_length_and_a_whole_one_says_stop(server: Server) -> None:
    cut = (await server.chat(script(tokens=50), max_tokens=10)).json()
    assert cut["choices"][0]["finish_reason"] == "length"
    assert cut["usage"]["completion_tokens"] == 10
    whole = (await server.chat(script(tokens=10), max_tokens=50)).json()
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] == 10


async def test_a_stop_sequence_is_not_shown(server: Server) -> None:
    reply = (await server.chat(script(text="one two three four"), stop="two thr")).json()
    assert reply["choices"][0]["message"]["content"] == "one "
    assert reply["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_both_names_of_the_token_limit_hold(server: Server, name: str) -> None:
    reply = (await server.chat(script(tokens=50), **{name: 3})).json()
    assert reply["usage"]["completion_tokens"] == 3


async def test_text_parts_read_as_their_concatenation(server: Server) -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    body = chat_body() | {"messages": [{"role": "user", "content": parts}]}
    split = (await server.client.post("/v1/chat/completions", json=body)).json()
    whole = (await server.chat("one two")).json()
    assert split["choices"] == whole["choices"]
    assert split["usage"] == whole["usage"]


async def test_an_explicit_null_is_the_same_as_nothing(server: Server) -> None:
    optional = (
        "temperature top_p n stream stream_options stop seed max_tokens max_completion_tokens presence_penalty "
        "frequency_penalty logit_bias logprobs top_logprobs tools tool_choice response_format user metadata"
    ).split()
    with_nulls = await server.chat("hello", **dict.fromkeys(optional))
    assert with_nulls.status_code == 200
    assert with_nulls.json()["choices"] == (await server.chat()).json()["choices"]


async def test_a_failure_after_the_first_byte_is_an_error_event_and_no_done(server: Server) -> None:
    response = await server.chat(script(fail_at=2, tokens=5), stream=True)
    assert response.status_code == 200
    *chunks, last = events(response.text)
    assert len(text_of(chunks).split()) == 2
    assert last["error"]["type"] == "server_error"
    assert last["error"]["code"] == "engine_error"
    assert "[DONE]" not in response.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_engine_accepts_is_a_real_status(server: Server, stream: bool) -> None:
    response = await server.chat(script(fail_at=0), stream=stream)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "engine_error"


async def test_a_plain_reply_that_fails_midway_is_a_500(server: Server) -> None:
    response = await server.chat(script(fail_at=3, tokens=5))
    assert response.status_code == 500
    assert response.json()["error"] == {
        "message": "The engine failed this request, as it was told to.",
        "type": "server_error",
        "param": None,
        "code": "engine_error",
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_does_not_fit_says_so_in_the_words_that_clients_know(server: Server, stream: bool) -> None:
    response = await server.chat("word " * 9000, stream=stream)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "messages"
    assert error["message"].startswith("Input tokens exceed the configured limit of 8192 tokens. Your messages")


async def test_max_tokens_beyond_the_context_is_cut_to_what_fits(server: Server) -> None:
    reply = (await server.chat(script("water " * 4000, tokens=9000), max_tokens=9000)).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["total_tokens"] == 8192


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_model_is_not_found(server: Server, stream: bool) -> None:
    response = await server.chat(stream=stream, model="nope")
    assert response.status_code == 404
    assert response.json()["error"] == {
        "message": "The model `nope` does not exist or you do not have access to it.",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
