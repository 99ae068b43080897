"""Answers of a form: JSON, JSON by a schema, one of a few choices."""

from typing import Any

import jsonschema
import orjson
import pytest
from harness import Server
from streams import chat_both_ways, complete_both_ways

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 3, "maxLength": 9},
        "age": {"type": "integer", "minimum": 18, "maximum": 20},
        "size": {"type": "number", "minimum": 1.5, "maximum": 2.5},
        "role": {"enum": ["admin", "user"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
        "parent": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        "home": {"$ref": "#/$defs/place"},
    },
    "required": ["name", "age", "role", "home"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"city": {"const": "Seoul"}}, "required": ["city"]}},
}
SCHEMAS: list[dict[str, Any]] = [
    PERSON,
    {"type": "array", "items": {"type": "integer"}, "minItems": 3},
    {"type": "string", "minLength": 40},
    {"type": "integer", "maximum": -7},
    {"enum": [1, "two", None]},
    {"type": ["null", "string"]},
    {"oneOf": [{"type": "boolean"}]},
    {},
]


def by_schema(schema: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **fields}}


def content_of(choice: dict[str, Any]) -> Any:
    return orjson.loads(choice["message"]["content"])


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("schema", SCHEMAS)
async def test_an_answer_keeps_to_its_schema_whatever_strict_says(
    shared: Server, schema: dict[str, Any], seed: int
) -> None:
    for strict in (True, False, None):
        form = by_schema(schema, strict=strict)
        reply, _ = await chat_both_ways(shared, response_format=form, seed=seed, n=2)
        for choice in reply["choices"]:
            jsonschema.validate(content_of(choice), schema)
            assert choice["finish_reason"] == "stop"


async def test_an_answer_in_json_is_an_object(shared: Server) -> None:
    for form in ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "a"}}):
        reply, _ = await chat_both_ways(shared, response_format=form)
        assert isinstance(content_of(reply["choices"][0]), dict)


@pytest.mark.parametrize("schema", SCHEMAS)
async def test_both_ways_to_ask_for_a_schema_mean_the_same(shared: Server, schema: dict[str, Any]) -> None:
    one, _ = await chat_both_ways(shared, structured_outputs={"json": schema})
    other, _ = await chat_both_ways(shared, response_format=by_schema(schema or {"type": "string"}))
    jsonschema.validate(content_of(one["choices"][0]), schema)
    if schema:
        assert one["choices"] == other["choices"]


@pytest.mark.parametrize("choices", [["yes", "no"], ["물", "🌊 💧"], [""], ["a b c"]])
async def test_one_of_the_choices_is_the_answer(shared: Server, choices: list[str]) -> None:
    for seed in range(4):
        reply, _ = await chat_both_ways(shared, structured_outputs={"choice": choices}, seed=seed)
        assert reply["choices"][0]["message"]["content"] in choices
        completion = await complete_both_ways(shared, structured_outputs={"choice": choices}, seed=seed)
        assert completion["choices"][0]["text"] in choices


async def test_a_completion_keeps_to_a_schema_too(shared: Server) -> None:
    reply = await complete_both_ways(shared, ["a", "b"], structured_outputs={"json": PERSON}, n=2)
    for choice in reply["choices"]:
        jsonschema.validate(orjson.loads(choice["text"]), PERSON)


@pytest.mark.parametrize("asked", [{"regex": "a+"}, {"grammar": 'root ::= "a"'}])
@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_simulated_engine_cannot_follow_it_refuses(
    shared: Server, asked: dict[str, str], stream: bool
) -> None:
    answer = await shared.chat(structured_outputs=asked, stream=stream)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "unsupported_parameter"
    assert answer.json()["error"]["param"] == "structured_outputs"


SENSELESS: list[Any] = [
    {"type": "integer", "minimum": "five", "maximum": []},
    {"type": "integer", "minimum": 9, "maximum": 8},
    {"type": "number", "minimum": 1e308, "maximum": -1e308},
    {"type": "array", "minItems": "many", "items": 5},
    {"type": "array", "minItems": -3},
    {"type": "string", "minLength": {}, "maxLength": -1},
    {"type": {"a": "b"}},
    {"type": "object", "properties": ["a"], "required": "a"},
    {"properties": {"foo": "bar"}},
    {"anyOf": ["x"]},
    {"anyOf": {"a": 1}},
    {"enum": {}},
    {"$ref": "#/$defs/missing"},
    {"$ref": "#"},
    {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
]


@pytest.mark.parametrize("schema", SENSELESS)
async def test_a_schema_without_sense_is_not_the_servers_fault(shared: Server, schema: Any) -> None:
    reply, _ = await chat_both_ways(shared, response_format=by_schema(schema))
    assert reply["usage"]["completion_tokens"] > 0


@pytest.mark.timeout(10)
async def test_a_schema_that_holds_itself_many_times_over_comes_to_an_end(shared: Server) -> None:
    names = list("abcdefgh")
    schema = {"type": "object", "properties": {name: {"$ref": "#"} for name in names}, "required": names}
    reply, _ = await chat_both_ways(shared, response_format=by_schema(schema))
    assert content_of(reply["choices"][0]).keys() == set(names)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unusable_schema_is_refused_before_anything_is_sent(shared: Server, stream: bool) -> None:
    form = by_schema({"$ref": "https://example.com/x"})
    answer = await shared.chat(response_format=form, stream=stream)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json_schema"
    assert answer.json()["error"]["message"].startswith("Invalid schema for response_format 'answer'")


@pytest.mark.parametrize("most", [1, 2, 4])
async def test_a_form_that_is_cut_off_says_length(shared: Server, most: int) -> None:
    fields: dict[str, Any] = {"response_format": by_schema({"type": "array", "minItems": 9}), "max_tokens": most}
    reply, _ = await chat_both_ways(shared, '/simulate {"split_characters": true}', **fields)
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == most
