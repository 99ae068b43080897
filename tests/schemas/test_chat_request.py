"""What a chat request may hold, and what is said of what it may not."""

import string
from typing import Any

import pytest
from harness import MODEL, chat_body
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mulgil.api.body import BodyRules, validated
from mulgil.errors import MulgilError
from mulgil.schemas.base import RequestLimits
from mulgil.schemas.chat import ChatCompletionRequest, check_agreement, check_offered

LIMITS = RequestLimits(max_output_tokens=1_000, max_choices=16, max_messages=2_048)
RULES = BodyRules(max_bytes=2**21, max_depth=64, limits=LIMITS)
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ROLES = "'system', 'developer', 'user', 'assistant' or 'tool'"


def checked(body: dict[str, Any]) -> ChatCompletionRequest:
    """*body*, checked as the route checks it."""
    request = validated(ChatCompletionRequest, body, RULES)
    check_offered(body)
    check_agreement(request, LIMITS)
    return request


def refusal(body: dict[str, Any]) -> MulgilError:
    with pytest.raises(MulgilError) as refused:
        checked(body)
    return refused.value


def conversation(*messages: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": list(messages)}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


NUMBERS: list[tuple[str, Any, str, str]] = [
    ("temperature", -0.1, "decimal_below_min_value", ">= 0, but got -0.1"),
    ("temperature", 2.0001, "decimal_above_max_value", "<= 2, but got 2.0001"),
    ("temperature", 1e300, "decimal_above_max_value", "<= 2, but got 1e+300"),
    ("temperature", "1", "invalid_type", "expected a number, but got a string"),
    ("temperature", True, "invalid_type", "expected a number, but got a boolean"),
    ("temperature", [1], "invalid_type", "expected a number, but got an array"),
    ("temperature", {}, "invalid_type", "expected a number, but got an object"),
    ("top_p", -0.1, "decimal_below_min_value", ">= 0, but got -0.1"),
    ("top_k", -2, "integer_below_min_value", ">= -1, but got -2"),
    ("top_k", 1.5, "invalid_type", "expected an integer, but got a decimal number"),
    ("min_p", 1.1, "decimal_above_max_value", "<= 1, but got 1.1"),
    ("repetition_penalty", 0, "decimal_below_min_value", "> 0, but got 0"),
    ("min_tokens", -1, "integer_below_min_value", ">= 0, but got -1"),
    ("ignore_eos", 1, "invalid_type", "expected a boolean, but got an integer"),
    ("stop_token_ids", [1] * 65, "array_above_max_length", "at most 64 entries"),
    ("top_p", 1.5, "decimal_above_max_value", "<= 1, but got 1.5"),
    ("top_p", "0.5", "invalid_type", "expected a number, but got a string"),
    ("frequency_penalty", -2.1, "decimal_below_min_value", ">= -2, but got -2.1"),
    ("frequency_penalty", 2.1, "decimal_above_max_value", "<= 2, but got 2.1"),
    ("presence_penalty", -3, "decimal_below_min_value", ">= -2, but got -3"),
    ("presence_penalty", 3, "decimal_above_max_value", "<= 2, but got 3"),
    ("presence_penalty", False, "invalid_type", "expected a number, but got a boolean"),
    ("max_tokens", 0, "integer_below_min_value", ">= 1, but got 0"),
    ("max_tokens", -1, "integer_below_min_value", ">= 1, but got -1"),
    ("max_tokens", 1_001, "integer_above_max_value", "<= 1000, but got 1001"),
    ("max_tokens", 2**63, "integer_above_max_value", f"<= 1000, but got {2**63}"),
    ("max_tokens", "2", "invalid_type", "expected an integer, but got a string"),
    ("max_tokens", 1.5, "invalid_type", "expected an integer, but got a decimal number"),
    ("max_tokens", 2.0, "invalid_type", "expected an integer, but got a decimal number"),
    ("max_tokens", True, "invalid_type", "expected an integer, but got a boolean"),
    ("max_completion_tokens", 0, "integer_below_min_value", ">= 1, but got 0"),
    ("max_completion_tokens", 1_001, "integer_above_max_value", "<= 1000, but got 1001"),
    ("max_completion_tokens", "2", "invalid_type", "expected an integer, but got a string"),
    ("n", 0, "integer_below_min_value", ">= 1, but got 0"),
    ("n", -1, "integer_below_min_value", ">= 1, but got -1"),
    ("n", 17, "integer_above_max_value", "<= 16, but got 17"),
    ("n", 5_000_000, "integer_above_max_value", "<= 16, but got 5000000"),
    ("n", "3", "invalid_type", "expected an integer, but got a string"),
    ("n", 1.5, "invalid_type", "expected an integer, but got a decimal number"),
    ("n", True, "invalid_type", "expected an integer, but got a boolean"),
    ("n", [1], "invalid_type", "expected an integer, but got an array"),
    ("n", 1e30, "invalid_type", "expected an integer, but got a number beyond 64 bits"),
    ("seed", 2**63, "integer_above_max_value", f"<= {2**63 - 1}, but got {2**63}"),
    ("seed", "7", "invalid_type", "expected an integer, but got a string"),
    ("seed", 0.5, "invalid_type", "expected an integer, but got a decimal number"),
    ("stream", 1, "invalid_type", "expected a boolean, but got an integer"),
    ("stream", "true", "invalid_type", "expected a boolean, but got a string"),
    ("user", 5, "invalid_type", "expected a string, but got an integer"),
    ("user", "x" * 513, "string_above_max_length", "at most 512 characters"),
    ("model", None, "invalid_type", "expected a string, but got null"),
    ("model", "", "string_below_min_length", "at least 1 characters"),
    ("model", ["demo"], "invalid_type", "expected a string, but got an array"),
    ("stop", ["a"] * 5, "array_above_max_length", "at most 4 entries"),
    ("stop", ["a"] * 500_000, "array_above_max_length", "at most 4 entries"),
    ("stop", 5, "invalid_type", "expected an array, but got an integer"),
    ("stop", {"a": "b"}, "invalid_type", "expected an array, but got an object"),
    ("stream_options", [], "invalid_type", "expected an object, but got an array"),
    ("stream_options", {}, "invalid_value", "only allowed when 'stream' is true"),
    ("metadata", [], "invalid_type", "expected an object, but got an array"),
    ("metadata", {str(index): "x" for index in range(17)}, "array_above_max_length", "at most 16 entries"),
    ("metadata", {str(index): 1 for index in range(17)}, "array_above_max_length", "at most 16 entries"),
    ("messages", [], "array_below_min_length", "at least 1 entries"),
    ("messages", [user("x")] * 2_049, "array_above_max_length", "at most 2048 entries"),
    ("messages", "x", "invalid_type", "expected an array, but got a string"),
    ("messages", {"role": "user"}, "invalid_type", "expected an array, but got an object"),
    ("messages", None, "invalid_type", "expected an array, but got null"),
]


@pytest.mark.parametrize(("name", "value", "code", "reason"), NUMBERS, ids=lambda value: f"{value!s:.40}")
def test_a_wrong_value_is_refused_with_its_bound_and_what_was_sent(
    name: str, value: Any, code: str, reason: str
) -> None:
    error = refusal(chat_body(stream=False) | {name: value})
    assert (error.status, error.param, error.code) == (422, name, code)
    assert error.message.startswith(f"Invalid '{name}': ")
    assert reason in error.message


DEEPER: list[tuple[dict[str, Any], str, str, str]] = [
    ({"messages": [user("x")]}, "model", "missing_required_parameter", "'model'"),
    ({"model": MODEL}, "messages", "missing_required_parameter", "'messages'"),
    (chat_body(stop=""), "stop[0]", "string_below_min_length", "at least 1 characters"),
    (chat_body(stop=[""]), "stop[0]", "string_below_min_length", "at least 1 characters"),
    (chat_body(stop=["a", 1]), "stop[1]", "invalid_type", "expected a string, but got an integer"),
    (chat_body(stop=[None]), "stop[0]", "invalid_type", "expected a string, but got null"),
    (chat_body(stop=["x" * 1_025]), "stop[0]", "string_above_max_length", "at most 1024 characters"),
    (
        chat_body(stream=True, stream_options={"include_usage": "yes"}),
        "stream_options.include_usage",
        "invalid_type",
        "expected a boolean, but got a string",
    ),
    (chat_body(stream_options={"include_usage": True}), "stream_options", "invalid_value", "'stream' is true"),
    (chat_body(max_tokens=5, max_completion_tokens=6), "max_tokens", "invalid_value", "'max_completion_tokens'"),
    (chat_body(n=2, temperature=0), "n", "invalid_value", "'temperature' is 0"),
    (chat_body(metadata={"a": 1}), "metadata.a", "invalid_type", "expected a string, but got an integer"),
    (chat_body(metadata={"a": "x" * 513}), "metadata.a", "string_above_max_length", "at most 512 characters"),
    (chat_body(metadata={"k" * 65: "x"}), f"metadata.{'k' * 65}", "string_above_max_length", "at most 64 characters"),
    (conversation(user("x"), 1), "messages[1]", "invalid_type", "expected an object, but got an integer"),
    (conversation(None), "messages[0]", "invalid_type", "expected an object, but got null"),
    (conversation({"content": "x"}), "messages[0].role", "missing_required_parameter", "'messages[0].role'"),
    (
        conversation({"role": "wizard", "content": "x"}),
        "messages[0].role",
        "invalid_value",
        f"'wizard' is not one of {ROLES}",
    ),
    (conversation({"role": "function", "name": "f", "content": "x"}), "messages[0].role", "invalid_value", ROLES),
    (conversation({"role": 5, "content": "x"}), "messages[0].role", "invalid_type", "but got an integer instead"),
    (conversation({"role": None, "content": "x"}), "messages[0].role", "invalid_type", "but got null instead"),
    (
        conversation({"role": "r" * 33, "content": "x"}),
        "messages[0].role",
        "invalid_value",
        f"it is not one of {ROLES}",
    ),
    (conversation({"role": "user"}), "messages[0].content", "missing_required_parameter", "'messages[0].content'"),
    (conversation(user(None)), "messages[0].content", "missing_required_parameter", "'messages[0].content'"),
    (conversation({"role": "assistant"}), "messages[0].content", "missing_required_parameter", ""),
    (conversation({"role": "assistant", "tool_calls": []}), "messages[0].content", "missing_required_parameter", ""),
    (conversation(user(5)), "messages[0].content", "invalid_type", "a string or an array of content parts"),
    (conversation(user({"type": "text"})), "messages[0].content", "invalid_type", "a string or an array"),
    (chat_body(truncation="always"), "truncation", "invalid_value", "'always' is not one of 'auto' or 'disabled'"),
    (chat_body(truncation=True), "truncation", "invalid_type", "but got a boolean instead"),
    (conversation(user([])), "messages[0].content", "array_below_min_length", "at least 1 entries"),
    (conversation(user(["x"])), "messages[0].content[0]", "invalid_type", "expected an object, but got a string"),
    (
        conversation(user("x"), user([{"type": "text", "text": "x"}, {"type": "hologram"}])),
        "messages[1].content[1].type",
        "invalid_value",
        "'hologram' is not one of 'text'",
    ),
    (conversation(user([{"text": "x"}])), "messages[0].content[0].type", "missing_required_parameter", ""),
    (conversation(user([{"type": "text"}])), "messages[0].content[0].text", "missing_required_parameter", ""),
    (conversation(user([{"type": "text", "text": 5}])), "messages[0].content[0].text", "invalid_type", "a string"),
    (conversation(user([{"type": "refusal"}])), "messages[0].content[0].refusal", "missing_required_parameter", ""),
    (conversation(user("x") | {"name": 5}), "messages[0].name", "invalid_type", "expected a string"),
    (
        conversation({"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": {}}}]}),
        "messages[0].tool_calls[0].function.arguments",
        "invalid_type",
        "expected a string, but got an object",
    ),
    (
        conversation({"role": "tool", "content": "x"}),
        "messages[0].tool_call_id",
        "missing_required_parameter",
        "'messages[0].tool_call_id'",
    ),
    (
        conversation({"role": "tool", "content": "x", "tool_call_id": "call_1"}),
        "messages[0].tool_call_id",
        "invalid_value",
        "earlier assistant message",
    ),
    (
        conversation(
            {"role": "tool", "content": "x", "tool_call_id": "call_1"}, {"role": "assistant", "tool_calls": [CALL]}
        ),
        "messages[0].tool_call_id",
        "invalid_value",
        "earlier assistant message",
    ),
]


@pytest.mark.parametrize(
    ("body", "param", "code", "reason"), DEEPER, ids=[f"{index} {case[1]:.60}" for index, case in enumerate(DEEPER)]
)
def test_the_path_leads_to_the_field_that_is_wrong(body: dict[str, Any], param: str, code: str, reason: str) -> None:
    error = refusal(body)
    assert (error.status, error.param, error.code) == (422, param, code)
    assert reason in error.message


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "file-1"}},
    ],
    ids=lambda part: part["type"],
)
def test_a_part_that_a_text_model_cannot_read_is_refused_not_dropped(part: dict[str, Any]) -> None:
    error = refusal(conversation(user("x"), user([{"type": "text", "text": "what is this?"}, part])))
    assert (error.status, error.code, error.param) == (400, "unsupported_value", "messages[1].content[1].type")
    assert part["type"] in error.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
        ("chat_template", "{{ messages }}"),
        ("guided_json", {"type": "object"}),
        ("guided_regex", "a+"),
        ("moderation", {"model": "m", "policy": "block"}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy", "format": "wav"}),
        ("web_search_options", {}),
    ],
)
def test_what_this_server_does_not_have_is_refused_not_ignored(name: str, value: Any) -> None:
    error = refusal(chat_body(**{name: value}))
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", name)
    assert error.message.startswith(f"Unsupported parameter: '{name}' is not supported")


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"tool_choice": "none"},
        {"tool_choice": "auto"},
        {"function_call": "none", "functions": []},
        {"logprobs": False, "top_logprobs": 0, "logit_bias": {}},
        {"modalities": ["text"]},
        {"store": True, "service_tier": "auto", "verbosity": "low", "prompt_cache_key": "k", "safety_identifier": "s"},
        {"max_tokens": 5, "max_completion_tokens": 5},
        {"temperature": 0, "n": 1},
        {"temperature": 2, "top_p": 1, "frequency_penalty": -2, "presence_penalty": 2},
        {"temperature": 0.0, "top_p": 0, "seed": -(2**63)},
        {"n": 16, "seed": 2**63 - 1, "max_tokens": 1_000},
        {"stop": "\n"},
        {"stop": ["a", "b", "c", "d"]},
        {"stop": []},
        {"stop": ["x" * 1_024]},
        {"metadata": {"k" * 64: "v" * 512}},
        {"metadata": {str(index): "" for index in range(16)}},
        {"metadata": {}, "user": ""},
        {"stream": True, "stream_options": {"include_usage": None, "include_obfuscation": True}},
        {"stream": False, "stream_options": None},
    ],
    ids=lambda fields: f"{fields!s:.60}",
)
def test_what_asks_for_nothing_special_is_accepted(fields: dict[str, Any]) -> None:
    checked(chat_body(**fields))


@pytest.mark.parametrize(
    "messages",
    [
        [{"content": "before", "role": "user"}],
        [user("one"), user("two")],
        [{"role": "developer", "content": "x"}, {"role": "system", "content": "x"}, user("x")],
        [{"role": "assistant", "content": "x"}],
        [user("")],
        [user([{"type": "text", "text": ""}])],
        [user("x") | {"name": "ada"}, {"role": "assistant", "content": "x", "name": None}],
        [user("x") | {"anything": [1, {"else": None}]}],
        [user([{"type": "text", "text": "x", "prompt_cache_breakpoint": {}}])],
        [{"role": "assistant", "content": None, "tool_calls": [CALL]}],
        [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "call_1", "content": "x"}],
        [
            {"role": "assistant", "content": "", "tool_calls": [CALL, CALL | {"id": "call_2"}]},
            {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "x"}]},
            {"role": "tool", "tool_call_id": "call_1", "content": "x"},
        ],
        [{"role": "assistant", "content": "x", "reasoning_content": "hm", "annotations": [], "audio": {"id": "a"}}],
        [{"role": "assistant", "content": None, "refusal": "no"}],
        [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}],
        [user("x")] * 2_048,
    ],
    ids=lambda messages: f"{messages!s:.70}",
)
def test_these_conversations_are_accepted(messages: list[dict[str, Any]]) -> None:
    assert len(checked(conversation(*messages)).messages) == len(messages)


OPTIONAL = sorted(ChatCompletionRequest.known_fields() - {"model", "messages"})


@pytest.mark.parametrize("name", OPTIONAL)
def test_an_explicit_null_is_the_same_as_an_absent_field(name: str) -> None:
    assert checked(chat_body() | {name: None}) == checked(chat_body())


@pytest.mark.parametrize("name", ["name", "tool_calls", "tool_call_id", "refusal"])
def test_an_explicit_null_in_a_message_is_the_same_as_an_absent_field(name: str) -> None:
    assert checked(conversation(user("x") | {name: None})) == checked(conversation(user("x")))


def test_a_text_is_its_parts_run_together() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "refusal", "refusal": "no "}, {"type": "text", "text": "two"}]
    assert checked(conversation({"role": "assistant", "content": parts})).messages[0].text == "one no two"


@pytest.mark.parametrize(
    ("fields", "expected"), [({"stop": "x"}, ["x"]), ({"stop": ["x", "y"]}, ["x", "y"]), ({}, None)]
)
def test_one_stop_sequence_is_a_list_of_one(fields: dict[str, Any], expected: list[str] | None) -> None:
    assert checked(chat_body(**fields)).stop == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, None), ({"max_tokens": 3}, 3), ({"max_completion_tokens": 4}, 4), ({"max_tokens": None}, None)],
)
def test_the_token_limit_has_two_names(fields: dict[str, Any], expected: int | None) -> None:
    assert checked(chat_body(**fields)).output_tokens == expected


SECRET = "zqx-secret-prompt"
KEYED = ("metadata.", "logit_bias.", "chat_template_kwargs.", "structured_outputs.")
texts = st.text(alphabet=string.printable + "é한🌊", max_size=8) | st.just(SECRET * 3)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
messages = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(("system", "developer", "user", "assistant", "tool")) | values,
        "content": texts
        | st.lists(st.fixed_dictionaries({"type": st.just("text") | values, "text": texts | values}))
        | values,
        "tool_calls": st.lists(st.just(CALL) | values, max_size=3) | values,
        "tool_call_id": st.just("call_1") | values,
        "name": values,
    },
)


@hypothesis_settings(max_examples=300, deadline=None, database=None)
@given(
    st.fixed_dictionaries(
        {"model": st.just(MODEL) | values, "messages": st.lists(messages | values, max_size=3) | values},
        optional=dict.fromkeys(OPTIONAL, values),
    )
)
@example(conversation({"role": SECRET * 3, "content": SECRET}))
def test_whatever_stands_in_a_field_it_is_served_or_refused_in_few_words_of_our_own(body: dict[str, Any]) -> None:
    try:
        checked(body)
    except MulgilError as error:
        assert error.status in (400, 422)
        assert error.code
        assert error.param
        assert len(error.message) < 1_000
        # A key that clients choose is part of the path; nothing else of the body is repeated.
        assert SECRET not in error.message or error.param.startswith(KEYED)


@hypothesis_settings(max_examples=200, deadline=None, database=None)
@given(st.floats(-1, 3), st.integers(-1, 20))
def test_numbers_within_the_bounds_are_kept_and_others_refused(temperature: float, n: int) -> None:
    body = chat_body(temperature=temperature, n=n)
    if 0 <= temperature <= 2 and 1 <= n <= 16 and not (temperature == 0 and n > 1):
        request = checked(body)
        assert (request.temperature, request.n) == (temperature, n)
    else:
        assert refusal(body).param in ("temperature", "n")


@pytest.mark.parametrize(
    ("bias", "param", "code"),
    [
        ({"1": 101}, "logit_bias.1", "decimal_above_max_value"),
        ({"1": -100.5}, "logit_bias.1", "decimal_below_min_value"),
        ({"1": "5"}, "logit_bias.1", "invalid_type"),
        ({"abc": 1}, "logit_bias.abc", "invalid_value"),
        ({"-1": 5}, "logit_bias.-1", "invalid_value"),
        ({"1e3": 1}, "logit_bias.1e3", "invalid_value"),
        ([1], "logit_bias", "invalid_type"),
        ({str(token): 1 for token in range(1_025)}, "logit_bias", "array_above_max_length"),
    ],
)
def test_a_bias_is_a_number_from_minus_100_to_100_for_a_token_id(bias: Any, param: str, code: str) -> None:
    error = refusal(chat_body(logit_bias=bias))
    assert (error.status, error.param, error.code) == (422, param, code)


def test_more_min_tokens_than_max_tokens_is_a_contradiction() -> None:
    error = refusal(chat_body(min_tokens=6, max_tokens=5))
    assert (error.status, error.param, error.code) == (422, "min_tokens", "invalid_value")
