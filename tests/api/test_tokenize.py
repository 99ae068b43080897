"""Tokens of texts and conversations, before anything is sent."""

from typing import Any

import pytest
from harness import MODEL, Server, chat_body, script

from mulgil.schemas.tokenize import MOST_TEXTS

TEXT = "water flows 물길 🌊 <|im_start|>\n\n  x"


async def tokenized(server: Server, **fields: Any) -> Any:
    reply = await server.client.post("/v1/tokenize", json=fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.fixture(params=["simulated", pytest.param("vllm", marks=pytest.mark.model)])
def either(request: pytest.FixtureRequest) -> Server:
    running: Server = request.getfixturevalue("vllm_server" if request.param == "vllm" else "shared")
    return running


async def test_tokens_and_back_is_the_text(either: Server) -> None:
    told = await tokenized(either, prompt=TEXT, return_token_strs=True)
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"]) > 5
    assert told["max_model_len"] == either.engine.max_model_len
    assert "".join(told["token_strs"]) == TEXT
    back = await either.client.post("/v1/detokenize", json={"tokens": told["tokens"], "model": MODEL})
    assert back.json() == {"prompt": TEXT}


async def test_a_conversation_has_as_many_tokens_as_it_is_charged(either: Server) -> None:
    body = chat_body(script("How long is this?", tokens=1), max_tokens=1)
    told = await tokenized(either, messages=body["messages"])
    usage = (await either.client.post("/v1/chat/completions", json=body)).json()["usage"]
    assert told["count"] == usage["prompt_tokens"]
    assert told["token_strs"] is None


async def test_a_text_longer_than_the_context_can_be_counted_too(either: Server) -> None:
    assert (await tokenized(either, prompt="water " * 9_000))["count"] > either.engine.max_model_len


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("tokenize", {}, "prompt"),
        ("tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("tokenize", {"prompt": 1}, "prompt"),
        ("tokenize", {"messages": []}, "messages"),
        ("detokenize", {}, "tokens"),
        ("detokenize", {"tokens": [2**31 - 1]}, "tokens"),
        ("detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
)
async def test_what_is_neither_is_refused_by_name(either: Server, path: str, body: Any, param: str) -> None:
    refused = await either.client.post(f"/v1/{path}", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, param)


async def test_a_model_that_is_not_served_or_a_missing_key_is_refused(shared: Server) -> None:
    for path, body in (("tokenize", {"prompt": "a"}), ("detokenize", {"tokens": [1]})):
        unknown = await shared.client.post(f"/v1/{path}", json={**body, "model": "nope"})
        assert unknown.json()["error"]["code"] == "model_not_found"
        keyless = await shared.client.post(f"/v1/{path}", json=body, headers={"authorization": ""})
        assert keyless.status_code == 401


async def test_texts_are_told_of_so_many_tokens_and_no_more(shared: Server) -> None:
    told = await tokenized(shared, prompt="a" * MOST_TEXTS, return_token_strs=True)
    assert len(told["token_strs"]) == MOST_TEXTS
    longer = {"prompt": "a" * (MOST_TEXTS + 1)}
    assert (await tokenized(shared, **longer))["count"] == MOST_TEXTS + 1
    refused = await shared.client.post("/v1/tokenize", json=longer | {"return_token_strs": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (422, "return_token_strs")
    back = await shared.client.post("/v1/detokenize", json={"tokens": told["tokens"]})
    assert back.json() == {"prompt": "a" * MOST_TEXTS}
    refused = await shared.client.post("/v1/detokenize", json={"tokens": [70] * (MOST_TEXTS + 1)})
    assert refused.json()["error"]["code"] == "array_above_max_length"


async def test_options_of_the_chat_template_are_those_that_a_chat_may_set(shared: Server) -> None:
    asked = {"messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "low"}
    for options, status in (({"enable_thinking": False}, 200), ({"chat_template": "x"}, 400), ({"thinking": [1]}, 422)):
        reply = await shared.client.post("/v1/tokenize", json={**asked, "chat_template_kwargs": options})
        assert reply.status_code == status
    assert reply.json()["error"]["param"] == "chat_template_kwargs.thinking"
