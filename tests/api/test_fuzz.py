"""Made-up requests to every route: none is the server's fault, and no answer tells what was asked.

Those of `test_openapi.py` are made from the description of the API; these are made from requests that can be served,
with something wrong in them.
"""

import asyncio
import copy
import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import orjson
import pytest
from embeddings import EMBEDDER, embedding_server
from harness import KEY, MODEL, Server, chat_body, events
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import SecretStr
from raw import ENOUGH, error_of, request_line

SECRET = "zqx the prompt nobody may read"
ADMIN_TOKEN = "the-admin-token-of-the-fuzzing-tests"
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "d",
        "strict": True,
        "parameters": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}, "required": ["a"]},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
COMMON: dict[str, Any] = {
    "temperature": 1,
    "top_p": 0.9,
    "frequency_penalty": 0.1,
    "presence_penalty": -0.1,
    "max_tokens": 5,
    "n": 2,
    "seed": 1,
    "stop": ["x"],
    "logit_bias": {"7": -1},
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "min_tokens": 1,
    "ignore_eos": False,
    "stop_token_ids": [3],
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "user": "u",
}
SCHEMA = {"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "string"}}}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        {
            **COMMON,
            "model": MODEL,
            "messages": [
                {"role": "system", "content": SECRET},
                {"role": "user", "content": [{"type": "text", "text": SECRET}], "name": "ada"},
                {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": SECRET},
                {"role": "tool", "content": SECRET, "tool_call_id": "c1"},
                {"role": "user", "content": SECRET},
            ],
            "logprobs": True,
            "top_logprobs": 2,
            "tools": [TOOL],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
            },
            "parallel_tool_calls": False,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
            "reasoning_effort": "low",
            "chat_template_kwargs": {"thinking": True},
            "service_tier": "auto",
            "verbosity": "low",
            "metadata": {"a": "b"},
        },
    ),
    (
        "/v1/chat/completions",
        chat_body(SECRET, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "f"}}, n=2),
    ),
    ("/v1/chat/completions", chat_body(SECRET, structured_outputs={"json": SCHEMA}, max_completion_tokens=5)),
    ("/v1/chat/completions", chat_body(SECRET, structured_outputs={"choice": ["a", "b"]}, stream=True)),
    ("/v1/completions", {**COMMON, "model": MODEL, "prompt": [SECRET, SECRET], "echo": True, "logprobs": 2}),
    ("/v1/completions", {"model": MODEL, "prompt": [[1, 2], [3]], "best_of": 2, "suffix": "", "max_tokens": 5}),
    ("/v1/embeddings", {"model": EMBEDDER, "input": [SECRET, SECRET], "encoding_format": "float", "dimensions": 8}),
    ("/v1/embeddings", {"model": EMBEDDER, "input": [[1, 2], [3]], "encoding_format": "base64"}),
    ("/v1/tokenize", {"model": MODEL, "prompt": SECRET, "return_token_strs": True}),
    ("/v1/tokenize", {"messages": [{"role": "user", "content": SECRET}], "tools": [TOOL], "tool_choice": "auto"}),
    ("/v1/detokenize", {"model": MODEL, "tokens": [1, 2, 260]}),
    ("/admin/keys", {"tenant": "t", "tier": "default", "models": [MODEL], "expires": "2030-01-31T12:00:00Z"}),
]

texts = st.text(max_size=6) | st.sampled_from(("x" * 40_000, "\x00" * 500, "🌊" * 300, "a.b[0].<c>", "$ref"))
numbers = (
    st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from((0, 1, -1, 2**31, 2**63, 1e308, 0.5, 10**18))
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A request that can be served, with one to three things in it taken away, replaced, doubled or added."""
    path, body = draw(st.sampled_from(BODIES))
    body = copy.deepcopy(body)
    for _ in range(draw(st.integers(1, 3))):
        node: Any = body
        while node and (inner := [key for key, one in _entries(node) if isinstance(one, dict | list)]):
            if draw(st.booleans()):
                break
            node = node[draw(st.sampled_from(inner))]
        _mutate(draw, node)
    return path, body


def _entries(node: Any) -> list[tuple[Any, Any]]:
    return list(node.items() if isinstance(node, dict) else enumerate(node))


def _mutate(draw: st.DrawFn, node: Any) -> None:
    keys = [key for key, _ in _entries(node)]
    key = draw(st.sampled_from(keys)) if keys else None
    what = draw(st.sampled_from(("replace", "remove", "add", "wrap", "double")))
    if what == "add" or key is None:
        if isinstance(node, dict):
            node[draw(texts)] = draw(values)
        else:
            node.append(draw(values))
    elif what == "remove":
        del node[key]
    elif what == "wrap":
        node[key] = draw(st.sampled_from(([node[key]], {"a": node[key]})))
    elif what == "double" and isinstance(node, list):
        node *= draw(st.sampled_from((2, 40)))
    else:
        node[key] = draw(values)


@pytest.fixture(scope="module")
async def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Server]:
    """A gateway with every route there is, and small answers."""
    folder: Path = tmp_path_factory.mktemp("fuzzed")
    (folder / "keys.toml").touch()
    async with embedding_server(
        admin_token=SecretStr(ADMIN_TOKEN),
        keys_file=folder / "keys.toml",
        audit_log=folder / "audit.log",
        max_choices=4,
        max_prompts=4,
        simulated_gap=0.0,
        max_json_depth=512,
    ) as running:
        yield running


async def served_or_refused(server: Server, path: str, body: bytes, **headers: str) -> None:
    """*body* gets an answer, or an error in the envelope that does not repeat it; a stream is whole."""
    key = ADMIN_TOKEN if path.startswith("/admin") else KEY
    given = {"content-type": "application/json", "authorization": f"Bearer {key}"} | headers
    async with asyncio.timeout(10):
        answer = await server.client.post(path, content=body, headers=given)
    if answer.is_success:
        if answer.headers["content-type"].startswith("text/event-stream"):
            assert events(answer.text)[-1] == "[DONE]"
        return
    assert 400 <= answer.status_code < 500
    assert error_of(answer)["message"]
    assert len(answer.content) <= ENOUGH
    assert SECRET not in answer.text


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_the_requests_that_are_changed_can_be_served(fuzzed: Server, path: str, body: dict[str, Any]) -> None:
    key = ADMIN_TOKEN if path.startswith("/admin") else KEY
    answer = await fuzzed.client.post(path, json=body, headers={"authorization": f"Bearer {key}"})
    assert answer.status_code == 200, answer.text


def nothing_but_access_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    logged = [record for record in caplog.records if record.name != "uvicorn.access"]
    assert [record.getMessage() for record in logged if record.levelno >= logging.ERROR or record.exc_info] == []
    assert SECRET not in caplog.text
    caplog.clear()


# The log is looked at, and emptied, after each request.
fuzzing = hypothesis_settings(
    max_examples=400,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@fuzzing
@given(request=mutated())
async def test_a_request_with_something_wrong_in_it_is_served_or_refused(
    fuzzed: Server, caplog: pytest.LogCaptureFixture, request: tuple[str, dict[str, Any]]
) -> None:
    path, body = request
    await served_or_refused(fuzzed, path, orjson.dumps(body))
    nothing_but_access_is_logged(caplog)


@fuzzing
@given(path=st.sampled_from(sorted({path for path, _ in BODIES})), body=values)
async def test_any_json_is_served_or_refused(
    fuzzed: Server, caplog: pytest.LogCaptureFixture, path: str, body: Any
) -> None:
    await served_or_refused(fuzzed, path, orjson.dumps(body))
    nothing_but_access_is_logged(caplog)


@fuzzing
@given(
    request=st.sampled_from(BODIES),
    place=st.floats(0, 1),
    length=st.integers(0, 3),
    put=st.binary(max_size=4),
    content_type=st.sampled_from(("application/json", "application/json; charset=utf-8", "text/plain", "")),
)
async def test_any_bytes_are_served_or_refused(
    fuzzed: Server,
    caplog: pytest.LogCaptureFixture,
    *,
    request: tuple[str, dict[str, Any]],
    place: float,
    length: int,
    put: bytes,
    content_type: str,
) -> None:
    path, body = request
    whole = orjson.dumps(body)
    at = int(place * len(whole))
    await served_or_refused(fuzzed, path, whole[:at] + put + whole[at + length :], **{"content-type": content_type})
    nothing_but_access_is_logged(caplog)


METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "NOTIFY", "FOO", "get", "")
ROUTES = sorted({path for path, _ in BODIES} | {
    "/", "/health", "/health/ready", "/v1/models", f"/v1/models/{MODEL}", "/openapi.json", "/docs", "/metrics",
    "/admin/keys/x", "/admin/keys/x/rotate", "/v1", "//v1/models", "/v1/chat/completions/", "/V1/models",
})  # fmt: skip
path_bytes = st.text(st.characters(min_codepoint=33, max_codepoint=255), max_size=12).map(
    lambda text: text.encode("latin-1")
)
header_lines = st.tuples(
    st.sampled_from((b"authorization", b"content-type", b"accept", b"x-request-id", b"cookie", b"origin", b"x", b"")),
    st.text(st.characters(max_codepoint=255, exclude_characters="\r\n"), max_size=30).map(lambda t: t.encode("latin-1"))
    | st.sampled_from(
        (b"Bearer " + KEY.encode(), b"Bearer " + ADMIN_TOKEN.encode(), b"application/json", b"x" * 5_000)
    ),
).map(b": ".join)


async def answer_to(server: Server, request: bytes) -> bytes:
    """All that is answered on a connection that is closed afterwards."""
    reader, writer = await server.open_socket()
    try:
        writer.write(request)
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.transport.abort()


@fuzzing
@given(
    method=st.sampled_from(METHODS),
    route=st.sampled_from(ROUTES),
    more=path_bytes,
    headers=st.lists(header_lines, max_size=4),
    body=st.sampled_from((b"", b"{}", orjson.dumps(chat_body(SECRET)))),
)
async def test_any_method_path_and_headers_are_served_or_refused(
    fuzzed: Server,
    caplog: pytest.LogCaptureFixture,
    *,
    method: str,
    route: str,
    more: bytes,
    headers: list[bytes],
    body: bytes,
) -> None:
    request = request_line(method, "@", *headers, b"connection: close", body=body).replace(
        b"@", route.encode() + more, 1
    )
    head, _, content = (await answer_to(fuzzed, request)).partition(b"\r\n\r\n")
    status = int(head.split(b" ")[1])
    assert 200 <= status < 500
    if status >= 400:
        assert len(content) <= ENOUGH
        assert SECRET.encode() not in content
        assert b"content-type: application/json" in head
        assert method == "HEAD" or orjson.loads(content)["error"].keys() == {"message", "type", "param", "code"}
    nothing_but_access_is_logged(caplog)


async def test_after_all_that_the_server_is_as_it_was(fuzzed: Server) -> None:
    assert fuzzed.mulgil.running == 0
    assert (await fuzzed.chat()).status_code == 200
    assert {path for path, _ in BODIES} <= set(fuzzed.mulgil.app.openapi()["paths"])
