"""Streams put together again, as clients do it, to be compared with plain replies."""

from collections.abc import Sequence
from typing import Any

import httpx2
from harness import MODEL, Server, events

ASKED_USAGE = {"stream": True, "stream_options": {"include_usage": True}}


async def chat_both_ways(server: Server, content: str = "hello", **fields: Any) -> tuple[dict[str, Any], list[Any]]:
    """The plain reply, and the chunks of a stream that was found to say the same."""
    plain = await server.chat(content, **fields)
    assert plain.status_code == 200, plain.text
    stream = events((await server.chat(content, **ASKED_USAGE, **fields)).text)
    assert stream.pop() == "[DONE]"
    reply: dict[str, Any] = plain.json()
    assert_one_head(stream, reply)
    assert stream[-1]["choices"] == []
    assert stream[-1]["usage"] == reply["usage"]
    chunks = stream[:-1]
    assert without_ids(chat_choices(chunks)) == without_ids(reply["choices"])
    return reply, chunks


async def complete(server: Server, prompt: Any = "hello", **fields: Any) -> httpx2.Response:
    """A completion, read to its end."""
    return await server.client.post("/v1/completions", json={"model": MODEL, "prompt": prompt, **fields})


async def complete_both_ways(server: Server, prompt: Any = "hello", **fields: Any) -> dict[str, Any]:
    """The plain reply; a stream was found to say the same."""
    plain = await complete(server, prompt, **fields)
    assert plain.status_code == 200, plain.text
    stream = events((await complete(server, prompt, **ASKED_USAGE, **fields)).text)
    assert stream.pop() == "[DONE]"
    reply: dict[str, Any] = plain.json()
    assert_one_head(stream, reply)
    assert stream[-1]["choices"] == []
    assert stream[-1]["usage"] == reply["usage"]
    assert completion_choices(stream[:-1]) == reply["choices"]
    return reply


def assert_one_head(chunks: Sequence[dict[str, Any]], reply: dict[str, Any]) -> None:
    """All chunks are of one stream, which is served as the plain reply was."""
    kind = {"chat.completion": "chat.completion.chunk"}.get(reply["object"], reply["object"])
    assert {chunk["object"] for chunk in chunks} == {kind}
    for name in ("model", "system_fingerprint"):
        assert {chunk[name] for chunk in chunks} == {reply[name]}
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    assert chunks[0]["id"].partition("-")[0] == reply["id"].partition("-")[0]
    assert {chunk.get("service_tier") for chunk in chunks} == {reply.get("service_tier")}


def deltas(chunks: Sequence[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    """The deltas of one choice, in order."""
    found = [choice for chunk in chunks for choice in chunk["choices"]]
    return [choice["delta"] for choice in found if choice["index"] == index]


def chat_choices(chunks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The choices that the chunks of a chat stream add up to, in the form of a plain reply."""
    choices: list[dict[str, Any]] = []
    for chunk in chunks:
        (piece,) = chunk["choices"]
        assert piece.keys() == {"index", "delta", "logprobs", "finish_reason"}
        if piece["index"] == len(choices):
            assert piece["delta"] == {"role": "assistant", "content": ""}, "the role comes first, in index order"
            message = {"role": "assistant", "content": "", "refusal": None}
            choices.append({"index": piece["index"], "message": message, "logprobs": None, "finish_reason": None})
            continue
        _add_chat_piece(choices[piece["index"]], piece)
    for choice in choices:
        if choice["message"].get("tool_calls"):
            choice["message"]["content"] = choice["message"]["content"] or None
    return choices


def _add_chat_piece(choice: dict[str, Any], piece: dict[str, Any]) -> None:
    assert choice["finish_reason"] is None, "nothing follows the finish"
    choice["finish_reason"] = piece["finish_reason"]
    delta, message = piece["delta"], choice["message"]
    assert (piece["finish_reason"] is None) or delta == {}
    assert delta.keys() <= {"content", "reasoning_content", "tool_calls"}
    for name in delta.keys() & {"content", "reasoning_content"}:
        assert delta[name] != ""
        message[name] = message.get(name, "") + delta[name]
    if piece["logprobs"]:
        told = choice["logprobs"] = choice["logprobs"] or {"content": [], "refusal": None}
        told["content"] += piece["logprobs"]["content"]
    for call in delta.get("tool_calls", ()):
        _add_call(message.setdefault("tool_calls", []), call)


def _add_call(calls: list[dict[str, Any]], delta: dict[str, Any]) -> None:
    """Strict about what repeats: clients add repeated names up and choke on nulls."""
    if delta["index"] == len(calls):
        assert delta.keys() == {"index", "id", "type", "function"}
        assert delta["function"].keys() == {"name", "arguments"}
        calls.append({name: value for name, value in delta.items() if name != "index"})
        return
    assert delta.keys() == {"index", "function"}
    assert delta["function"].keys() == {"arguments"}
    calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]


def without_ids(choices: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Choices without the ids of their calls, which are random; each of them must have one of its own."""
    bare = []
    for choice in choices:
        message = dict(choice["message"])
        if calls := message.get("tool_calls"):
            assert len({call["id"] for call in calls}) == len(calls)
            assert all(call["id"].startswith("call_") for call in calls)
            message["tool_calls"] = [{**call, "id": "call_"} for call in calls]
        bare.append({**choice, "message": message})
    return bare


def completion_choices(chunks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The choices that the chunks of a completion stream add up to, in the form of a plain reply."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        (piece,) = chunk["choices"]
        assert piece.keys() == {"index", "text", "logprobs", "finish_reason"}
        known = choices.setdefault(piece["index"], {**piece, "text": "", "logprobs": None, "finish_reason": None})
        assert known["finish_reason"] is None, "nothing follows the finish"
        known["finish_reason"] = piece["finish_reason"]
        known["text"] += piece["text"]
        if piece["logprobs"]:
            told = known["logprobs"] = known["logprobs"] or dict.fromkeys(piece["logprobs"])
            for name, entries in piece["logprobs"].items():
                told[name] = None if entries is None else (told[name] or []) + entries
    return [choices[index] for index in sorted(choices)]
