"""What a completion request may hold, and what is said of what it may not."""

from typing import Any

import pytest
from checks import RULES, checked_completion, refused_completion
from harness import MODEL
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mulgil.api.body import BodyRules
from mulgil.errors import MulgilError
from mulgil.schemas.base import RequestLimits
from mulgil.schemas.completions import CompletionRequest

SECRET = "zqx-secret-prompt"


def completion(prompt: Any = "x", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, **fields}


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("x", ["x"]),
        (["x"], ["x"]),
        (["x", "y", ""], ["x", "y", ""]),
        ([1, 2, 0], [[1, 2, 0]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        ([2**31 - 1], [[2**31 - 1]]),
        (["x"] * 128, ["x"] * 128),
        ([[1]] * 128, [[1]] * 128),
    ],
)
def test_a_prompt_is_a_text_several_token_ids_or_several_of_them(prompt: Any, prompts: list[Any]) -> None:
    assert checked_completion(completion(prompt)).prompts == prompts


@pytest.mark.parametrize("count", [129, 1_000, 100_000])
@pytest.mark.parametrize("one", ["x", [1], [[]]])
def test_more_prompts_than_the_server_allows_are_refused(one: Any, count: int) -> None:
    error = refused_completion(completion([one] * count))
    assert (error.status, error.param, error.code) == (422, "prompt", "array_above_max_length")
    assert "at most 128 entries" in error.message


def test_a_prompt_of_many_token_ids_is_not_many_prompts() -> None:
    assert len(checked_completion(completion([1] * 1_000)).prompts) == 1


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        5,
        {},
        {"text": SECRET},
        True,
        [],
        [[]],
        [[1], []],
        [None],
        [SECRET, None],
        [SECRET, 1],
        [1, SECRET],
        [1, [1]],
        [[1], 1],
        [[1], SECRET],
        [True],
        [1, True],
        [[False]],
        [1.5],
        [[1.0]],
        [-1],
        [[1, -1]],
        [2**31],
        [2**40],
        [[SECRET]],
        [[[1]]],
        [{"text": SECRET}],
    ],
)
def test_anything_else_is_no_prompt(prompt: Any) -> None:
    error = refused_completion(completion(prompt))
    assert (error.status, error.param, error.code) == (422, "prompt", "invalid_value")
    assert "token ids" in error.message
    assert SECRET not in error.message


FIELDS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"max_tokens": 0}, "max_tokens", "invalid_value", "may only be 0 when 'echo' is true"),
    ({"max_tokens": 0, "echo": False}, "max_tokens", "invalid_value", "may only be 0 when 'echo' is true"),
    ({"max_tokens": -1}, "max_tokens", "integer_below_min_value", ">= 0, but got -1"),
    ({"max_tokens": 32_769}, "max_tokens", "integer_above_max_value", "<= 32768, but got 32769"),
    ({"max_tokens": "5"}, "max_tokens", "invalid_type", "expected an integer"),
    ({"echo": 1}, "echo", "invalid_type", "expected a boolean"),
    ({"logprobs": True}, "logprobs", "invalid_type", "expected an integer, but got a boolean"),
    ({"logprobs": -1}, "logprobs", "integer_below_min_value", ">= 0, but got -1"),
    ({"logprobs": 21}, "logprobs", "integer_above_max_value", "<= 20, but got 21"),
    ({"n": 0}, "n", "integer_below_min_value", ">= 1, but got 0"),
    ({"n": 17}, "n", "integer_above_max_value", "<= 16, but got 17"),
    ({"n": 2, "temperature": 0}, "n", "invalid_value", "'temperature' is 0"),
    ({"best_of": 0}, "best_of", "integer_below_min_value", ">= 1, but got 0"),
    ({"best_of": 17}, "best_of", "integer_above_max_value", "<= 16, but got 17"),
    ({"best_of": 2, "n": 3}, "best_of", "invalid_value", "at least 'n', which is 3"),
    ({"best_of": 2, "stream": True}, "best_of", "invalid_value", "must be 'n' when 'stream' is true"),
    ({"min_tokens": 6, "max_tokens": 5}, "min_tokens", "invalid_value", "more than the 5 tokens"),
    ({"stream_options": {}}, "stream_options", "invalid_value", "'stream' is true"),
    ({"user": "x" * 513}, "user", "string_above_max_length", "at most 512 characters"),
    ({"stop": ["a"] * 5}, "stop", "array_above_max_length", "at most 4 entries"),
    ({"model": ""}, "model", "string_below_min_length", "at least 1 characters"),
    ({"seed": 0.5}, "seed", "invalid_type", "expected an integer"),
    ({"logit_bias": {"x": 1}}, "logit_bias.x", "invalid_value", "pattern"),
]


@pytest.mark.parametrize(
    ("fields", "param", "code", "reason"), FIELDS, ids=[f"{index} {case[3]:.50}" for index, case in enumerate(FIELDS)]
)
def test_a_wrong_field_is_named_with_what_is_wrong(fields: dict[str, Any], param: str, code: str, reason: str) -> None:
    error = refused_completion(completion() | fields)
    assert (error.status, error.param, error.code) == (422, param, code)
    assert reason in error.message


@pytest.mark.parametrize("name", ["model", "prompt"])
def test_what_is_missing_is_named(name: str) -> None:
    body = completion()
    del body[name]
    error = refused_completion(body)
    assert (error.status, error.param, error.code) == (422, name, "missing_required_parameter")


@pytest.mark.parametrize("suffix", ["x", ["x"], 5])
def test_a_suffix_is_refused_not_ignored(suffix: object) -> None:
    error = refused_completion(completion(suffix=suffix))
    assert (error.status, error.param, error.code) == (400, "suffix", "unsupported_parameter")


@pytest.mark.parametrize("suffix", ["", None])
def test_an_empty_suffix_asks_for_nothing(suffix: object) -> None:
    assert checked_completion(completion(suffix=suffix)) == checked_completion(completion())


@pytest.mark.parametrize("name", sorted(CompletionRequest.known_fields() - {"model", "prompt"}))
def test_an_explicit_null_is_the_same_as_an_absent_field(name: str) -> None:
    assert checked_completion(completion() | {name: None}) == checked_completion(completion())


@pytest.mark.parametrize(
    ("fields", "choices", "logprobs"),
    [
        ({}, 1, None),
        ({"n": 3}, 3, None),
        ({"n": 3, "best_of": 3}, 3, None),
        ({"best_of": 4}, 4, 0),
        ({"n": 2, "best_of": 4, "logprobs": 5}, 4, 5),
        ({"best_of": 1, "stream": True}, 1, None),
        ({"n": 2, "best_of": 2, "stream": True}, 2, None),
        ({"logprobs": 0}, 1, 0),
        ({"max_tokens": 0, "echo": True, "logprobs": 1}, 1, 1),
    ],
)
def test_best_of_says_how_many_are_made_and_needs_their_logprobs(
    fields: dict[str, Any], choices: int, logprobs: int | None
) -> None:
    request = checked_completion(completion(**fields))
    assert (request.choices, request.asked_logprobs) == (choices, logprobs)


def test_the_bounds_of_the_settings_hold_and_are_named() -> None:
    limits = RequestLimits(max_output_tokens=5, max_choices=2, max_prompts=1)
    rules = BodyRules(max_bytes=RULES.max_bytes, max_depth=64, limits=limits)
    for fields, bound in (
        ({"max_tokens": 6}, "<= 5"),
        ({"n": 3}, "<= 2"),
        ({"best_of": 3}, "<= 2"),
        ({"prompt": ["a", "b"]}, "at most 1 entries"),
    ):
        error = refused_completion(completion() | fields, rules)
        assert (error.status, error.param) == (422, next(iter(fields)))
        assert bound in error.message


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.just(SECRET),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@hypothesis_settings(max_examples=200, deadline=None, database=None)
@given(
    st.fixed_dictionaries(
        {"model": st.just(MODEL), "prompt": values | st.lists(st.just(SECRET) | st.integers(-1, 300))},
        optional=dict.fromkeys(sorted(CompletionRequest.known_fields() - {"model", "prompt"}), values),
    )
)
def test_whatever_stands_in_a_field_it_is_served_or_refused_without_repeating_it(body: dict[str, Any]) -> None:
    try:
        checked_completion(body)
    except MulgilError as error:
        assert error.status in (400, 422)
        assert error.code
        assert error.param
        assert SECRET not in error.message
