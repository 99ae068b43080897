"""Requests that are the same have the same key, and no others do."""

from typing import Any

import orjson
import pytest
from harness import MODEL
from hypothesis import given, settings
from hypothesis import strategies as st

from mulgil.api.body import BodyRules, parsed
from mulgil.api.chat import checked_chat
from mulgil.cache.key import WITHOUT_EFFECT, AnswerKeys, is_repeatable
from mulgil.cache.sealing import Seal
from mulgil.engine.base import TextRequest
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.schemas.completions import CompletionRequest

KEYS = AnswerKeys(Seal(b"the secret of the tests"))
texts = st.text(st.characters(codec="utf-8"), max_size=5)
fewer = settings(max_examples=50, deadline=None)
numbers = st.floats(0, 1, allow_subnormal=False).map(abs)  # -0.0 is 0.0
schemas = st.dictionaries(texts, st.none() | st.booleans() | st.integers(0, 9) | texts, max_size=3)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": texts}), min_size=1, max_size=3
)
CHAT: dict[str, st.SearchStrategy[Any]] = {
    "messages": messages,
    "temperature": numbers,
    "top_p": numbers,
    "frequency_penalty": numbers,
    "presence_penalty": numbers,
    "max_tokens": st.integers(1, 9),
    "n": st.integers(2, 4),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "stop": st.lists(texts.filter(bool), min_size=1, max_size=4),
    "logit_bias": st.dictionaries(st.integers(0, 99).map(str), numbers, min_size=1, max_size=3),
    "top_k": st.integers(-1, 9),
    "min_p": numbers,
    "repetition_penalty": st.floats(0.1, 2),
    "min_tokens": st.integers(1, 9),
    "ignore_eos": st.just(True),
    "stop_token_ids": st.lists(st.integers(0, 9), max_size=3),
    "structured_outputs": st.fixed_dictionaries({"json": schemas}),
    "logprobs": st.just(True),
    "response_format": st.sampled_from([{"type": "text"}, {"type": "json_object"}]),
    "reasoning_effort": st.sampled_from(["low", "high"]),
    "chat_template_kwargs": st.dictionaries(texts, st.booleans(), min_size=1, max_size=3),
    "tools": st.fixed_dictionaries(
        {"type": st.just("function"), "function": st.fixed_dictionaries({"name": st.just("f"), "parameters": schemas})}
    ).map(lambda tool: [tool]),
    "tool_choice": st.sampled_from(["none", "auto"]),
    "parallel_tool_calls": st.booleans(),
    "truncation": st.just("auto"),
}
NO_EFFECT: dict[str, st.SearchStrategy[Any]] = {
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({"include_usage": st.booleans()}),
    "user": texts,
    "safety_identifier": texts,
    "metadata": st.dictionaries(texts, texts, max_size=3),
    "prompt_cache_key": texts,
    "service_tier": st.just("flex"),
    "verbosity": st.just("low"),
}
OTHERS = {name: values for name, values in CHAT.items() if name != "messages"}
bodies = st.fixed_dictionaries({"messages": messages}, optional={**OTHERS, **NO_EFFECT})


def chat(body: dict[str, Any]) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate({"model": MODEL, **body})


def key(
    request: TextRequest,
    *,
    tenant: str = "acme",
    longest: int | None = None,
    keys: AnswerKeys = KEYS,
    fingerprint: str = "fp_1",
) -> str:
    return keys.key(tenant, request, fingerprint, longest)


def complete(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"model": MODEL, "prompt": "hello", **fields})


@fewer
@given(bodies, st.randoms(use_true_random=False))
def test_requests_that_are_the_same_have_the_same_key_in_whatever_order_they_are_written(
    body: dict[str, Any], chance: Any
) -> None:
    names = list(body)
    chance.shuffle(names)
    written = orjson.loads(orjson.dumps({name: body[name] for name in names}))
    assert key(chat(written)) == key(chat(body))


@fewer
@given(bodies, st.fixed_dictionaries({}, optional=NO_EFFECT))
def test_what_has_no_effect_on_the_answer_makes_no_other_key(body: dict[str, Any], others: dict[str, Any]) -> None:
    bare = {name: value for name, value in body.items() if name not in NO_EFFECT}
    assert key(chat({**bare, **others})) == key(chat(bare))


@fewer
@given(bodies, st.sampled_from(sorted(CHAT)), st.data())
def test_any_other_value_of_any_other_field_makes_another_key(
    body: dict[str, Any], name: str, data: st.DataObject
) -> None:
    other = {**body, name: data.draw(CHAT[name])}
    # By what is written: Python holds 1 and True to be the same.
    same = orjson.dumps(other[name], option=orjson.OPT_SORT_KEYS) == orjson.dumps(
        body.get(name), option=orjson.OPT_SORT_KEYS
    )
    if not same:
        assert key(chat(other)) != key(chat(body))


def test_every_field_of_a_chat_is_tried_above() -> None:
    left = {"model", "max_completion_tokens", "top_logprobs"}
    assert CHAT.keys() | NO_EFFECT.keys() | left == ChatCompletionRequest.model_fields.keys()
    assert NO_EFFECT.keys() == WITHOUT_EFFECT


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"max_tokens": 5}, {"max_completion_tokens": 5}),
        ({"n": 1}, {}),
        ({"logprobs": False}, {}),
        ({"logprobs": True}, {"logprobs": True, "top_logprobs": 0}),
        ({"ignore_eos": False, "min_tokens": 0}, {}),
        ({"stop": "x"}, {"stop": ["x"]}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"logit_bias": {"1": 1, "2": 2}}, {"logit_bias": {"2": 2, "1": 1}}),
        ({"seed": None}, {}),
        ({"truncation": "disabled"}, {}),
    ],
)
def test_what_means_the_same_has_the_same_key(one: dict[str, Any], other: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    assert key(chat(body | one)) == key(chat(body | other))


def test_tenants_models_fingerprints_secrets_and_defaults_of_tiers_are_kept_apart() -> None:
    request = complete(temperature=0)
    found = [
        key(request),
        key(request, tenant="acm"),
        key(request, tenant="other"),
        key(complete(temperature=0, model="other")),
        key(request, longest=5),
        key(request, fingerprint="fp_2"),
        key(request, keys=AnswerKeys(Seal(b"another secret"))),
        key(chat({"messages": [{"role": "user", "content": "hello"}], "temperature": 0})),
    ]
    assert len(set(found)) == len(found)
    assert key(complete(max_tokens=7), longest=5) == key(complete(max_tokens=7), longest=6)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "hellO"},
        {"prompt": ["hello"]},
        {"prompt": [1, 2]},
        {"prompt": [[1], [2]]},
        {"echo": True},
        {"logprobs": 0},
        {"logprobs": 1},
        {"best_of": 2},
        {"max_tokens": 1},
        {"max_tokens": 0, "echo": True},
    ],
)
def test_fields_of_completions_count_too(fields: dict[str, Any]) -> None:
    assert key(complete(**fields)) != key(complete())


def test_the_order_of_a_schema_counts_since_the_model_writes_in_it() -> None:
    one: dict[str, Any] = {"a": {}, "b": {}}
    other: dict[str, Any] = {"b": {}, "a": {}}
    assert key(complete(structured_outputs={"json": one})) != key(complete(structured_outputs={"json": other}))


def test_a_name_that_is_there_twice_is_the_same_one_to_the_cache_and_to_the_engine() -> None:
    rules = BodyRules(max_bytes=10_000, max_depth=20)
    raw = (
        b'{"model": "demo", "temperature": 1, "messages": [{"role": "user", "content": "of the cache"}],'
        b' "temperature": 0, "messages": [{"role": "user", "content": "of the engine", "content": "of both"}]}'
    )
    asked = checked_chat(parsed(raw, rules), rules)
    assert asked.messages[0].text == "of both"
    once = chat({"temperature": 0, "messages": [{"role": "user", "content": "of both"}]})
    assert key(asked) == key(once)


def test_who_is_greedy_or_has_a_seed_can_be_repeated() -> None:
    assert is_repeatable(complete(temperature=0))
    assert is_repeatable(complete(temperature=1, seed=0))
    assert not is_repeatable(complete())
    assert not is_repeatable(complete(temperature=0.1))
