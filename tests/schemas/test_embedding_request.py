"""What a request for embeddings may hold, and what is said of what it may not."""

import time
from typing import Any

import orjson
import pytest
from embeddings import EMBEDDER, embedding_body

from mulgil.api.body import BodyRules, validated
from mulgil.errors import MulgilError
from mulgil.schemas.base import RequestLimits
from mulgil.schemas.embedding import EmbeddingRequest

RULES = BodyRules(max_bytes=2**21, max_depth=64, limits=RequestLimits(max_embedding_inputs=10))
EITHER = "expected a string, an array of strings, or arrays of token ids"


def checked(body: dict[str, Any]) -> EmbeddingRequest:
    return validated(EmbeddingRequest, body, RULES)


def refusal(body: dict[str, Any]) -> MulgilError:
    with pytest.raises(MulgilError) as refused:
        checked(body)
    return refused.value


@pytest.mark.parametrize(
    ("given", "inputs", "paths"),
    [
        ("one text", ["one text"], ["input"]),
        (["one text"], ["one text"], ["input[0]"]),
        (["a", " ", "b"], ["a", " ", "b"], ["input[0]", "input[1]", "input[2]"]),
        ([5, 0, 7], [[5, 0, 7]], ["input"]),
        ([[5], [0, 7]], [[5], [0, 7]], ["input[0]", "input[1]"]),
        ([1] * 5_000, [[1] * 5_000], ["input"]),
        (["x"] * 10, ["x"] * 10, [f"input[{index}]" for index in range(10)]),
    ],
    ids=lambda value: f"{value!s:.40}",
)
def test_every_form_of_input_comes_down_to_a_list(given: Any, inputs: list[Any], paths: list[str]) -> None:
    request = checked(embedding_body(given))
    assert request.inputs == inputs
    assert [request.path(index) for index in range(len(inputs))] == paths


WRONG: list[tuple[Any, str, str, str]] = [
    ("", "input", "string_below_min_length", "at least 1 characters"),
    ([], "input", "array_below_min_length", "at least 1 entries"),
    (["a", "b", "c", ""], "input[3]", "string_below_min_length", "at least 1 characters"),
    ([[1], [2], []], "input[2]", "array_below_min_length", "at least 1 entries"),
    ([[]], "input[0]", "array_below_min_length", "at least 1 entries"),
    (["x"] * 11, "input", "array_above_max_length", "at most 10 entries"),
    ([[1]] * 11, "input", "array_above_max_length", "at most 10 entries"),
    (["a", 1], "input[1]", "invalid_type", "expected a string, but got an integer"),
    (["a", ["b"]], "input[1]", "invalid_type", "expected a string, but got an array"),
    ([1, "a"], "input[1]", "invalid_type", "expected an integer, but got a string"),
    ([1, [2]], "input[1]", "invalid_type", "expected an integer, but got an array"),
    ([[1], 2], "input[1]", "invalid_type", "expected an array, but got an integer"),
    ([[1], "a"], "input[1]", "invalid_type", "expected an array, but got a string"),
    ([["a"]], "input[0][0]", "invalid_type", "expected an integer, but got a string"),
    ([[1, True]], "input[0][1]", "invalid_type", "expected an integer, but got a boolean"),
    ([1, 2.0], "input[1]", "invalid_type", "expected an integer, but got a decimal number"),
    ([None], "input[0]", "invalid_type", "expected a string, but got null"),
    ([True], "input[0]", "invalid_type", "expected a string, but got a boolean"),
    ([{"text": "x"}], "input[0]", "invalid_type", "expected a string, but got an object"),
    ([-1], "input[0]", "integer_below_min_value", ">= 0, but got -1"),
    ([[2**31]], "input[0][0]", "integer_above_max_value", f"<= {2**31 - 1}, but got {2**31}"),
    (None, "input", "invalid_type", EITHER),
    (5, "input", "invalid_type", EITHER),
    ({"text": "x"}, "input", "invalid_type", EITHER),
]


@pytest.mark.parametrize(
    ("given", "param", "code", "reason"), WRONG, ids=[f"{index} {case[0]!s:.30}" for index, case in enumerate(WRONG)]
)
def test_a_wrong_input_is_refused_by_its_path_and_reason(given: Any, param: str, code: str, reason: str) -> None:
    error = refusal(embedding_body(given))
    assert (error.status, error.param, error.code) == (422, param, code)
    assert error.message.startswith(f"Invalid '{param}': ")
    assert reason in error.message


@pytest.mark.parametrize(
    ("name", "value", "code", "reason"),
    [
        ("model", "", "string_below_min_length", "at least 1 characters"),
        ("model", 5, "invalid_type", "expected a string"),
        ("encoding_format", "int8", "invalid_value", "'int8' is not one of 'float' or 'base64'"),
        ("encoding_format", 5, "invalid_type", "expected one of 'float' or 'base64'"),
        ("dimensions", 0, "integer_below_min_value", ">= 1, but got 0"),
        ("dimensions", 1.5, "invalid_type", "expected an integer"),
        ("dimensions", "8", "invalid_type", "expected an integer"),
        ("user", 5, "invalid_type", "expected a string"),
        ("user", "x" * 513, "string_above_max_length", "at most 512 characters"),
    ],
)
def test_any_other_wrong_field_is_refused_by_its_name(name: str, value: Any, code: str, reason: str) -> None:
    error = refusal(embedding_body("x") | {name: value})
    assert (error.status, error.param, error.code) == (422, name, code)
    assert reason in error.message


@pytest.mark.parametrize("name", ["model", "input"])
def test_a_missing_field_is_named(name: str) -> None:
    body = embedding_body("x")
    del body[name]
    error = refusal(body)
    assert (error.status, error.param, error.code) == (422, name, "missing_required_parameter")


def test_null_is_as_good_as_absent() -> None:
    bare = checked(embedding_body("x"))
    assert checked(embedding_body("x", encoding_format=None, dimensions=None, user=None)) == bare
    assert (bare.model, bare.encoding_format, bare.dimensions) == (EMBEDDER, None, None)


HOSTILE: dict[str, Any] = {
    "100,000 empty lists": [[]] * 100_000,
    "100,000 lists": [[1]] * 100_000,
    "500,000 empty strings": [""] * 500_000,
    "400,000 wrong numbers": [0.5] * 400_000,
    "wrong only at its end": [1] * 500_000 + ["x"],
    "100,000 objects": [{}] * 100_000,
    "ten long lists of texts": [["x"] * 40_000] * 10,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_body_is_refused_in_less_than_100_ms(kind: str) -> None:
    body = orjson.loads(orjson.dumps(embedding_body(HOSTILE[kind])))
    took = []
    for _ in range(3):
        started = time.perf_counter()
        assert refusal(body).status == 422
        took.append(time.perf_counter() - started)
    assert min(took) < 0.1
