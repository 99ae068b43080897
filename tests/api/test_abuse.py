"""Small requests that ask for much, and large ones that ask for nothing: refused at once, and nobody else notices."""

import asyncio
import gc
import statistics
import time
import tracemalloc
from collections.abc import AsyncGenerator
from typing import Any

import orjson
import psutil
import pytest
from checks import RULES, checked_chat, checked_completion
from harness import KEY, MODEL, Server, chat_body, raw_request, serving, settings
from pydantic import SecretStr
from raw import ask, error_of

from mulgil.api.body import parsed
from mulgil.engine.simulated_tokens import VOCABULARY
from mulgil.errors import MulgilError

pytestmark = pytest.mark.usefixtures("no_errors_logged")

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
OTHER_KEY = "sk-mg-the-key-of-somebody-else"
# The promise for a refusal is 0.1 s of work without the transfer; twice that, since the cores are shared with others.
AT_ONCE = 0.2
# A test's process is shared with others, so a single answer is given more time.
SOON = 2.0
MEBIBYTE = 2**20

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}


def chat(**fields: Any) -> tuple[str, bytes]:
    return CHAT, orjson.dumps(chat_body(**fields))


def chat_of(*messages: Any) -> tuple[str, bytes]:
    return CHAT, orjson.dumps({"model": MODEL, "messages": messages})


def chat_with(field: str) -> tuple[str, bytes]:
    """A chat with one more *field* that is JSON already, and nested too deeply to be written as such."""
    return CHAT, orjson.dumps(chat_body())[:-1] + f",{field}}}".encode()


def completion(prompt: Any = "x", **fields: Any) -> tuple[str, bytes]:
    return COMPLETIONS, orjson.dumps({"model": MODEL, "prompt": prompt, **fields})


def nested(depth: int) -> str:
    return '{"not":' * depth + "{}" + "}" * depth


def with_schema(schema: str) -> tuple[str, bytes]:
    return chat_with(f'"response_format":{{"type":"json_schema","json_schema":{{"name":"a","schema":{schema}}}}}')


def with_parameters(schema: str) -> tuple[str, bytes]:
    return chat_with(f'"tools":[{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}]')


LARGE = orjson.dumps({"description": "x" * 1_000_000}).decode()
WIDE = orjson.dumps({"properties": {f"p{i}": {"type": "string"} for i in range(40_000)}}).decode()
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{}] * 100_000}}
LONG_NAME = {"type": "json_schema", "json_schema": {"name": "x" * 1_000_000}}
MANY = {str(number): 1 for number in range(100_000)}

TOO_MUCH, TOO_MANY, WRONG = "integer_above_max_value", "array_above_max_length", "invalid_value"
NO_JSON, NO_SCHEMA, TOO_LARGE = "invalid_json", "invalid_json_schema", "request_too_large"
# The request, and the status and code of its refusal. Those of "the engine" are refused by it, not by validation.
ABUSES: dict[str, tuple[tuple[str, bytes], int, str]] = {
    "n": (chat(n=100_000), 422, TOO_MUCH),
    "n of prompts": (completion(["x"] * 100, n=100_000), 422, TOO_MUCH),
    "best_of": (completion(best_of=100_000), 422, TOO_MUCH),
    "max_tokens": (chat(max_tokens=10**18), 422, TOO_MUCH),
    "top_logprobs": (chat(logprobs=True, top_logprobs=10**9), 422, TOO_MUCH),
    "top_logprobs as 1e9": (chat_with('"logprobs":true,"top_logprobs":1e9'), 422, "invalid_type"),
    "logprobs": (completion(logprobs=10**9), 422, TOO_MUCH),
    "stop strings": (chat(stop=["x"] * 500_000), 422, TOO_MANY),
    "stop strings of a completion": (completion(stop=["x"] * 500_000), 422, TOO_MANY),
    "stop token ids": (chat(stop_token_ids=[1] * 500_000), 422, TOO_MANY),
    "biases": (chat(logit_bias=MANY), 422, TOO_MANY),
    "prompts": (completion(["x"] * 100_000), 422, TOO_MANY),
    "prompts of ids": (completion([[1]] * 100_000), 422, TOO_MANY),
    "empty prompts": (completion([[]] * 100_000), 422, TOO_MANY),
    "one prompt of many ids and a wrong one": (completion([1] * 900_000 + [-1]), 422, WRONG),
    "tools": (chat(tools=[{}] * 100_000), 422, TOO_MANY),
    "whole tools": (chat(tools=[TOOL] * 100_000), 413, TOO_LARGE),
    "allowed tools": (chat(tools=[TOOL], tool_choice=ALLOWED), 422, "missing_required_parameter"),
    "messages of calls": (chat_of(*[{"role": "assistant", "tool_calls": [CALL]}] * 100_000), 413, TOO_LARGE),
    "short messages of calls": (chat_of(*[{"tool_calls": [{}]}] * 30_000), 422, TOO_MANY),
    "calls, and an answer to another": (
        chat_of(
            *[{"role": "assistant", "tool_calls": [CALL] * 100}] * 150,
            {"role": "tool", "tool_call_id": "d", "content": ""},
        ),
        422,
        WRONG,
    ),
    "template options": (chat(chat_template_kwargs=MANY), 422, TOO_MANY),
    "choices": (chat(structured_outputs={"choice": ["x"] * 400_000}), 422, TOO_MANY),
    "a long choice": (chat(structured_outputs={"choice": ["x" * 1_000_000]}), 400, NO_SCHEMA),
    "a regular expression": (chat(structured_outputs={"regex": "(a+)+" * 200_000}), 400, NO_SCHEMA),
    "a grammar": (chat(structured_outputs={"grammar": "x" * 1_000_000}), 400, NO_SCHEMA),
    "a deep schema": (with_schema(nested(10_000)), 400, NO_JSON),
    "a schema just too deep": (with_schema(nested(40)), 400, NO_SCHEMA),
    "a large schema": (with_schema(LARGE), 400, NO_SCHEMA),
    "a wide schema": (chat_with(f'"structured_outputs":{{"json":{WIDE}}}'), 400, NO_SCHEMA),
    "a tool's large schema": (with_parameters(WIDE), 400, NO_SCHEMA),
    "a tool's deep schema": (with_parameters(nested(10_000)), 400, NO_JSON),
    "the name of a schema": (chat(response_format=LONG_NAME), 422, "string_above_max_length"),
    "an id beyond 32 bits": (completion([2**40]), 422, WRONG),
    "an id below 0": (completion([[-1]]), 422, WRONG),
    "a bias beyond any vocabulary": (chat(logit_bias={str(2**40): 1}), 422, WRONG),
    "a bias below 0": (chat(logit_bias={"-1": 5}), 422, WRONG),
    "the engine: an id of a prompt": (completion([1, 2, VOCABULARY]), 422, WRONG),
    "the engine: a huge id": (completion([[1], [999_999_999]]), 422, WRONG),
    "the engine: a bias": (chat(logit_bias={"191222": -100}), 422, WRONG),
    "the engine: the first bias too many": (chat(logit_bias={str(VOCABULARY): 1}), 422, WRONG),
    "the engine: a bias of a completion": (completion(logit_bias={"999999999": 1}), 422, WRONG),
    "the engine: a stop token id": (chat(stop_token_ids=[999_999], min_tokens=5), 422, WRONG),
    "the engine: too many ids": (completion([1] * 900_000), 400, "context_length_exceeded"),
}
OF_VALIDATION = {name: request for name, (request, *_) in ABUSES.items() if not name.startswith("the engine")}
PARSED = {name: request for name, request in OF_VALIDATION.items() if ABUSES[name][2] not in (NO_JSON, TOO_LARGE)}


@pytest.fixture(scope="module")
async def busy() -> AsyncGenerator[Server]:
    """A gateway with two keys."""
    async with serving(settings(api_keys=(SecretStr(KEY), SecretStr(OTHER_KEY)))) as running:
        yield running


async def somebody_else_is_served(server: Server) -> None:
    headers = {"authorization": f"Bearer {OTHER_KEY}"}
    async with asyncio.timeout(SOON):
        answer = await server.client.post(CHAT, json=chat_body(), headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize(("abuse", "status", "code"), ABUSES.values(), ids=ABUSES.keys())
async def test_it_is_refused_soon_and_the_next_request_of_another_key_works(
    busy: Server, abuse: tuple[str, bytes], status: int, code: str
) -> None:
    path, body = abuse
    async with asyncio.timeout(SOON):
        answer = await ask(busy, raw_request(body, path=path))
    error = error_of(answer)
    assert (answer.status_code, error["code"]) == (status, code), error
    await somebody_else_is_served(busy)
    assert busy.engine.load().unfinished == 0


def refusal_of(path: str, body: bytes) -> float:
    """Seconds of work from the whole body to the error; what others do meanwhile is not counted."""
    checked = checked_chat if path == CHAT else checked_completion
    begin = time.thread_time()
    with pytest.raises(MulgilError):
        checked(parsed(body, RULES))
    return time.thread_time() - begin


@pytest.mark.parametrize(("path", "body"), OF_VALIDATION.values(), ids=OF_VALIDATION.keys())
async def test_the_refusal_itself_is_little_work(path: str, body: bytes) -> None:
    gc.collect()
    taken = [refusal_of(path, body) for _ in range(5)]
    assert statistics.median(taken) < AT_ONCE


@pytest.mark.parametrize(("path", "body"), PARSED.values(), ids=PARSED.keys())
async def test_a_refusal_needs_little_memory_beside_the_body_and_keeps_none_of_it(path: str, body: bytes) -> None:
    refusal_of(path, body)
    value = orjson.loads(body)
    gc.collect()
    tracemalloc.start()
    try:
        with pytest.raises(MulgilError):
            (checked_chat if path == CHAT else checked_completion)(value)
        gc.collect()
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 24 * MEBIBYTE
    assert kept < MEBIBYTE / 4


async def all_of_it(server: Server) -> None:
    for (path, body), *_ in ABUSES.values():
        await ask(server, raw_request(body, path=path))


async def test_a_server_that_refuses_all_of_it_again_and_again_does_not_grow(busy: Server) -> None:
    process = psutil.Process()
    await all_of_it(busy)
    before = process.memory_info().rss
    for _ in range(3):
        await all_of_it(busy)
    assert process.memory_info().rss - before < 100 * MEBIBYTE


async def test_others_are_served_while_somebody_abuses(busy: Server) -> None:
    running = asyncio.create_task(all_of_it(busy))
    while not running.done():
        await somebody_else_is_served(busy)
    await running
