"""What the model thinks before it answers, plain and streamed."""

from typing import Any

import pytest
from harness import MODEL, Server, chat_body, script
from streams import chat_both_ways, deltas

THOUGHT = "The user 🌊 greets me, so I greet back."


@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"logprobs": True}, {"max_tokens": 4}, {"max_tokens": 10}])
@pytest.mark.parametrize("split", [False, True])
async def test_reasoning_comes_before_the_content_and_beside_it(
    shared: Server, fields: dict[str, Any], split: bool
) -> None:
    prompt = script(reasoning=THOUGHT, text="Hello there 👋", split_characters=split, gap=0.001)
    reply, chunks = await chat_both_ways(shared, prompt, **fields)
    for choice in reply["choices"]:
        message = choice["message"]
        assert THOUGHT.startswith(message["reasoning_content"])
        assert "Hello there 👋".startswith(message["content"])
        kinds = [next(iter(delta), "") for delta in deltas(chunks, choice["index"])[1:-1]]
        assert kinds == sorted(kinds, reverse=True), "reasoning_content, then content"


async def test_its_tokens_are_counted_exactly(shared: Server) -> None:
    reply, _ = await chat_both_ways(shared, script(reasoning="one two three", text="four five"), n=2)
    assert reply["usage"]["completion_tokens"] == 2 * 5
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2 * 3}


async def test_an_answer_that_is_cut_off_while_it_thinks_has_no_content(shared: Server) -> None:
    reply, _ = await chat_both_ways(shared, script(reasoning="one two three", text="four"), max_tokens=2)
    (choice,) = reply["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "",
        "refusal": None,
        "reasoning_content": "one two",
    }
    assert choice["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2


async def test_reasoning_may_end_in_a_call(shared: Server) -> None:
    prompt = script(reasoning="I must look it up", tool_calls=[{"name": "f", "arguments": {"a": 1}}])
    tools = [{"type": "function", "function": {"name": "f"}}]
    reply, _ = await chat_both_ways(shared, prompt, tools=tools)
    message = reply["choices"][0]["message"]
    assert message["reasoning_content"] == "I must look it up"
    assert message["content"] is None
    assert message["tool_calls"][0]["function"]["name"] == "f"
    assert reply["choices"][0]["finish_reason"] == "tool_calls"


async def test_logprobs_are_those_of_the_content_alone(shared: Server) -> None:
    reply, _ = await chat_both_ways(shared, script(reasoning="one two", text="three four"), logprobs=True)
    assert [one["token"] for one in reply["choices"][0]["logprobs"]["content"]] == ["three", " four"]


async def test_without_reasoning_there_is_no_field_for_it(shared: Server) -> None:
    reply, chunks = await chat_both_ways(shared, reasoning_effort="high", chat_template_kwargs={"thinking": True})
    assert reply["choices"][0]["message"].keys() == {"role", "content", "refusal"}
    assert "completion_tokens_details" not in reply["usage"]
    assert not any("reasoning_content" in delta for delta in deltas(chunks))


async def test_what_clients_send_back_of_it_is_accepted(shared: Server) -> None:
    reply, _ = await chat_both_ways(shared, script(reasoning="hm", text="yes"))
    messages = [{"role": "user", "content": "hi"}, reply["choices"][0]["message"], {"role": "user", "content": "go on"}]
    body = {"model": MODEL, "messages": messages}
    assert (await shared.client.post("/v1/chat/completions", json=body)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_an_option_of_the_template_that_clients_may_not_set_is_refused(shared: Server, stream: bool) -> None:
    body = chat_body(chat_template_kwargs={"add_generation_prompt": False}, stream=stream)
    answer = await shared.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "chat_template_kwargs.add_generation_prompt"
