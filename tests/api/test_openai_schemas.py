"""Every reply and every chunk, held against the schemas that OpenAI publishes.

They are not part of the project. Where they are absent this is skipped; to run it, put the `components` of OpenAI's
public OpenAPI document as `shared/data/openai-schemas.json` beside the repository.
"""

import copy
from collections.abc import AsyncGenerator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest
from embeddings import EMBEDDER, embedding_server
from harness import MODEL, Server, chat_body, events, script

PUBLISHED = Path(__file__).parents[3] / "shared/data/openai-schemas.json"
pytestmark = pytest.mark.skipif(not PUBLISHED.exists(), reason=f"{PUBLISHED.name} is absent: see {Path(__file__).name}")

_NULLABLE_NUMBER = {"anyOf": [{"type": "number"}, {"type": "null"}]}
_LOGPROBS = "CreateCompletionResponse.properties.choices.items.properties.logprobs.anyOf.0.properties"
# What our replies have and OpenAI's schemas do not, each with the schema it would have there.
OURS: dict[str, Any] = {
    # As other servers of open models have it.
    "ChatCompletionResponseMessage.properties.reasoning_content": {"type": "string"},
    "ChatCompletionStreamResponseDelta.properties.reasoning_content": {"type": "string"},
    # A stream of completions says null until the end, as OpenAI's own does.
    "CreateCompletionResponse.properties.choices.items.properties.finish_reason": {
        "enum": ["stop", "length", "content_filter", None]
    },
    # The first token of an echoed prompt has no probability; with `logprobs: 0` no other tokens are told.
    f"{_LOGPROBS}.token_logprobs.items": _NULLABLE_NUMBER,
    f"{_LOGPROBS}.top_logprobs": {
        "anyOf": [{"type": "array", "items": {"anyOf": [{"type": "object"}, {"type": "null"}]}}, {"type": "null"}]
    },
    # `encoding_format: "base64"`, which the schema forgets.
    "Embedding.properties.embedding": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "number"}}]},
}


def closed(node: Any) -> Any:
    """*node* in JSON Schema's words, and with no property allowed that it does not name."""
    if isinstance(node, list):
        return [closed(one) for one in node]
    if not isinstance(node, dict):
        return node
    made = {key: closed(value) for key, value in node.items() if key != "nullable"}
    if isinstance(made.get("properties"), dict) and "type" in made:
        made.setdefault("additionalProperties", False)
    return {"anyOf": [made, {"type": "null"}]} if node.get("nullable") is True else made


def patched(components: dict[str, Any], places: dict[str, Any]) -> dict[str, Any]:
    found = copy.deepcopy(components)
    for place, schema in places.items():
        *steps, last = place.split(".")
        node: Any = found["schemas"]
        for step in steps:
            node = node[int(step)] if isinstance(node, list) else node[step]
        node[last] = schema
    return found


@cache
def validator(name: str, without: str | None = None) -> jsonschema.Draft202012Validator:
    components = orjson.loads(PUBLISHED.read_bytes())["components"]
    places = {place: schema for place, schema in OURS.items() if place != without}
    schema = {"$ref": f"#/components/schemas/{name}", "components": closed(patched(components, places))}
    return jsonschema.Draft202012Validator(schema)


def assert_valid(name: str, value: Any) -> None:
    problems = [f"{error.json_path}: {error.message[:500]}" for error in validator(name).iter_errors(value)]
    assert not problems, "\n".join(problems)


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALLS = [{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {"b": "🌊"}}]
CHATS: dict[str, dict[str, Any]] = {
    "plain": chat_body(),
    "several choices": chat_body(n=3, max_tokens=4),
    "logprobs": chat_body(logprobs=True, top_logprobs=5, n=2),
    "logprobs alone": chat_body(logprobs=True),
    "a required call": chat_body(tools=TOOLS, tool_choice="required"),
    "two calls": chat_body(script(text="So", tool_calls=CALLS), tools=TOOLS),
    "a call that is cut off": chat_body(script(tool_calls=CALLS, split_characters=True), tools=TOOLS, max_tokens=3),
    "reasoning": chat_body(script(reasoning="I think", text="so")),
    "filtered": chat_body(script(text="x", finish="content_filter")),
    "a tier": chat_body(service_tier="flex"),
    "JSON": chat_body(response_format={"type": "json_object"}),
    "nothing said": chat_body(script(text="")),
}
COMPLETIONS: dict[str, dict[str, Any]] = {
    "plain": {"prompt": "hello"},
    "several": {"prompt": ["a", "b"], "n": 2},
    "logprobs": {"prompt": "hello", "logprobs": 5},
    "an echo": {"prompt": "hello there", "echo": True, "logprobs": 2},
    "no likely tokens": {"prompt": "hello", "logprobs": 0},
    "scored": {"prompt": [256, 257], "echo": True, "logprobs": 1, "max_tokens": 0},
    "filtered": {"prompt": script(text="x", finish="content_filter")},
}
EMBEDDINGS: dict[str, dict[str, Any]] = {
    "floats": {"input": ["a", "b"], "encoding_format": "float"},
    "base64": {"input": "a", "encoding_format": "base64"},
    "default": {"input": "a"},
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
]


@pytest.mark.parametrize("body", CHATS.values(), ids=CHATS.keys())
async def test_a_chat_completion_is_one_of_openais(shared: Server, body: dict[str, Any]) -> None:
    answer = await shared.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    assert_valid("CreateChatCompletionResponse", answer.json())


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("body", CHATS.values(), ids=CHATS.keys())
async def test_every_chunk_of_a_chat_is_one_of_openais(
    shared: Server, body: dict[str, Any], options: dict[str, Any]
) -> None:
    answer = await shared.client.post("/v1/chat/completions", json=body | {"stream": True} | options)
    *chunks, done = events(answer.text)
    assert done == "[DONE]"
    for chunk in chunks:
        assert_valid("CreateChatCompletionStreamResponse", chunk)
        assert "error" not in chunk


@pytest.mark.parametrize("body", COMPLETIONS.values(), ids=COMPLETIONS.keys())
async def test_a_completion_and_its_chunks_are_openais(shared: Server, body: dict[str, Any]) -> None:
    body = {"model": MODEL} | body
    plain = await shared.client.post("/v1/completions", json=body)
    assert_valid("CreateCompletionResponse", plain.json())
    assert None not in [choice["finish_reason"] for choice in plain.json()["choices"]]
    for options in OPTIONS:
        streamed = await shared.client.post("/v1/completions", json=body | {"stream": True} | options)
        *chunks, done = events(streamed.text)
        assert done == "[DONE]"
        for chunk in chunks:
            assert_valid("CreateCompletionResponse", chunk)


async def test_models_are_openais(shared: Server) -> None:
    listed = (await shared.client.get("/v1/models")).json()
    assert_valid("ListModelsResponse", listed)
    assert_valid("Model", (await shared.client.get(f"/v1/models/{MODEL}")).json())


@pytest.fixture(scope="module")
async def embedding() -> AsyncGenerator[Server]:
    async with embedding_server() as running:
        yield running


@pytest.mark.parametrize("body", EMBEDDINGS.values(), ids=EMBEDDINGS.keys())
async def test_embeddings_are_openais(embedding: Server, body: dict[str, Any]) -> None:
    answer = await embedding.client.post("/v1/embeddings", json={"model": EMBEDDER} | body)
    assert answer.status_code == 200
    assert_valid("CreateEmbeddingResponse", answer.json())


FAILURES: dict[str, tuple[str, str, dict[str, Any], int]] = {
    # OpenAI says 400 to a wrong field; ours is 422, in OpenAI's envelope.
    "a wrong field": ("POST", "/v1/chat/completions", chat_body(n=0), 422),
    "a missing field": ("POST", "/v1/completions", {"model": MODEL}, 422),
    "not offered": ("POST", "/v1/chat/completions", chat_body(audio={}), 400),
    "a wrong schema": (
        "POST",
        "/v1/chat/completions",
        chat_body(structured_outputs={"json": {"$ref": "http://x"}}),
        400,
    ),
    "no model": ("POST", "/v1/chat/completions", chat_body(model="nope"), 404),
    "no route": ("POST", "/v1/nothing", {}, 404),
    "no method": ("DELETE", "/v1/chat/completions", {}, 405),
    "an engine's failure": ("POST", "/v1/chat/completions", chat_body(script(fail_at=1)), 500),
}


@pytest.mark.parametrize(("method", "path", "body", "status"), FAILURES.values(), ids=FAILURES.keys())
async def test_an_error_is_one_of_openais(
    shared: Server, method: str, path: str, body: dict[str, Any], status: int
) -> None:
    answer = await shared.client.request(method, path, json=body)
    assert answer.status_code == status
    assert_valid("ErrorResponse", answer.json())


async def test_an_error_within_a_stream_is_one_of_openais(shared: Server) -> None:
    for path, body in (
        ("/v1/chat/completions", chat_body(script(fail_at=2, tokens=3), stream=True)),
        ("/v1/completions", {"model": MODEL, "prompt": script(fail_at=2, tokens=3), "stream": True}),
    ):
        answer = await shared.client.post(path, json=body)
        assert_valid("ErrorResponse", events(answer.text)[-1])


async def test_a_wrong_key_meets_openais_error(shared: Server) -> None:
    wrong = {"authorization": "Bearer sk-wrong"}
    answer = await shared.client.post("/v1/completions", json=COMPLETIONS["plain"], headers=wrong)
    assert answer.status_code == 401
    assert_valid("ErrorResponse", answer.json())


async def replies(server: Server, *, stream: bool) -> list[Any]:
    found = []
    for path, bodies in (("/v1/chat/completions", CHATS), ("/v1/completions", COMPLETIONS)):
        for body in bodies.values():
            answer = await server.client.post(path, json={"model": MODEL} | body | {"stream": stream})
            found += [one for one in events(answer.text) if one != "[DONE]"] if stream else [answer.json()]
    return found


@pytest.mark.parametrize("place", OURS)
async def test_every_extension_of_ours_is_one(shared: Server, embedding: Server, place: str) -> None:
    name = {
        "ChatCompletionResponseMessage": "CreateChatCompletionResponse",
        "ChatCompletionStreamResponseDelta": "CreateChatCompletionStreamResponse",
        "Embedding": "CreateEmbeddingResponse",
    }.get(place.partition(".")[0], place.partition(".")[0])
    if name == "CreateEmbeddingResponse":
        body = {"model": EMBEDDER, **EMBEDDINGS["base64"]}
        said = [(await embedding.client.post("/v1/embeddings", json=body)).json()]
    else:
        said = await replies(shared, stream=False) + await replies(shared, stream=True)
    assert any(validator(name).is_valid(one) and not validator(name, without=place).is_valid(one) for one in said)


REAL: dict[str, dict[str, Any]] = {
    "plain": {},
    "several choices": {"n": 2, "seed": 1},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "a required call": {"tools": TOOLS, "tool_choice": "required"},
    "JSON": {"response_format": {"type": "json_object"}},
}


@pytest.mark.model
@pytest.mark.parametrize("fields", REAL.values(), ids=REAL.keys())
async def test_the_real_models_answers_and_chunks_are_openais_too(vllm_server: Server, fields: dict[str, Any]) -> None:
    body = chat_body("Hello!", max_tokens=20) | fields
    plain = await vllm_server.client.post("/v1/chat/completions", json=body)
    assert_valid("CreateChatCompletionResponse", plain.json())
    for options in OPTIONS:
        streamed = await vllm_server.client.post("/v1/chat/completions", json=body | {"stream": True} | options)
        *chunks, done = events(streamed.text)
        assert done == "[DONE]"
        for chunk in chunks:
            assert_valid("CreateChatCompletionStreamResponse", chunk)


@pytest.mark.model
async def test_the_real_models_completions_are_openais_too(vllm_server: Server) -> None:
    body = {"model": MODEL, "prompt": ["The sea", "A river"], "n": 2, "seed": 1, "logprobs": 2, "echo": True}
    plain = await vllm_server.client.post("/v1/completions", json=body)
    assert_valid("CreateCompletionResponse", plain.json())
    streamed = await vllm_server.client.post("/v1/completions", json=body | {"stream": True})
    for chunk in events(streamed.text)[:-1]:
        assert_valid("CreateCompletionResponse", chunk)
