"""`POST /v1/completions`: texts continued, plain and streamed."""

import asyncio
import re
from itertools import accumulate
from pathlib import Path
from typing import Any

import orjson
import pytest
from embeddings import balance, limited
from harness import MODEL, Server, events, eventually, hanging_up, raw_request, script, serving, settings
from streams import ASKED_USAGE, complete, complete_both_ways

from mulgil.engine.simulated_tokens import VOCABULARY, decode, encode

EMOJI = "물 flows 👨‍👩‍👧‍👦 e\u0301 العربية 🌊"


async def test_a_plain_reply_has_every_field_that_clients_read(shared: Server) -> None:
    prompt = script(text="Paris is it.")
    reply = (await complete(shared, prompt)).json()
    assert re.fullmatch("fp_[0-9a-f]{10}", reply.pop("system_fingerprint"))
    assert reply.pop("id").startswith("cmpl-")
    assert isinstance(reply.pop("created"), int)
    count = len(encode(prompt))
    assert reply == {
        "object": "text_completion",
        "model": MODEL,
        "choices": [{"index": 0, "text": "Paris is it.", "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": count,
            "completion_tokens": 3,
            "total_tokens": count + 3,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_a_stream_is_these_bytes(shared: Server) -> None:
    prompt = script(text="물길 flows", gap=0.02)
    count = len(encode(prompt))
    response = await complete(shared, prompt, **ASKED_USAGE)
    first = events(response.text)[0]
    head = (
        f'data: {{"id":"{first["id"]}","object":"text_completion","created":{first["created"]},"model":"{MODEL}",'
        f'"system_fingerprint":"{first["system_fingerprint"]}",'
    )
    assert response.text == (
        head + '"choices":[{"index":0,"text":"물길","logprobs":null,"finish_reason":null}]}\n\n'
        + head + '"choices":[{"index":0,"text":" flows","logprobs":null,"finish_reason":null}]}\n\n'
        + head + '"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}]}\n\n'
        + head + f'"choices":[],"usage":{{"prompt_tokens":{count},"completion_tokens":2,"total_tokens":{count + 2},'
        '"prompt_tokens_details":{"cached_tokens":0}}}\n\n'
        + "data: [DONE]\n\n"
    )  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2, None])
@pytest.mark.parametrize("prompt", ["hello", ["a", "b 🌊"], [256, 257], [[256], [257, 65]]])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 3, "max_tokens": 6},
        {"echo": True, "n": 2},
        {"echo": True, "logprobs": 2, "stop": [" the"]},
        {"logprobs": 0, "n": 2, "best_of": 2},
        {"echo": True, "logprobs": 1, "max_tokens": 0},
    ],
)
async def test_plain_and_streamed_say_the_same(shared: Server, prompt: Any, fields: dict[str, Any], seed: Any) -> None:
    reply = await complete_both_ways(shared, prompt, seed=seed, **fields)
    count = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    assert [choice["index"] for choice in reply["choices"]] == list(range(count * fields.get("n", 1)))
    assert all(choice["finish_reason"] in ("stop", "length") for choice in reply["choices"])


async def test_choice_j_of_prompt_i_has_the_index_i_times_n_plus_j(shared: Server) -> None:
    prompts, n = ["one", "two", "three"], 2
    together = await complete_both_ways(shared, prompts, n=n, seed=5)
    apart = [(await complete(shared, prompt, n=n, seed=5)).json() for prompt in prompts]
    assert [choice["text"] for choice in together["choices"]] == [
        choice["text"] for reply in apart for choice in reply["choices"]
    ]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert together["usage"][name] == sum(reply["usage"][name] for reply in apart)


async def test_token_ids_are_the_text_that_they_stand_for(shared: Server) -> None:
    by_text = await complete_both_ways(shared, [EMOJI, "water"], echo=True, logprobs=1)
    by_ids = await complete_both_ways(shared, [encode(EMOJI), encode("water")], echo=True, logprobs=1)
    assert by_text["choices"] == by_ids["choices"]
    assert by_text["usage"] == by_ids["usage"]
    assert by_ids["usage"]["prompt_tokens"] == len(encode(EMOJI)) + 1


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("most", [1, 2, 3, 7, 50])
async def test_logprobs_are_of_every_token_of_the_text(shared: Server, split: bool, most: int) -> None:
    prompt = script(text=EMOJI, split_characters=split)
    reply = await complete_both_ways(shared, prompt, logprobs=2, max_tokens=most)
    (choice,) = reply["choices"]
    told = choice["logprobs"]
    assert "".join(told["tokens"]) == choice["text"]
    assert told["text_offset"] == [0, *accumulate(map(len, told["tokens"]))][:-1]
    assert len(told["tokens"]) == len(told["token_logprobs"]) == reply["usage"]["completion_tokens"]
    assert all(isinstance(one, float) for one in told["token_logprobs"])
    # Two tokens of one text are one entry of an object.
    assert all(1 <= len(one) <= 2 for one in told["top_logprobs"])


async def test_an_echo_is_scored_from_its_second_token_on(shared: Server) -> None:
    prompt = f"{EMOJI} water flows"
    for most in (0, 5):
        reply = await complete_both_ways(shared, prompt, echo=True, logprobs=3, max_tokens=most)
        (choice,) = reply["choices"]
        told = choice["logprobs"]
        assert choice["text"].startswith(prompt)
        assert "".join(told["tokens"]) == choice["text"]
        assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
        assert None not in told["token_logprobs"][1:]
        assert told["text_offset"] == [0, *accumulate(map(len, told["tokens"]))][:-1]
        assert len(told["tokens"]) == len(encode(prompt)) + most
        assert -9999.0 in told["top_logprobs"][1].values()
    assert "Infinity" not in (await complete(shared, prompt, echo=True, logprobs=3)).text


async def test_a_prompt_that_is_only_scored_makes_no_text(shared: Server) -> None:
    reply = await complete_both_ways(shared, "water flows", echo=True, logprobs=1, max_tokens=0)
    (choice,) = reply["choices"]
    assert choice["text"] == "water flows"
    assert choice["finish_reason"] == "length"


async def test_an_echo_without_logprobs_has_none(shared: Server) -> None:
    reply = await complete_both_ways(shared, "water flows", echo=True, max_tokens=2)
    assert reply["choices"][0]["text"].startswith("water flows")
    assert reply["choices"][0]["logprobs"] is None


async def test_with_logprobs_0_only_the_made_token_is_told(shared: Server) -> None:
    reply = await complete_both_ways(shared, logprobs=0, max_tokens=3)
    told = reply["choices"][0]["logprobs"]
    assert [list(one) for one in told["top_logprobs"]] == [[token] for token in told["tokens"]]
    assert len(told["token_logprobs"]) == 3


def mean(choice: dict[str, Any]) -> float:
    scores: list[float] = choice["logprobs"]["token_logprobs"]
    return sum(scores) / len(scores)


@pytest.mark.parametrize(("n", "best_of"), [(1, 4), (2, 5), (3, 3)])
async def test_the_likeliest_are_picked_and_all_are_counted(shared: Server, n: int, best_of: int) -> None:
    prompts = ["a", "b"]
    every = (await complete(shared, prompts, n=best_of, logprobs=0, seed=1)).json()
    picked = (await complete(shared, prompts, n=n, best_of=best_of, logprobs=0, seed=1)).json()
    assert [choice["index"] for choice in picked["choices"]] == list(range(n * len(prompts)))
    assert picked["usage"] == every["usage"]
    for number in range(len(prompts)):
        made = every["choices"][number * best_of :][:best_of]
        kept = picked["choices"][number * n :][:n]
        assert sorted(map(mean, kept)) == sorted(map(mean, made))[-n:]
    silent = (await complete(shared, prompts, n=n, best_of=best_of, seed=1)).json()
    assert [one["text"] for one in silent["choices"]] == [one["text"] for one in picked["choices"]]
    assert all(one["logprobs"] is None for one in silent["choices"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "status", "param", "code"),
    [
        ({"suffix": "end"}, 400, "suffix", "unsupported_parameter"),
        ({"prompt": []}, 422, "prompt", "invalid_value"),
        ({"prompt": [[]]}, 422, "prompt", "invalid_value"),
        ({"prompt": [[1], []]}, 422, "prompt", "invalid_value"),
        ({"prompt": ""}, 422, "prompt", "invalid_value"),
        ({"prompt": ["a", ""]}, 422, "prompt", "invalid_value"),
        ({"prompt": [-1]}, 422, "prompt", "invalid_value"),
        ({"prompt": [VOCABULARY]}, 422, "prompt", "invalid_value"),
        ({"prompt": [[1], [2, VOCABULARY]]}, 422, "prompt", "invalid_value"),
        ({"prompt": [999_999_999]}, 422, "prompt", "invalid_value"),
        ({"prompt": [2**40]}, 422, "prompt", "invalid_value"),
        ({"prompt": ["a"] * 129}, 422, "prompt", "array_above_max_length"),
        ({"prompt": [1] * 8_192}, 400, "prompt", "context_length_exceeded"),
        ({"prompt": ["a", "word " * 9_000]}, 400, "prompt", "context_length_exceeded"),
        ({"max_tokens": 0}, 422, "max_tokens", "invalid_value"),
        ({"best_of": 2, "n": 3}, 422, "best_of", "invalid_value"),
        ({"model": "nope"}, 404, "model", "model_not_found"),
    ],
)
async def test_what_cannot_be_served_is_refused_before_anything_is_sent(
    shared: Server, *, fields: dict[str, Any], status: int, param: str, code: str, stream: bool
) -> None:
    body = {"model": MODEL, "prompt": "x", "stream": stream} | fields
    answer = await shared.client.post("/v1/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (status, param, code)


async def test_every_token_id_of_the_vocabulary_is_taken(shared: Server) -> None:
    ids = [one for one in range(VOCABULARY) if one < 0x80 or one >= 256]
    reply = await complete_both_ways(shared, ids, echo=True, max_tokens=1)
    assert reply["choices"][0]["text"].startswith(decode(ids))


async def test_ids_that_are_no_text_are_shown_as_replacement(shared: Server) -> None:
    reply = await complete_both_ways(shared, [0xFF, 0x61, 0xE2, 0x82], echo=True, logprobs=1, max_tokens=1)
    assert reply["choices"][0]["text"].startswith("\ufffda\ufffd")
    assert "".join(reply["choices"][0]["logprobs"]["tokens"]) == reply["choices"][0]["text"]


async def test_usage_of_every_chunk_is_sent_only_when_asked_for(shared: Server) -> None:
    options = {"continuous_usage_stats": True}
    *chunks, _ = events((await complete(shared, ["a", "b"], stream=True, stream_options=options)).text)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert all(chunk["choices"] for chunk in chunks)
    *chunks, last, _ = events((await complete(shared, ["a", "b"], **ASKED_USAGE)).text)
    assert not any("usage" in chunk for chunk in chunks)
    assert last["usage"]["completion_tokens"] == counts[-1]


async def test_a_failure_after_the_first_byte_is_an_error_event_and_no_done(shared: Server) -> None:
    response = await complete(shared, script(fail_at=2, tokens=5), stream=True)
    *chunks, last = events(response.text)
    assert last["error"]["code"] == "engine_error"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert "[DONE]" not in response.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_engine_accepts_is_a_real_status(shared: Server, stream: bool) -> None:
    assert (await complete(shared, script(fail_at=0), stream=stream)).status_code == 500


async def test_budgets_hold_the_sum_over_prompts_and_choices_and_settle_what_was_used(tmp_path: Path) -> None:
    async with serving(settings(config=limited(tmp_path, output_tokens_per_minute=60))) as server:
        # Three prompts of two choices of ten tokens are all there is.
        prompts = [script(tokens=4), "b", "c"]
        assert (await complete(server, prompts, n=2, max_tokens=11)).status_code == 429
        reply = (await complete(server, prompts, n=2, max_tokens=10)).json()
        used = await balance(server)
        assert (used.requests, used.held_tokens, used.concurrency) == (1, 0, 0)
        assert used.input_tokens == reply["usage"]["prompt_tokens"] == sum(len(encode(one)) for one in prompts)
        assert used.output_tokens == reply["usage"]["completion_tokens"] == 24


async def test_all_that_best_of_makes_is_held_and_charged(tmp_path: Path) -> None:
    async with serving(settings(config=limited(tmp_path, output_tokens_per_minute=100))) as server:
        assert (await complete(server, script(tokens=5), best_of=11, max_tokens=10)).status_code == 429
        reply = (await complete(server, script(tokens=5), best_of=10, max_tokens=10)).json()
        assert len(reply["choices"]) == 1
        assert reply["usage"]["completion_tokens"] == 50
        assert (await balance(server)).output_tokens == 50


async def test_hanging_up_on_many_prompts_pays_for_what_was_made_and_gives_the_rest_back(tmp_path: Path) -> None:
    async with serving(settings(config=limited(tmp_path, output_tokens_per_minute=10**6))) as server:
        prompts = [script(tokens=3_000, gap=0.002), *map(str, range(7))]
        body = {"model": MODEL, "prompt": prompts, "n": 2, "max_tokens": 3_000, "stream": True}
        async with hanging_up(server, raw_request(orjson.dumps(body), path="/v1/completions")) as reader:
            await reader.readuntil(b"\n\n")
            ((generation, _),) = server.mulgil.gateway._running._runs.values()
            await eventually(lambda: generation.snapshot.completion_tokens > 100)
            held = await balance(server)
            assert held.held_tokens + held.output_tokens == 16 * 3_000
        await eventually(lambda: server.mulgil.gateway.running == 0)
        used = await balance(server)
        assert used.output_tokens == generation.snapshot.completion_tokens
        assert used.input_tokens == sum(len(encode(one)) for one in prompts)
        assert (used.held_tokens, used.concurrency) == (0, 0)
        assert generation.snapshot.completion_tokens % 16 == 0


async def test_chat_and_completions_draw_on_one_budget(tmp_path: Path) -> None:
    async with serving(settings(config=limited(tmp_path, requests_per_minute=2))) as server:
        assert (await complete(server)).status_code == 200
        assert (await server.chat()).status_code == 200
        assert (await complete(server)).status_code == (await server.chat()).status_code == 429


async def test_completions_at_the_same_time_keep_apart(shared: Server) -> None:
    async def text(number: int) -> str:
        reply = (await complete(shared, f"prompt {number}", seed=number)).json()
        return str(reply["choices"][0]["text"])

    alone = [await text(number) for number in range(8)]
    assert await asyncio.gather(*map(text, range(8))) == alone
    assert len(set(alone)) == 8


async def test_the_key_and_the_content_type_are_checked_as_for_chat(shared: Server) -> None:
    body = {"model": MODEL, "prompt": "x"}
    no_key = await shared.client.post("/v1/completions", json=body, headers={"authorization": ""})
    assert no_key.status_code == 401
    form = await shared.client.post("/v1/completions", content=b"prompt=x")
    assert (form.status_code, form.json()["error"]["code"]) == (400, "unsupported_content_type")
    wrong_method = await shared.client.get("/v1/completions")
    assert (wrong_method.status_code, wrong_method.headers["allow"]) == (405, "POST")


async def test_without_max_tokens_a_completion_is_as_short_as_openais(shared: Server) -> None:
    prompt = script(tokens=200)
    usual = await shared.client.post("/v1/completions", json={"model": MODEL, "prompt": prompt})
    assert usual.json()["usage"]["completion_tokens"] == 16
    longer = await shared.client.post("/v1/completions", json={"model": MODEL, "prompt": prompt, "max_tokens": 90})
    assert longer.json()["usage"]["completion_tokens"] == 90
