"""The tools of a chat request, and what is said of those that cannot be served."""

from typing import Any

import pytest
from checks import LIMITS, RULES, checked_chat, refused_chat
from harness import chat_body

from mulgil.api.body import BodyRules
from mulgil.schemas.base import RequestLimits


def function(name: Any = "f", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def allowed(*tools: Any, mode: Any = "auto") -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


NAMED = {"type": "function", "function": {"name": "f"}}
CUSTOM = {"type": "custom", "custom": {"name": "f"}}

TOOLS: list[tuple[Any, str, str, str]] = [
    ([], "tools", "array_below_min_length", "at least 1 entries"),
    ([function(f"f{i}") for i in range(129)], "tools", "array_above_max_length", "at most 128 entries"),
    ([1] * 129, "tools", "array_above_max_length", "at most 128 entries"),
    ("f", "tools", "invalid_type", "expected an array, but got a string"),
    ({}, "tools", "invalid_type", "expected an array, but got an object"),
    (["f"], "tools[0]", "invalid_type", "expected an object, but got a string"),
    ([function(), None], "tools[1]", "invalid_type", "expected an object, but got null"),
    ([{"function": {"name": "f"}}], "tools[0].type", "missing_required_parameter", "'tools[0].type'"),
    ([{"type": "retrieval"}], "tools[0].type", "invalid_value", "'retrieval' is not one of 'function' or 'custom'"),
    ([{"type": None}], "tools[0].type", "invalid_type", "but got null"),
    ([{"type": "function"}], "tools[0].function", "missing_required_parameter", "'tools[0].function'"),
    ([{"type": "function", "function": None}], "tools[0].function", "missing_required_parameter", ""),
    ([{"type": "function", "function": "f"}], "tools[0].function", "invalid_type", "expected an object"),
    ([{"type": "function", "function": {}}], "tools[0].function.name", "missing_required_parameter", ""),
    ([function(None)], "tools[0].function.name", "invalid_type", "expected a string, but got null"),
    ([function("")], "tools[0].function.name", "string_below_min_length", "at least 1 characters"),
    ([function("x" * 65)], "tools[0].function.name", "string_above_max_length", "at most 64 characters"),
    ([function("a b")], "tools[0].function.name", "invalid_value", "pattern"),
    ([function("날씨")], "tools[0].function.name", "invalid_value", "pattern"),
    ([function("f\n")], "tools[0].function.name", "invalid_value", "pattern"),
    ([function(description=1)], "tools[0].function.description", "invalid_type", "expected a string"),
    ([function(parameters="{}")], "tools[0].function.parameters", "invalid_type", "expected an object"),
    ([function(parameters=[])], "tools[0].function.parameters", "invalid_type", "expected an object"),
    ([function(strict="yes")], "tools[0].function.strict", "invalid_type", "expected a boolean"),
    ([function("a"), function("b"), function("a")], "tools[2].function.name", "invalid_value", "another tool"),
]


@pytest.mark.parametrize(
    ("tools", "param", "code", "reason"), TOOLS, ids=[f"{index} {case[3]:.50}" for index, case in enumerate(TOOLS)]
)
def test_a_wrong_tool_is_named_with_what_is_wrong(tools: Any, param: str, code: str, reason: str) -> None:
    error = refused_chat(chat_body(tools=tools))
    assert (error.status, error.param, error.code) == (422, param, code)
    assert reason in error.message


@pytest.mark.parametrize("tool", [CUSTOM, {"type": "custom"}, {"type": "custom", "function": {"name": "f"}}])
def test_a_custom_tool_is_refused_not_dropped(tool: dict[str, Any]) -> None:
    error = refused_chat(chat_body(tools=[function("a"), tool]))
    assert (error.status, error.param, error.code) == (400, "tools[1].type", "unsupported_value")


CHOICES: list[tuple[Any, str, str, str]] = [
    ("always", "tool_choice", "invalid_value", "'always' is not one of 'none', 'auto' or 'required'"),
    ("", "tool_choice", "invalid_value", "is not one of"),
    (5, "tool_choice", "invalid_type", "expected 'none', 'auto', 'required' or an object"),
    (True, "tool_choice", "invalid_type", "expected 'none', 'auto', 'required' or an object"),
    (["auto"], "tool_choice", "invalid_type", "expected 'none', 'auto', 'required' or an object"),
    ({}, "tool_choice.function", "missing_required_parameter", ""),
    ({"type": "function"}, "tool_choice.function", "missing_required_parameter", ""),
    ({"type": "function", "function": {}}, "tool_choice.function.name", "missing_required_parameter", ""),
    ({"type": "function", "function": {"name": 5}}, "tool_choice.function.name", "invalid_type", "a string"),
    ({"type": "function", "function": {"name": "f g"}}, "tool_choice.function.name", "invalid_value", "pattern"),
    ({"type": "function", "function": {"name": "g"}}, "tool_choice.function.name", "invalid_value", "not the name"),
    ({"type": "mcp"}, "tool_choice.type", "invalid_value", "is not one of"),
    ({"type": "allowed_tools"}, "tool_choice.allowed_tools", "missing_required_parameter", ""),
    (allowed(), "tool_choice.allowed_tools.tools", "array_below_min_length", "at least 1 entries"),
    (allowed(*[NAMED] * 129), "tool_choice.allowed_tools.tools", "array_above_max_length", "at most 128"),
    (allowed(NAMED, mode="none"), "tool_choice.allowed_tools.mode", "invalid_value", "'auto' or 'required'"),
    (allowed(NAMED, mode=None), "tool_choice.allowed_tools.mode", "invalid_type", "but got null"),
    (allowed("f"), "tool_choice.allowed_tools.tools[0]", "invalid_type", "expected an object"),
    (
        allowed(NAMED, {"type": "function", "function": {"name": "g"}}),
        "tool_choice.allowed_tools.tools[1].function.name",
        "invalid_value",
        "is not the name of one of the 'tools'",
    ),
    (allowed({"type": "function"}), "tool_choice.allowed_tools.tools[0].function", "missing_required_parameter", ""),
]


@pytest.mark.parametrize(
    ("choice", "param", "code", "reason"),
    CHOICES,
    ids=[f"{index} {case[1]:.60}" for index, case in enumerate(CHOICES)],
)
def test_a_wrong_tool_choice_is_named_with_what_is_wrong(choice: Any, param: str, code: str, reason: str) -> None:
    error = refused_chat(chat_body(tools=[function()], tool_choice=choice))
    assert (error.status, error.param, error.code) == (422, param, code)
    assert reason in error.message


@pytest.mark.parametrize(
    ("choice", "param"),
    [(CUSTOM, "tool_choice.type"), (allowed(NAMED, CUSTOM), "tool_choice.allowed_tools.tools[1].type")],
)
def test_the_choice_of_a_custom_tool_is_refused(choice: dict[str, Any], param: str) -> None:
    error = refused_chat(chat_body(tools=[function()], tool_choice=choice))
    assert (error.status, error.param, error.code) == (400, param, "unsupported_value")


@pytest.mark.parametrize("choice", ["required", NAMED, allowed(NAMED), allowed(NAMED, mode="required"), CUSTOM])
def test_a_choice_without_tools_is_refused(choice: Any) -> None:
    error = refused_chat(chat_body(tool_choice=choice))
    assert (error.status, error.param, error.code) == (422, "tool_choice", "invalid_value")
    assert "'tools'" in error.message


@pytest.mark.parametrize(
    ("choice", "offered", "must"),
    [
        (None, ["f", "g"], False),
        ("auto", ["f", "g"], False),
        ("none", [], False),
        ("required", ["f", "g"], True),
        (NAMED, ["f", "g"], "f"),
        ({"function": {"name": "g"}}, ["f", "g"], "g"),
        (allowed(NAMED), ["f"], False),
        (allowed(NAMED, mode="required"), ["f"], True),
        (allowed(NAMED, NAMED, {"type": "function", "function": {"name": "g"}}), ["f", "g"], False),
    ],
)
def test_a_choice_says_what_is_offered_and_whether_it_must_be_called(
    choice: Any, offered: list[str], must: str | bool
) -> None:
    request = checked_chat(chat_body(tools=[function("f"), function("g")], tool_choice=choice))
    assert [one.name for one in request.offered] == offered
    assert request.must_call == must


@pytest.mark.parametrize(
    "tool",
    [
        function("a-Z_09"),
        function("x" * 64),
        function(description=None, parameters=None, strict=None),
        function(parameters={}, strict=True),
        function(parameters={"type": "object", "properties": {"$ref": {"type": "string"}}}),
        function(parameters={"$defs": {"a": {}}, "properties": {"x": {"$ref": "#/$defs/a"}}}),
        function(anything=[1]) | {"else": None},
    ],
)
def test_these_tools_are_accepted(tool: dict[str, Any]) -> None:
    assert len(checked_chat(chat_body(tools=[tool])).offered) == 1


@pytest.mark.parametrize("value", [True, False, None])
def test_parallel_calls_may_be_allowed_forbidden_or_left_open(value: bool | None) -> None:
    assert checked_chat(chat_body(parallel_tool_calls=value)).parallel_tool_calls is value


def test_parallel_calls_are_a_boolean() -> None:
    error = refused_chat(chat_body(tools=[function()], parallel_tool_calls="no"))
    assert (error.status, error.param, error.code) == (422, "parallel_tool_calls", "invalid_type")


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"description": "x" * LIMITS.max_schema_bytes}, "65536 are allowed"),
        (deep(33), "nested more than 32 levels deep"),
        ({"$ref": "https://example.com/schema.json"}, "'$ref' may only point into the schema itself"),
        ({"properties": {"x": {"items": [{"$ref": "file:///etc/passwd"}]}}}, "'$ref' may only"),
        ({"$dynamicRef": "other#x"}, "'$dynamicRef' may only"),
    ],
    ids=["large", "deep", "$ref", "$ref within", "$dynamicRef"],
)
def test_parameters_that_are_no_schema_of_their_own_are_refused_by_their_functions_name(
    parameters: dict[str, Any], reason: str
) -> None:
    error = refused_chat(chat_body(tools=[function("a"), function("search", parameters=parameters)]))
    assert (error.status, error.code) == (400, "invalid_json_schema")
    assert error.param == "tools[1].function.parameters"
    assert error.message.startswith("Invalid schema for tools[1].function.parameters 'search': ")
    assert reason in error.message


def test_the_bounds_of_the_settings_hold() -> None:
    rules = BodyRules(max_bytes=RULES.max_bytes, max_depth=64, limits=RequestLimits(max_tools=1, max_schema_bytes=10))
    assert "at most 1 entries" in refused_chat(chat_body(tools=[function("a"), function("b")]), rules).message
    large = refused_chat(chat_body(tools=[function(parameters={"type": "object"})]), rules)
    assert "10 are allowed" in large.message
