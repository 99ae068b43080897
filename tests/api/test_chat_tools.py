"""Function calls, plain and streamed."""

from typing import Any

import orjson
import pytest
from harness import Server, chat_body, events, script
from streams import chat_both_ways, deltas

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Seoul", "Busan"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "units": {"type": "array", "items": {"$ref": "#/$defs/unit"}, "minItems": 2},
    },
    "required": ["city", "days"],
    "$defs": {"unit": {"const": "C"}},
}


def tool(name: str, parameters: dict[str, Any] | None = PARAMETERS) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("weather"), tool("time", None)]
NAMED = {"type": "function", "function": {"name": "time"}}
TWO_CALLS = [
    {"name": "weather", "arguments": {"city": "서울", "days": 2}},
    {"name": "time", "arguments": {"zone": "Asia/Seoul", "why": "the user 🌊 asked for it"}},
]


def allowed(*names: str, mode: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def calls_of(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    calls = choice["message"]["tool_calls"]
    return [(call["function"]["name"], orjson.loads(call["function"]["arguments"])) for call in calls]


@pytest.mark.parametrize("split", [False, True])
async def test_the_deltas_of_calls_are_those_that_clients_can_add_up(shared: Server, split: bool) -> None:
    prompt = script(tool_calls=TWO_CALLS, gap=0.004, split_characters=split)
    reply, chunks = await chat_both_ways(shared, prompt, tools=TOOLS)
    (choice,) = reply["choices"]
    assert calls_of(choice) == [(call["name"], call["arguments"]) for call in TWO_CALLS]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"].keys() == {"role", "content", "refusal", "tool_calls"}
    assert choice["message"]["content"] is None
    assert all(call["type"] == "function" for call in choice["message"]["tool_calls"])
    # One call in a chunk: some clients read the first of them alone.
    sent = [delta["tool_calls"] for delta in deltas(chunks) if "tool_calls" in delta]
    assert all(len(calls) == 1 for calls in sent)
    order = [calls[0]["index"] for calls in sent]
    assert order == sorted(order)
    assert len(order) > 4
    assert not any("null" in orjson.dumps(calls).decode() for calls in sent)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_each_choice_has_its_own_calls(shared: Server, seed: int) -> None:
    reply, _ = await chat_both_ways(shared, tools=TOOLS, tool_choice="required", n=3, seed=seed)
    ids = [call["id"] for choice in reply["choices"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 3
    for choice in reply["choices"]:
        ((name, arguments),) = calls_of(choice)
        assert name == "weather"
        assert arguments["city"] in ("Seoul", "Busan")
        assert 1 <= arguments["days"] <= 9
        assert arguments["units"] == ["C", "C"]
        assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("choice", "name", "finish"),
    [
        ("required", "weather", "tool_calls"),
        (NAMED, "time", "stop"),
        (allowed("time", mode="required"), "time", "tool_calls"),
        (allowed("time", "weather", mode="required"), "weather", "tool_calls"),
    ],
    ids=["required", "named", "allowed", "allowed in another order"],
)
async def test_a_function_that_must_be_called_is_called(shared: Server, choice: Any, name: str, finish: str) -> None:
    reply, _ = await chat_both_ways(shared, tools=TOOLS, tool_choice=choice)
    assert [called for called, _ in calls_of(reply["choices"][0])] == [name]
    assert reply["choices"][0]["finish_reason"] == finish


@pytest.mark.parametrize("choice", [None, "auto", "none", allowed("time", mode="auto")])
async def test_a_function_that_may_be_called_need_not_be(shared: Server, choice: Any) -> None:
    reply, _ = await chat_both_ways(shared, tools=TOOLS, tool_choice=choice)
    message = reply["choices"][0]["message"]
    assert message.keys() == {"role", "content", "refusal"}
    assert message["content"]
    assert reply["choices"][0]["finish_reason"] == "stop"


async def test_text_before_calls_is_kept(shared: Server) -> None:
    prompt = script(text="Let me look 🌊", tool_calls=TWO_CALLS[:1], gap=0.002)
    reply, chunks = await chat_both_ways(shared, prompt, tools=TOOLS)
    assert reply["choices"][0]["message"]["content"] == "Let me look 🌊"
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    kinds = [next(iter(delta)) for delta in deltas(chunks)[1:-1]]
    assert kinds == sorted(kinds), "content, then calls"


@pytest.mark.parametrize("most", range(1, 14))
async def test_a_call_that_is_cut_off_says_length_and_is_the_same_in_both_ways(shared: Server, most: int) -> None:
    prompt = script(tool_calls=[{"name": "weather", "arguments": '{"city": "서울", "note": "a b c d e"}'}])
    fields: dict[str, Any] = {"tools": TOOLS, "max_tokens": most}
    whole = (await shared.chat(prompt, tools=TOOLS)).json()
    reply, _ = await chat_both_ways(shared, prompt, **fields)
    (choice,) = reply["choices"]
    arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
    complete = whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert complete.startswith(arguments)
    cut = arguments != complete
    assert choice["finish_reason"] == ("length" if cut else "tool_calls")
    assert reply["usage"]["completion_tokens"] == min(most, whole["usage"]["completion_tokens"])


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_a_named_call_that_is_cut_off_says_length_too(shared: Server, most: int) -> None:
    named = {"type": "function", "function": {"name": "say"}}
    spoken = tool("say", {"type": "object", "properties": {"text": {"type": "string", "minLength": 9}}})
    whole, _ = await chat_both_ways(shared, tools=[spoken], tool_choice=named)
    assert whole["choices"][0]["finish_reason"] == "stop"
    prompt = script(tool_calls=[{"name": "say", "arguments": '{"text": "a b c"}'}])
    cut, _ = await chat_both_ways(shared, prompt, tools=[spoken], tool_choice=named, max_tokens=most)
    assert cut["choices"][0]["finish_reason"] == "length"


async def test_with_parallel_calls_forbidden_there_is_one(shared: Server) -> None:
    prompt = script(tool_calls=TWO_CALLS)
    for allowed_ones, count in ((False, 1), (True, 2), (None, 2)):
        reply, _ = await chat_both_ways(shared, prompt, tools=TOOLS, parallel_tool_calls=allowed_ones)
        assert len(reply["choices"][0]["message"]["tool_calls"]) == count


@pytest.mark.parametrize("arguments", ["", "{", "not JSON at all", "null", '{"a": "\\ud83c\\udf0a"}'])
async def test_arguments_are_passed_on_as_the_model_wrote_them(shared: Server, arguments: str) -> None:
    prompt = script(tool_calls=[{"name": "weather", "arguments": arguments}])
    reply, _ = await chat_both_ways(shared, prompt, tools=TOOLS)
    (call,) = reply["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": arguments}


async def test_the_result_of_a_call_is_taken_back(shared: Server) -> None:
    reply, _ = await chat_both_ways(shared, tools=TOOLS, tool_choice="required")
    message = reply["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "22 C"}
    body = chat_body(tools=TOOLS) | {"messages": [{"role": "user", "content": "hi"}, message, result]}
    answer = await shared.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200


async def test_tokens_of_calls_are_counted(shared: Server) -> None:
    prompt = script(text="one two", tool_calls=[{"name": "f", "arguments": '{"a": 1}'}])
    reply, _ = await chat_both_ways(shared, prompt, tools=[tool("f")])
    assert reply["usage"]["completion_tokens"] == 2 + 2
    assert "completion_tokens_details" not in reply["usage"]


async def test_logprobs_are_those_of_the_text_alone(shared: Server) -> None:
    prompt = script(text="one two", tool_calls=TWO_CALLS)
    reply, _ = await chat_both_ways(shared, prompt, tools=TOOLS, logprobs=True)
    assert [one["token"] for one in reply["choices"][0]["logprobs"]["content"]] == ["one", " two"]


async def test_a_stream_of_calls_that_fails_ends_with_an_error_and_no_finish(shared: Server) -> None:
    prompt = script(tool_calls=TWO_CALLS, fail_at=3, gap=0.002)
    *chunks, last = events((await shared.chat(prompt, tools=TOOLS, stream=True)).text)
    assert last["error"]["code"] == "engine_error"
    assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk["choices"])


@pytest.mark.parametrize("stream", [False, True])
async def test_wrong_tools_are_refused_with_a_status(shared: Server, stream: bool) -> None:
    answer = await shared.chat(tools=[], stream=stream)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "tools")
    answer = await shared.chat(tools=[{"type": "custom"}], stream=stream)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools[0].type")
