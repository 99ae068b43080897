"""How likely each token was, plain and streamed."""

import re
from typing import Any

import pytest
from harness import Server, chat_body, events, script
from streams import chat_both_ways, deltas

EMOJI = "가족 👨‍👩‍👧‍👦 e\u0301 العربية 🌊"


def texts(choice: dict[str, Any]) -> str:
    return "".join(one["token"] for one in choice["logprobs"]["content"])


@pytest.mark.parametrize("seed", [1, 2, 3, None])
@pytest.mark.parametrize("fields", [{"n": 3}, {"n": 2, "max_tokens": 5}, {"stop": [" the", "it"]}])
@pytest.mark.parametrize("top", [0, 2, 20])
async def test_the_tokens_put_together_are_the_content_plain_and_streamed(
    shared: Server, seed: int | None, fields: dict[str, Any], top: int
) -> None:
    reply, _ = await chat_both_ways(shared, seed=seed, logprobs=True, top_logprobs=top, **fields)
    for choice in reply["choices"]:
        assert texts(choice) == choice["message"]["content"]
        for one in choice["logprobs"]["content"]:
            assert len(one["top_logprobs"]) == min(top, 3)
            assert one["bytes"] == list(one["token"].encode())
            assert one["logprob"] < 0


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("most", [1, 2, 3, 5, 8, 13, 21, 400])
async def test_a_token_that_is_part_of_a_character_has_no_text_until_the_character_is_whole(
    shared: Server, split: bool, most: int
) -> None:
    prompt = script(text=EMOJI, split_characters=split)
    reply, _ = await chat_both_ways(shared, prompt, logprobs=True, top_logprobs=1, max_tokens=most)
    (choice,) = reply["choices"]
    assert texts(choice) == choice["message"]["content"]
    assert EMOJI.startswith(texts(choice))
    # One entry for each token, those that became no character among them.
    assert len(choice["logprobs"]["content"]) == reply["usage"]["completion_tokens"]


@pytest.mark.parametrize("stop", ["thr", "two three", " four", "one"])
@pytest.mark.parametrize("split", [False, True])
async def test_of_a_stop_sequence_no_token_is_shown(shared: Server, stop: str, split: bool) -> None:
    prompt = script(text="one two three four", split_characters=split)
    reply, _ = await chat_both_ways(shared, prompt, logprobs=True, top_logprobs=2, stop=stop)
    content = reply["choices"][0]["message"]["content"]
    assert content == "one two three four".partition(stop)[0]
    assert texts(reply["choices"][0]) == content


async def test_an_impossible_token_has_a_number_that_json_has(shared: Server) -> None:
    for stream in (False, True):
        answer = await shared.chat(logprobs=True, top_logprobs=3, stream=stream)
        assert "Infinity" not in answer.text
        assert '"logprob":-9999.0' in answer.text
    reply, _ = await chat_both_ways(shared, logprobs=True, top_logprobs=3)
    for one in reply["choices"][0]["logprobs"]["content"]:
        assert [likely["logprob"] for likely in one["top_logprobs"]][-1] == -9999.0
        assert one["top_logprobs"][0] == {name: one[name] for name in ("token", "logprob", "bytes")}


async def test_likely_tokens_are_a_list_even_where_none_were_asked_for(shared: Server) -> None:
    reply, chunks = await chat_both_ways(shared, logprobs=True)
    told = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    for logprobs in (*told, reply["choices"][0]["logprobs"]):
        assert logprobs.keys() == {"content", "refusal"}
        assert logprobs["refusal"] is None
        assert all(one["top_logprobs"] == [] for one in logprobs["content"])


async def test_a_chunk_tells_only_of_the_tokens_that_it_brings(shared: Server) -> None:
    _, chunks = await chat_both_ways(shared, script(tokens=12, gap=0.005), logprobs=True, top_logprobs=2)
    for chunk in chunks:
        for choice in chunk["choices"]:
            told = choice["logprobs"]["content"] if choice["logprobs"] else []
            assert "".join(one["token"] for one in told) == choice["delta"].get("content", "")


@pytest.mark.parametrize("fields", [{}, {"logprobs": False}, {"logprobs": None, "top_logprobs": 0}])
async def test_nothing_is_told_that_was_not_asked_for(shared: Server, fields: dict[str, Any]) -> None:
    reply, chunks = await chat_both_ways(shared, **fields)
    assert reply["choices"][0]["logprobs"] is None
    assert all(choice["logprobs"] is None for chunk in chunks for choice in chunk["choices"])


async def test_an_answer_without_text_has_an_empty_list(shared: Server) -> None:
    answer = (await shared.chat(script(text=""), logprobs=True)).json()
    assert answer["choices"][0]["logprobs"] == {"content": [], "refusal": None}
    assert answer["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_likely_tokens_without_logprobs_are_a_contradiction(shared: Server, stream: bool) -> None:
    answer = await shared.chat(top_logprobs=2, stream=stream)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "top_logprobs")


async def test_usage_of_every_chunk_is_sent_only_when_asked_for(shared: Server) -> None:
    prompt = script(tokens=9, gap=0.005)
    options = {"continuous_usage_stats": True, "include_usage": True}
    *chunks, done = events((await shared.chat(prompt, n=2, stream=True, stream_options=options)).text)
    assert done == "[DONE]"
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 18
    assert len(set(counts)) > 3
    assert all(one["total_tokens"] == one["prompt_tokens"] + one["completion_tokens"] for one in map(usage_of, chunks))
    for options in ({"continuous_usage_stats": False}, {"include_usage": True}, {}):
        *chunks, _ = events((await shared.chat(prompt, stream=True, stream_options=options)).text)
        assert not any("usage" in chunk for chunk in chunks if chunk["choices"])


def usage_of(chunk: dict[str, Any]) -> dict[str, int]:
    usage: dict[str, int] = chunk["usage"]
    return usage


async def test_usage_of_every_chunk_comes_without_a_last_one_where_only_that_was_asked_for(shared: Server) -> None:
    options = {"continuous_usage_stats": True}
    *chunks, _ = events((await shared.chat(stream=True, stream_options=options)).text)
    assert all(chunk["choices"] and chunk["usage"] for chunk in chunks)


@pytest.mark.parametrize("asked", ["auto", "default", "flex", "scale", "priority", "fast", None])
async def test_the_tier_that_served_is_told_where_one_was_asked_for(shared: Server, asked: str | None) -> None:
    reply, _ = await chat_both_ways(shared, service_tier=asked)
    assert reply.get("service_tier") == ("default" if asked else None)
    assert ("service_tier" in reply) == bool(asked)


async def test_the_fingerprint_is_the_same_for_every_request(shared: Server) -> None:
    replies = [(await shared.chat(seed=seed)).json() for seed in (1, 2)]
    assert replies[0]["system_fingerprint"] == replies[1]["system_fingerprint"]
    assert re.fullmatch("fp_[0-9a-f]{10}", replies[0]["system_fingerprint"])


async def test_the_same_seed_says_the_same_and_another_seed_another(shared: Server) -> None:
    answers = [(await shared.chat(seed=seed, logprobs=True)).json()["choices"] for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]


async def test_a_delta_carries_either_text_or_nothing(shared: Server) -> None:
    body = chat_body(script(text=EMOJI, split_characters=True), logprobs=True, stream=True)
    *chunks, _ = events((await shared.client.post("/v1/chat/completions", json=body)).text)
    assert all(delta.get("content") != "" for delta in deltas(chunks)[1:])
