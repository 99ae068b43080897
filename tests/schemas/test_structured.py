"""What a chat request says about the answer's form and the template, and what may not be said."""

from typing import Any

import pytest
from checks import LIMITS, RULES, checked_chat, checked_completion, refused_chat, refused_completion
from harness import MODEL, chat_body

from mulgil.api.body import BodyRules
from mulgil.errors import InvalidSchemaError
from mulgil.schemas.base import RequestLimits
from mulgil.schemas.structured import check_schema

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


def by_schema(schema: Any, name: Any = "answer") -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}


FORMATS: list[tuple[Any, str, str, str]] = [
    ("json_object", "response_format", "invalid_type", "expected an object, but got a string"),
    ({}, "response_format.type", "missing_required_parameter", ""),
    ({"type": "xml"}, "response_format.type", "invalid_value", "'xml' is not one of 'text', 'json_object'"),
    ({"type": "json_schema"}, "response_format.json_schema", "missing_required_parameter", ""),
    ({"type": "json_schema", "json_schema": None}, "response_format.json_schema", "missing_required_parameter", ""),
    ({"type": "json_schema", "json_schema": "{}"}, "response_format.json_schema", "invalid_type", "an object"),
    (
        {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
        "response_format.json_schema.name",
        "missing_required_parameter",
        "",
    ),
    (by_schema(SCHEMA, ""), "response_format.json_schema.name", "string_below_min_length", "at least 1"),
    (by_schema(SCHEMA, "x" * 65), "response_format.json_schema.name", "string_above_max_length", "at most 64"),
    (by_schema(SCHEMA, "a b"), "response_format.json_schema.name", "invalid_value", "pattern"),
    (by_schema("object"), "response_format.json_schema.schema", "invalid_type", "expected an object"),
    (by_schema([SCHEMA]), "response_format.json_schema.schema", "invalid_type", "expected an object"),
    (
        {"type": "json_schema", "json_schema": {"name": "a", "strict": "true"}},
        "response_format.json_schema.strict",
        "invalid_type",
        "expected a boolean",
    ),
]


@pytest.mark.parametrize(
    ("form", "param", "code", "reason"), FORMATS, ids=[f"{index} {case[1]}" for index, case in enumerate(FORMATS)]
)
def test_a_wrong_response_format_is_named_with_what_is_wrong(form: Any, param: str, code: str, reason: str) -> None:
    error = refused_chat(chat_body(response_format=form))
    assert (error.status, error.param, error.code) == (422, param, code)
    assert reason in error.message


@pytest.mark.parametrize(
    "form",
    [
        {"type": "text"},
        {"type": "text", "json_schema": None},
        {"type": "json_object"},
        by_schema(SCHEMA),
        by_schema(None),
        by_schema({}),
        {"type": "json_schema", "json_schema": {"name": "a", "description": None, "strict": None}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": False}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True, "new": 1}},
    ],
)
def test_these_formats_are_accepted(form: dict[str, Any]) -> None:
    assert checked_chat(chat_body(response_format=form)).response_format is not None


CONSTRAINTS: list[tuple[Any, str, str, str]] = [
    ({}, "structured_outputs", "invalid_value", "exactly one of 'json', 'regex', 'choice' and 'grammar'"),
    ({"json": None}, "structured_outputs", "invalid_value", "exactly one of"),
    ({"json": SCHEMA, "regex": "a"}, "structured_outputs", "invalid_value", "exactly one of"),
    ({"choice": ["a"], "grammar": "root"}, "structured_outputs", "invalid_value", "exactly one of"),
    ({"regexp": "a"}, "structured_outputs.regexp", "invalid_value", "not permitted"),
    ({"regex": "a", "whitespace_pattern": ""}, "structured_outputs.whitespace_pattern", "invalid_value", ""),
    ({"regex": ""}, "structured_outputs.regex", "string_below_min_length", "at least 1 characters"),
    ({"grammar": ""}, "structured_outputs.grammar", "string_below_min_length", "at least 1 characters"),
    ({"regex": 1}, "structured_outputs.regex", "invalid_type", "expected a string"),
    ({"choice": []}, "structured_outputs.choice", "array_below_min_length", "at least 1 entries"),
    ({"choice": ["a"] * 1_025}, "structured_outputs.choice", "array_above_max_length", "at most 1024"),
    ({"choice": ["a", 1]}, "structured_outputs.choice[1]", "invalid_type", "expected a string"),
    ({"choice": "a"}, "structured_outputs.choice", "invalid_type", "expected an array"),
    ({"json": "{}"}, "structured_outputs.json", "invalid_type", "expected an object"),
    ([], "structured_outputs", "invalid_type", "expected an object"),
]


@pytest.mark.parametrize("route", ["chat", "completions"])
@pytest.mark.parametrize(
    ("asked", "param", "code", "reason"),
    CONSTRAINTS,
    ids=[f"{index} {case[1]}" for index, case in enumerate(CONSTRAINTS)],
)
def test_a_wrong_constraint_is_named_with_what_is_wrong(
    route: str, asked: Any, param: str, code: str, reason: str
) -> None:
    if route == "chat":
        error = refused_chat(chat_body(structured_outputs=asked))
    else:
        error = refused_completion({"model": MODEL, "prompt": "x", "structured_outputs": asked})
    assert (error.status, error.param, error.code) == (422, param, code)
    assert reason in error.message


@pytest.mark.parametrize(
    "asked", [{"json": SCHEMA}, {"json": {}}, {"regex": "a+"}, {"choice": ["a", ""]}, {"grammar": 'root ::= "a"'}]
)
def test_each_constraint_alone_is_accepted(asked: dict[str, Any]) -> None:
    with_nulls = dict.fromkeys(("json", "regex", "choice", "grammar")) | asked
    expected = checked_chat(chat_body(structured_outputs=asked))
    assert checked_chat(chat_body(structured_outputs=with_nulls)) == expected
    assert checked_completion({"model": MODEL, "prompt": "x", "structured_outputs": asked}).structured_outputs


def test_one_form_is_asked_for_not_two() -> None:
    error = refused_chat(chat_body(structured_outputs={"regex": "a"}, response_format={"type": "json_object"}))
    assert (error.status, error.param, error.code) == (422, "structured_outputs", "invalid_value")
    checked_chat(chat_body(structured_outputs={"regex": "a"}, response_format={"type": "text"}))


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


SCHEMAS = {
    "large": ({"description": "x" * LIMITS.max_schema_bytes}, "65536 are allowed"),
    "deep": (nested(33), "nested more than 32 levels deep"),
    "external": ({"$ref": "https://example.com/s.json#/x"}, "'$ref' may only point into the schema itself"),
    "relative": ({"$defs": {"a": {"$ref": "other.json"}}}, "'$ref' may only"),
    "empty": ({"allOf": [{"$ref": ""}]}, "'$ref' may only"),
    "recursive": ({"$recursiveRef": "x"}, "'$recursiveRef' may only"),
}


@pytest.mark.parametrize(("schema", "reason"), SCHEMAS.values(), ids=SCHEMAS.keys())
def test_a_schema_that_cannot_be_used_is_refused_in_the_words_that_clients_know(
    schema: dict[str, Any], reason: str
) -> None:
    error = refused_chat(chat_body(response_format=by_schema(schema)))
    assert (error.status, error.param, error.code) == (400, "response_format", "invalid_json_schema")
    assert error.message.startswith("Invalid schema for response_format 'answer': ")
    assert reason in error.message
    error = refused_chat(chat_body(structured_outputs={"json": schema}))
    assert (error.status, error.param, error.code) == (400, "structured_outputs.json", "invalid_json_schema")
    assert reason in error.message


@pytest.mark.parametrize(
    "schema",
    [
        nested(32),
        {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#"}}}},
        {"properties": {"$ref": {"type": "string"}}},
        {"description": "x" * (LIMITS.max_schema_bytes - 100)},
    ],
    ids=["deep", "recursive", "a property named $ref", "large"],
)
def test_a_schema_within_the_bounds_is_accepted(schema: dict[str, Any]) -> None:
    checked_chat(chat_body(response_format=by_schema(schema)))


@pytest.mark.parametrize("asked", [{"regex": "a" * 65_537}, {"grammar": "é" * 32_769}, {"choice": ["x" * 600] * 110}])
def test_a_constraint_that_is_too_large_is_refused(asked: dict[str, Any]) -> None:
    error = refused_chat(chat_body(structured_outputs=asked))
    assert (error.status, error.param, error.code) == (400, "structured_outputs", "invalid_json_schema")
    assert "65536 are allowed" in error.message


def test_a_schema_deeper_than_json_can_be_written_is_refused_as_too_deep() -> None:
    with pytest.raises(InvalidSchemaError, match="levels deep"):
        check_schema(nested(10_000), LIMITS, param="p")


@pytest.mark.parametrize("name", ["enable_thinking", "thinking", "reasoning_effort"])
@pytest.mark.parametrize("value", [True, 1, 0.5, "low"])
def test_clients_may_set_these_options_of_the_template(name: str, value: object) -> None:
    request = checked_chat(chat_body(chat_template_kwargs={name: value}))
    assert request.chat_template_kwargs == {name: value}


@pytest.mark.parametrize("name", ["add_generation_prompt", "tools", "chat_template", "x" * 1_000, ""])
def test_clients_may_not_set_other_options(name: str) -> None:
    error = refused_chat(chat_body(chat_template_kwargs={"thinking": True, name: "x"}))
    assert (error.status, error.code) == (400, "unsupported_parameter")
    assert error.param == f"chat_template_kwargs.{name[:64]}"


def test_the_operator_says_which_options_clients_may_set() -> None:
    rules = BodyRules(max_bytes=RULES.max_bytes, max_depth=64, limits=RequestLimits(template_options=("mood",)))
    assert checked_chat(chat_body(chat_template_kwargs={"mood": "good"}), rules).chat_template_kwargs
    assert refused_chat(chat_body(chat_template_kwargs={"thinking": True}), rules).status == 400


@pytest.mark.parametrize("value", [None, [], {}, ["a"]])
def test_an_option_of_the_template_is_a_plain_value(value: object) -> None:
    error = refused_chat(chat_body(chat_template_kwargs={"thinking": value}))
    assert (error.status, error.param) == (422, "chat_template_kwargs.thinking")
    assert error.code == "invalid_type"


def test_options_of_the_template_are_few() -> None:
    error = refused_chat(chat_body(chat_template_kwargs={str(i): 1 for i in range(17)}))
    assert (error.status, error.param, error.code) == (422, "chat_template_kwargs", "array_above_max_length")


@pytest.mark.parametrize(
    ("fields", "param", "code", "reason"),
    [
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value", "'logprobs' is true"),
        ({"top_logprobs": 3, "logprobs": False}, "top_logprobs", "invalid_value", "'logprobs' is true"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "integer_above_max_value", "<= 20, but got 21"),
        ({"top_logprobs": -1, "logprobs": True}, "top_logprobs", "integer_below_min_value", ">= 0, but got -1"),
        ({"logprobs": 1}, "logprobs", "invalid_type", "expected a boolean"),
        ({"reasoning_effort": "maximum"}, "reasoning_effort", "invalid_value", "'none', 'minimal', 'low'"),
        ({"reasoning_effort": 1}, "reasoning_effort", "invalid_type", "expected one of"),
        ({"service_tier": "gold"}, "service_tier", "invalid_value", "'auto', 'default', 'flex'"),
        ({"verbosity": "loud"}, "verbosity", "invalid_value", "'low', 'medium' or 'high'"),
        ({"safety_identifier": "x" * 129}, "safety_identifier", "string_above_max_length", "at most 128"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": 1}},
         "stream_options.continuous_usage_stats", "invalid_type", "expected a boolean"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named_with_what_is_wrong(fields: dict[str, Any], param: str, code: str, reason: str) -> None:
    error = refused_chat(chat_body(**fields))
    assert (error.status, error.param, error.code) == (422, param, code)
    assert reason in error.message


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": None}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_logprobs_are_told_only_when_asked_for(fields: dict[str, Any], asked: int | None) -> None:
    assert checked_chat(chat_body(**fields)).asked_logprobs == asked


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"])
@pytest.mark.parametrize("tier", ["auto", "default", "flex", "scale", "priority", "fast"])
def test_every_effort_and_tier_that_clients_know_is_accepted(effort: str, tier: str) -> None:
    checked_chat(chat_body(reasoning_effort=effort, service_tier=tier))
