"""Bodies that cannot be served: each is refused at once, in few words, and none is the server's fault."""

import asyncio
import codecs
import logging
from collections.abc import AsyncGenerator
from typing import Any

import orjson
import pytest
from harness import MODEL, Server, chat_body, raw_request, serving, settings
from raw import ask, error_of

pytestmark = pytest.mark.usefixtures("no_errors_logged")

PATH = "/v1/chat/completions"
MOST_BYTES = settings().max_body_bytes
MOST_PARTS = settings().max_json_parts
DEPTH = settings().max_json_depth
# Seconds for one answer. A few ms on an idle machine; the faults this is about took seconds.
AT_ONCE = 1.0
SECRET = "the prompt nobody may read"


def with_field(name: str, value: str) -> bytes:
    """A chat body whose last field has *value*, in JSON or not."""
    return orjson.dumps(chat_body())[:-1] + f',"{name}":{value}}}'.encode()


def with_message(message: str) -> bytes:
    return f'{{"model":"{MODEL}","messages":[{message}]}}'.encode()


async def refused(server: Server, request: bytes, status: int, code: str) -> dict[str, str | None]:
    async with asyncio.timeout(AT_ONCE):
        answer = await ask(server, request)
    error = error_of(answer)
    assert (answer.status_code, error["code"]) == (status, code)
    return error


NOT_JSON = {
    "empty": b"",
    "blank": b" \n ",
    "cut short": orjson.dumps(chat_body())[:-5],
    "trailing comma": with_field("n", "1,"),
    "single quotes": b"{'model': 'demo'}",
    "two values": b"{} {}",
    "an array": b"[]",
    "null": b"null",
    "a string": b'"x"',
    "a number": b"5",
    "NaN": with_field("temperature", "NaN"),
    "Infinity": with_field("temperature", "Infinity"),
    "-Infinity": with_field("temperature", "-Infinity"),
    "1e999": with_field("temperature", "1e999"),
    "-1e999": with_field("temperature", "-1e999"),
    "an integer of 5,000 digits": with_field("n", "9" * 5_000),
    "NaN in a field nobody reads": with_field("unknown", "[NaN]"),
    "surrogate in role": with_message(r'{"role":"u\ud800","content":"x"}'),
    "surrogate in content": with_message(r'{"role":"user","content":"\udc00"}'),
    "surrogate in a part": with_message(r'{"role":"user","content":[{"type":"text","text":"\ud800"}]}'),
    "surrogate in a key": with_message(r'{"role":"user","content":"x","\ud800":1}'),
    "surrogate in model": rb'{"model":"\ud800","messages":[{"role":"user","content":"x"}]}',
    "surrogate in stop": with_field("stop", r'["\ud800"]'),
    "surrogate in user": with_field("user", r'"\ud800"'),
    "surrogate in a metadata key": with_field("metadata", r'{"\ud800":"x"}'),
    "surrogate in a tool's name": with_field("tools", r'[{"type":"function","function":{"name":"\ud83d"}}]'),
    "surrogate as three bytes": with_message('{"role":"user","content":"@"}').replace(b"@", b"\xed\xa0\x80"),
    "invalid UTF-8": with_message('{"role":"user","content":"@"}').replace(b"@", b"\xff"),
    "a control character": with_message('{"role":"user","content":"a\x00b"}'),
    "UTF-8 with a byte order mark": codecs.BOM_UTF8 + orjson.dumps(chat_body()),
    "UTF-16 with a byte order mark": orjson.dumps(chat_body()).decode().encode("utf-16"),
    "UTF-32 with a byte order mark": orjson.dumps(chat_body()).decode().encode("utf-32"),
    "100,000 arrays, never closed": b"[" * 100_000,
    "100,000 arrays": b"[" * 100_000 + b"]" * 100_000,
    "60,000 objects": b'{"a":' * 60_000 + b"1" + b"}" * 60_000,
}  # fmt: skip


@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON.keys())
async def test_a_body_that_is_no_json_object_is_refused(shared: Server, body: bytes) -> None:
    error = await refused(shared, raw_request(body), 400, "invalid_json")
    assert error["param"] is None


def arrays(depth: int) -> str:
    return "[" * depth + "]" * depth


def objects(depth: int) -> str:
    return '{"a":' * (depth - 1) + "{}" + "}" * (depth - 1)


FIELDS = ("unknown", "metadata", "tools", "response_format", "logit_bias", "stop", "stream_options", "model")


@pytest.mark.parametrize("depth", [DEPTH, 100, 900, 1_000, 1_024, 5_000, 60_000])
@pytest.mark.parametrize("nested", [arrays, objects])
@pytest.mark.parametrize("name", FIELDS)
async def test_a_body_nested_too_deeply_is_refused_whatever_the_field_and_the_depth(
    shared: Server, name: str, nested: Any, depth: int
) -> None:
    # The body itself is one level.
    await refused(shared, raw_request(with_field(name, nested(depth))), 400, "invalid_json")


@pytest.mark.parametrize("nested", [arrays, objects])
async def test_the_depth_just_allowed_is_served(shared: Server, nested: Any) -> None:
    assert (await ask(shared, raw_request(with_field("unknown", nested(DEPTH - 1))))).status_code == 200


@pytest.mark.parametrize("nested", [arrays, objects])
async def test_content_may_be_nested_as_deeply_as_anything_else(shared: Server, nested: Any) -> None:
    # The body, the list of messages and the message are three levels.
    deep = with_message(f'{{"role":"user","content":{nested(DEPTH - 3)}}}')
    assert (await ask(shared, raw_request(deep))).status_code == 422
    deeper = with_message(f'{{"role":"user","content":{nested(DEPTH - 2)}}}')
    await refused(shared, raw_request(deeper), 400, "invalid_json")


async def test_brackets_in_a_text_are_not_nesting(shared: Server) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[" * 10_000}}
    messages = [
        {"role": "user", "content": "[{" * 1_000},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "done", "tool_call_id": "c"},
    ]
    assert (await shared.client.post(PATH, json={"model": MODEL, "messages": messages})).status_code == 200


@pytest.mark.parametrize(
    "content_type",
    [
        b"application/json",
        b"application/json; charset=utf-8",
        b'application/json;charset="UTF-8"',
        b"application/json; charset=us-ascii",
        b"Application/JSON",
    ],
)
async def test_json_may_be_declared_in_these_ways(shared: Server, content_type: bytes) -> None:
    request = raw_request(orjson.dumps(chat_body())).replace(b": application/json", b": " + content_type)
    assert (await ask(shared, request)).status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"content-type:\r\n",
        b"content-type: text/plain\r\n",
        b"content-type: application/x-www-form-urlencoded\r\n",
        b"content-type: multipart/form-data; boundary=x\r\n",
        b"content-type: application/json, text/plain\r\n",
        b"content-type: application/jsonp\r\n",
        b"content-type: application/json\xe9\r\n",
        b"content-type: application/json; charset=bogus\r\n",
        b"content-type: application/json; charset=utf-16\r\n",
        b"content-type: application/json; charset=\xff\r\n",
        b"content-type: */*\r\n",
        b"content-type: ;;;;\r\n",
        b"content-type: " + b"x" * 10_000 + b"\r\n",
        b'content-type: application/json; a="' + b";" * 100_000 + b"\r\n",
    ],
)
async def test_a_body_that_is_not_declared_as_json_is_refused(shared: Server, header: bytes) -> None:
    request = raw_request(orjson.dumps(chat_body())).replace(b"content-type: application/json\r\n", header)
    error = await refused(shared, request, 400, "unsupported_content_type")
    assert "'application/json'" in str(error["message"])


def padded(size: int) -> bytes:
    """A body that can be served, *size* bytes long."""
    empty = with_field("unknown", '""')
    return with_field("unknown", f'"{"x" * (size - len(empty))}"')


def chunked(body: bytes, size: int = 65_536) -> bytes:
    chunks = (body[start : start + size] for start in range(0, len(body), size))
    head = raw_request(b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


@pytest.mark.parametrize("encode", [raw_request, chunked])
async def test_the_largest_body_is_served_and_one_byte_more_is_not(shared: Server, encode: Any) -> None:
    assert (await ask(shared, encode(padded(MOST_BYTES)))).status_code == 200
    error = await refused(shared, encode(padded(MOST_BYTES + 1)), 413, "request_too_large")
    assert str(MOST_BYTES) in str(error["message"])


def of_parts(count: int, part: str) -> bytes:
    """A body of *count* arrays, objects and fields; each *part* is one of them, or a field with one in it."""
    own = orjson.dumps(chat_body()).count(b":") + 3 + 2  # its arrays and objects, and the field that is added
    each = 2 if ":" in part else 1
    return with_field("unknown", f"[{','.join([part] * ((count - own) // each))}]")


@pytest.mark.parametrize("part", ["[]", "{}", '{"a":1}'])
async def test_a_body_may_have_so_many_parts_and_no_more(shared: Server, part: str) -> None:
    assert (await ask(shared, raw_request(of_parts(MOST_PARTS, part)))).status_code == 200
    error = await refused(shared, raw_request(of_parts(MOST_PARTS + 2, part)), 413, "request_too_large")
    assert str(MOST_PARTS) in str(error["message"])


@pytest.mark.parametrize("text", ["[", "{:", '"[', "\\[", '\\"{:', "[]{}\n:"])
async def test_a_text_may_have_as_many_brackets_and_colons_as_it_likes(shared: Server, text: str) -> None:
    long = text * (MOST_BYTES // len(orjson.dumps(text)) - 100)
    assert long.count("[") + long.count("{") > MOST_PARTS
    answer = await ask(shared, raw_request(orjson.dumps(chat_body(unknown=[long, long[::-1][:100]]))))
    assert answer.status_code == 200


@pytest.mark.parametrize("encode", [raw_request, chunked])
async def test_three_megabytes_are_refused_before_they_are_parsed(shared: Server, encode: Any) -> None:
    await refused(shared, encode(b"[" * 3_000_000), 413, "request_too_large")


async def test_an_announced_size_is_believed_before_the_body_has_come(shared: Server) -> None:
    request = raw_request(b"{", content_length=str(10**18))
    await refused(shared, request, 413, "request_too_large")


@pytest.mark.parametrize(
    "length",
    ["-1", "+5", "abc", "1.5", "0x10", "1_0", "5, 5", "", "9" * 30, "9" * 5_000, "10"],
    ids=lambda text: f"{text:.9} ({len(text)})",
)
async def test_a_content_length_that_is_wrong_is_a_400(shared: Server, length: str) -> None:
    answer = await ask(shared, raw_request(orjson.dumps(chat_body()), content_length=length))
    assert answer.status_code == 400
    assert (await shared.chat()).status_code == 200


async def test_of_a_field_that_comes_twice_the_last_one_counts(shared: Server) -> None:
    twice = orjson.dumps(chat_body())[:-1] + b',"n":99,"n":2}'
    answer = await ask(shared, raw_request(twice))
    assert answer.status_code == 200
    assert len(orjson.loads(answer.content)["choices"]) == 2


def with_messages(*messages: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": list(messages)}


def user(content: Any) -> dict[str, Any]:
    return with_messages({"role": "user", "content": content})


AMPLIFIED = {
    "2,000 wrong messages": with_messages(*[{"role": 5, "content": {SECRET: SECRET}}] * 2_000),
    "a megabyte of wrong content": user({SECRET: SECRET * 40_000}),
    "a megabyte instead of messages": {"model": MODEL, "messages": SECRET * 40_000},
    "a megabyte instead of a message": with_messages(SECRET * 40_000),
    "a megabyte instead of a role": with_messages({"role": SECRET * 40_000, "content": SECRET}),
    "a megabyte instead of a number": chat_body(SECRET, temperature=SECRET * 40_000),
    "a megabyte of a part's type": user([{"type": SECRET * 40_000}]),
    "a megabyte of wrong parts": user([1] * 500_000),
    "parts without a type": user([{}] * 120_000),
    "texts that are none": user([{"type": "text", "text": [SECRET]}] * 20_000),
    "calls without anything": with_messages({"role": "assistant", "content": SECRET, "tool_calls": [{}] * 120_000}),
    "500,000 stop sequences": chat_body(SECRET, stop=[""] * 500_000),
    "500,000 stop sequences that are none": chat_body(SECRET, stop=[1] * 500_000),
    "100,000 wrong pairs": chat_body(SECRET, metadata={str(index): 1 for index in range(100_000)}),
    "500,000 messages": with_messages(*[1] * 500_000),
    "a megabyte of a key": chat_body(SECRET, metadata={"k" * 1_000_000: SECRET}),
    "a megabyte of a user's name": chat_body(SECRET, user=SECRET * 40_000),
}


@pytest.mark.parametrize("body", AMPLIFIED.values(), ids=AMPLIFIED.keys())
async def test_a_large_wrong_body_gets_a_small_answer_at_once_that_repeats_nothing(
    shared: Server, caplog: pytest.LogCaptureFixture, body: dict[str, Any]
) -> None:
    caplog.set_level(logging.DEBUG)
    request = raw_request(orjson.dumps(body))
    async with asyncio.timeout(AT_ONCE):
        answer = await ask(shared, request)
    assert answer.status_code == 422
    assert error_of(answer)["param"]
    assert SECRET not in answer.content.decode()
    assert SECRET not in caplog.text
    # Servers of other tests may be at work beside this one.
    assert sum(len(line.getMessage()) for line in caplog.records if not line.name.startswith("aiosqlite")) < 4_096


async def test_the_name_of_an_unknown_model_is_repeated_in_part_only(shared: Server) -> None:
    answer = await shared.chat(model="x" * 1_000_000)
    assert answer.status_code == 404
    assert error_of(answer)["param"] == "model"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"n": 5_000_000}, (422, "n", "integer_above_max_value")),
        ({"temperature": "2"}, (422, "temperature", "invalid_type")),
        ({"messages": []}, (422, "messages", "array_below_min_length")),
        ({"messages": [{"role": "user"}]}, (422, "messages[0].content", "missing_required_parameter")),
        ({"stream_options": {}, "stream": False}, (422, "stream_options", "invalid_value")),
        ({"max_tokens": 5, "max_completion_tokens": 6}, (422, "max_tokens", "invalid_value")),
        ({"audio": {}}, (400, "audio", "unsupported_parameter")),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            (400, "messages[0].content[0].type", "unsupported_value"),
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_wrong_field_is_named_in_the_answer(
    shared: Server, fields: dict[str, Any], expected: tuple[int, str, str], stream: bool
) -> None:
    answer = await shared.client.post(PATH, json=chat_body(stream=stream) | fields)
    error = error_of(answer)
    assert (answer.status_code, error["param"], error["code"]) == expected


async def test_a_field_nobody_knows_is_ignored(shared: Server) -> None:
    with_it = await shared.chat(nobody_knows_me=[1, {"a": None}])
    assert with_it.json()["choices"] == (await shared.chat()).json()["choices"]


@pytest.fixture(scope="module")
async def picky() -> AsyncGenerator[Server]:
    """A gateway that refuses what it does not know."""
    async with serving(
        settings(unknown_fields="reject", max_choices=3, max_output_tokens=50, max_messages=2)
    ) as running:
        yield running


async def test_a_field_nobody_knows_is_refused_where_the_server_is_set_to(picky: Server) -> None:
    answer = await picky.chat(zzz=1, aaa=None)
    assert answer.status_code == 400
    assert error_of(answer) == {
        "message": "Unknown parameter: 'aaa'.",
        "type": "invalid_request_error",
        "param": "aaa",
        "code": "unknown_parameter",
    }


@pytest.mark.parametrize("name", ["x" * 100_000, "'\"\n\u2028", ""])
async def test_a_field_nobody_knows_may_have_any_name(picky: Server, name: str) -> None:
    answer = await picky.client.post(PATH, json=chat_body() | {name: 1})
    assert answer.status_code == 400
    assert error_of(answer)["param"] == name[:64]


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": None, "logprobs": False, "response_format": {"type": "text"}, "tool_choice": "none"},
        {"service_tier": "auto", "store": False, "reasoning_effort": "low", "parallel_tool_calls": True},
    ],
)
async def test_what_openai_has_is_known_even_where_it_does_nothing(picky: Server, fields: dict[str, Any]) -> None:
    assert (await picky.chat(**fields)).status_code == 200


async def test_what_openai_has_and_this_server_has_not_is_not_called_unknown(picky: Server) -> None:
    assert error_of(await picky.chat(audio={}))["code"] == "unsupported_parameter"


@pytest.mark.parametrize(
    ("fields", "param", "bound"),
    [
        ({"n": 4}, "n", "<= 3, but got 4"),
        ({"max_tokens": 51}, "max_tokens", "<= 50, but got 51"),
        ({"max_completion_tokens": 51}, "max_completion_tokens", "<= 50, but got 51"),
        ({"messages": [{"role": "user", "content": "x"}] * 3}, "messages", "at most 2 entries"),
    ],
)
async def test_the_bounds_of_the_settings_hold_and_are_named(
    picky: Server, fields: dict[str, Any], param: str, bound: str
) -> None:
    answer = await picky.chat(**fields)
    assert answer.status_code == 422
    error = error_of(answer)
    assert error["param"] == param
    assert bound in str(error["message"])
