"""An upstream that is another gateway says what its engine says; and what any upstream is asked."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest
from checks import checked_chat, checked_completion
from elsewhere import Elsewhere, elsewhere
from harness import KEY, MODEL, Server, chat_body, eventually, script, serving, settings
from pydantic import SecretStr
from scriptedserver import DONE, ScriptedServer, delta, scripted, streams, usage

from mulgil.engine.base import TextRequest
from mulgil.engine.snapshot import ChoiceSnapshot, Snapshot
from mulgil.engine.upstream import Upstream
from mulgil.errors import ContextLengthError
from mulgil.upstreams import UpstreamOptions

LONG_UNICODE = "물은 아래로 흐른다 🌊💧 👨‍👩‍👧‍👦 שלום ﷽ " * 60
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "default": None}}},
    {"type": "function", "function": {"name": "sights", "description": "what to see"}},
]
CALLS = [{"name": "weather", "arguments": {"city": "서울", "days": 3}}, {"name": "sights", "arguments": "no JSON"}]


@pytest.fixture(scope="module")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Server]:
    async with serving(settings(state_folder=tmp_path_factory.mktemp("upstream"))) as server:
        yield server


@pytest.fixture
async def upstream(gateway: Server) -> AsyncGenerator[Elsewhere]:
    async with elsewhere(gateway) as answerer:
        yield answerer


async def last_of(answerer: Any, request: TextRequest) -> Snapshot:
    prepared = await answerer.prepare(request, tenant="t")
    *_, last = [snapshot async for snapshot in answerer.generate(prepared)]
    assert isinstance(last, Snapshot)
    return last


def without_ids(choice: ChoiceSnapshot) -> ChoiceSnapshot:
    return replace(choice, tool_calls=tuple(replace(call, id="") for call in choice.tool_calls))


CHATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "long unicode": {"content": script(text=LONG_UNICODE)},
    "bytes of characters": {"content": script(text=LONG_UNICODE[:200], split_characters=True)},
    "reasoning": {"content": script(text="So it is.", reasoning="Let me think about it for a while.")},
    "only reasoning": {"content": script(text="", reasoning="물 🌊 thinks")},
    "tools": {"content": script("Seoul?", tool_calls=CALLS), "tools": TOOLS},
    "text and tools": {"content": script(text="I look.", tool_calls=CALLS, reasoning="hm"), "tools": TOOLS},
    "a call that is cut off": {
        "content": script(tool_calls=CALLS, split_characters=True), "tools": TOOLS, "max_tokens": 5
    },
    "a named tool": {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "sights"}}},
    "logprobs": {"content": script(text=LONG_UNICODE[:100]), "logprobs": True, "top_logprobs": 3},
    "logprobs without others": {"logprobs": True},
    "a stop string": {"content": script(text="one two three four"), "stop": [" three"]},
    "cut off": {"content": script(tokens=100), "max_tokens": 7},
    "the newer name": {"content": script(tokens=100), "max_completion_tokens": 7},
    "filtered": {"content": script(finish="content_filter")},
    "nothing": {"content": script(text="")},
    "a seed": {"seed": 2**62, "temperature": 1.0, "top_k": 5, "user": "ada", "metadata": {"a": "b"}},
    "a schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CHATS)
async def test_a_chat_is_what_the_engine_behind_it_says(upstream: Elsewhere, gateway: Server, name: str) -> None:
    request = checked_chat(chat_body(**{"content": "hello"} | CHATS[name]))
    direct, told = await last_of(gateway.engine, request), await last_of(upstream, request)
    assert [without_ids(one) for one in told.choices] == [without_ids(one) for one in direct.choices]
    assert told.cached_tokens == direct.cached_tokens
    prepared = [await one.prepare(request, tenant="t") for one in (upstream, gateway.engine)]
    assert prepared[0].prompt_tokens == prepared[1].prompt_tokens
    assert prepared[0].most_output_tokens == prepared[1].most_output_tokens


COMPLETIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "logprobs": {"logprobs": 2},
    "logprobs of the token alone": {"logprobs": 0},
    "echo": {"prompt": "물 flows downhill", "echo": True, "logprobs": 2, "max_tokens": 4},
    "scored": {"prompt": "Water flows", "echo": True, "logprobs": 1, "max_tokens": 0},
    "a stop string": {"prompt": script(text="one two three four"), "stop": " three"},
    "token ids": {"prompt": [1, 2, 3]},
}


@pytest.mark.parametrize("name", COMPLETIONS)
async def test_a_completion_is_what_the_engine_behind_it_says(upstream: Elsewhere, gateway: Server, name: str) -> None:
    request = checked_completion({"model": MODEL, "prompt": "Water is"} | COMPLETIONS[name])
    assert await last_of(upstream, request) == await last_of(gateway.engine, request)


@pytest.mark.parametrize(
    "request_",
    [
        checked_chat(chat_body(script(tokens=40), n=2, seed=1, temperature=1.0)),
        checked_chat(chat_body(script(tokens=40, reasoning="I think so."), n=3, seed=1, logprobs=True, top_logprobs=1)),
        checked_completion({"model": MODEL, "prompt": ["Water", "물", "Stone"], "n": 2, "seed": 3, "logprobs": 1}),
        checked_completion({"model": MODEL, "prompt": "Water", "best_of": 4, "n": 2, "seed": 3}),
    ],
    ids=["n=2", "n=3", "prompts", "best_of"],
)
async def test_of_several_choices_only_the_sum_of_their_tokens_is_known(
    upstream: Elsewhere, gateway: Server, request_: TextRequest
) -> None:
    direct, told = await last_of(gateway.engine, request_), await last_of(upstream, request_)
    assert [replace(one, tokens=0, reasoning_tokens=0) for one in told.choices] == [
        replace(one, tokens=0, reasoning_tokens=0) for one in direct.choices
    ]
    assert told.completion_tokens == direct.completion_tokens
    assert told.reasoning_tokens == direct.reasoning_tokens
    assert all(one.tokens > 0 for one in told.choices)


async def test_an_abort_ends_the_request_at_the_other_gateway(gateway: Server, upstream: Elsewhere) -> None:
    prepared = await upstream.prepare(checked_chat(chat_body(script(tokens=5_000, gap=0.01))), tenant="t")
    snapshots: list[Snapshot] = []

    async def collect() -> None:
        async for snapshot in upstream.generate(prepared):
            snapshots.append(snapshot)

    running = asyncio.create_task(collect())
    await eventually(lambda: len(snapshots) > 3)
    assert gateway.mulgil.running == 1
    await upstream.abort(prepared.id)
    await asyncio.wait_for(running, 1)
    assert snapshots[-1].choices[0].finish_reason == "abort"
    assert snapshots[-1].completion_tokens >= snapshots[-2].completion_tokens > 0
    await eventually(lambda: gateway.mulgil.running == gateway.engine.load().unfinished == 0)


@pytest.mark.parametrize("directives", [{"hang_at": 0}, {"hang_at": 5}])
async def test_an_abort_needs_no_word_of_the_other_server(
    gateway: Server, upstream: Elsewhere, directives: dict[str, Any]
) -> None:
    prepared = await upstream.prepare(checked_chat(chat_body(script(tokens=9, **directives))), tenant="t")
    running = asyncio.create_task(anext_of_all(upstream, prepared))
    await eventually(lambda: gateway.mulgil.running == 1)
    await upstream.abort(prepared.id)
    last = await asyncio.wait_for(running, 1)
    assert last.choices[0].finish_reason == "abort"
    await eventually(lambda: gateway.mulgil.running == 0)


async def anext_of_all(upstream: Upstream, prepared: Any) -> Snapshot:
    *_, last = [snapshot async for snapshot in upstream.generate(prepared)]
    return last


async def test_an_abort_between_two_snapshots_closes_the_connection_at_once(
    gateway: Server, upstream: Elsewhere
) -> None:
    prepared = await upstream.prepare(checked_chat(chat_body(script(tokens=900, gap=0.002))), tenant="t")
    snapshots = upstream.generate(prepared)
    for _ in range(3):
        await anext(snapshots)
    await upstream.abort(prepared.id)
    await eventually(lambda: gateway.mulgil.running == 0)
    assert (await anext(snapshots)).choices[0].finish_reason == "abort"
    assert await anext(snapshots, None) is None


@pytest.mark.parametrize("auto", [True, False])
async def test_a_conversation_that_does_not_fit_is_refused_or_truncated_by_the_upstreams_count(auto: bool) -> None:
    messages = [{"role": "user", "content": "water " * 400}, {"role": "user", "content": "hi"}]
    request = checked_chat(chat_body(messages=messages, truncation="auto" if auto else None, max_tokens=50))
    async with serving(settings(max_model_len=300)) as server, elsewhere(server) as upstream:
        if auto:
            prepared = await upstream.prepare(request, tenant="t")
            assert prepared.dropped_messages == 1
            assert (await anext_of_all(upstream, prepared)).choices[0].finish_reason
        else:
            with pytest.raises(ContextLengthError) as refused:
                await upstream.prepare(request, tenant="t")
            assert "limit of 300 tokens" in refused.value.message


async def test_max_tokens_is_clamped_to_the_smaller_of_both_contexts() -> None:
    async with serving(settings(max_model_len=300)) as server:
        for context, most in ((None, 300), (200, 200), (9_000, 300)):
            async with elsewhere(server, context=context) as upstream:
                prepared = await upstream.prepare(checked_chat(chat_body("hi")), tenant="t")
                assert prepared.prompt_tokens + prepared.most_output_tokens == most


async def test_a_tiers_default_and_the_engines_are_the_length_where_none_is_asked_for() -> None:
    async with scripted(streams()) as server:
        upstream = Upstream("u", UpstreamOptions(url=server.url), default_max_tokens=77)
        chat = checked_chat(chat_body("hi"))
        assert (await upstream.prepare(chat, tenant="t")).most_output_tokens == 77
        assert (await upstream.prepare(chat, tenant="t", default_max_tokens=9)).most_output_tokens == 9
        await upstream.close()


ANSWER = streams(delta("Hi"), delta(finish="stop"), usage(1, 1), DONE)


async def asked(server: ScriptedServer, request: TextRequest, **options: Any) -> dict[str, Any]:
    upstream = Upstream("u", UpstreamOptions(url=server.url, **options))
    await last_of(upstream, request)
    await upstream.close()
    return server.asked[-1]


async def test_what_an_upstream_is_asked() -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5, "stop": "x", "seed": 3, "tools": TOOLS, "tool_choice": "none", "top_k": None,
        "user": "ada", "metadata": {"a": "b"}, "service_tier": "auto", "truncation": "auto", "verbosity": "low",
        "prompt_cache_key": "k", "safety_identifier": "s", "stream": True,
        "stream_options": {"include_usage": False, "resumable": True, "chunking": "word"},
    }  # fmt: skip
    async with scripted(ANSWER) as server:
        body = await asked(server, checked_chat(chat_body("hi", **fields)), model="gpt-4", key=SecretStr("sk-theirs"))
        assert body == {
            "model": "gpt-4", "messages": [{"role": "user", "content": "hi"}], "temperature": 0.5, "stop": ["x"],
            "seed": 3, "tools": TOOLS, "tool_choice": "none", "max_tokens": 4_096, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        path, headers, _ = server.requests[-1]
        assert path == "/v1/chat/completions"
        assert headers["x-mulgil-fallback"] == "1"
        assert headers["authorization"] == "Bearer sk-theirs"
        assert headers["accept-encoding"] == "identity"
        assert KEY not in str(server.requests)


async def test_a_server_with_a_tokenize_endpoint_is_asked_for_counts_all_along() -> None:
    async with scripted(ANSWER, tokenize={"count": 1, "max_model_len": 50}) as server:
        body = await asked(server, checked_chat(chat_body("hi")))
        assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
        assert body["model"] == MODEL
        assert body["max_tokens"] == 49


async def test_vllms_tokenize_endpoint_is_found_at_the_root_and_remembered() -> None:
    async with scripted(ANSWER, tokenize={"count": 5, "max_model_len": 50}) as server:
        server.absent = "/v1/tokenize"
        upstream = Upstream("u", UpstreamOptions(url=server.url))
        for _ in range(2):
            assert (await upstream.prepare(checked_chat(chat_body("hi")), tenant="t")).prompt_tokens == 5
        assert [path for path, _, _ in server.requests] == ["/v1/tokenize", "/tokenize", "/tokenize"]
        await upstream.close()


@pytest.mark.parametrize("tokenize", [None, {"tokens": []}, {"count": True}, {"count": -1}], ids=str)
@pytest.mark.parametrize("tools", [None, TOOLS])
async def test_without_a_tokenize_endpoint_a_prompt_counts_as_more_than_it_can_have(
    gateway: Server, tokenize: dict[str, Any] | None, tools: list[Any] | None
) -> None:
    request = checked_chat(chat_body(LONG_UNICODE, tools=tools))
    exact = (await gateway.engine.prepare(request, tenant="t")).prompt_tokens
    async with scripted(ANSWER, tokenize=tokenize) as server:
        upstream = Upstream("u", UpstreamOptions(url=server.url))
        for _ in range(2):
            bound = (await upstream.prepare(request, tenant="t")).prompt_tokens
            assert exact < len(LONG_UNICODE.encode()) < bound
        assert len(server.requests) == 2  # both places were looked at, once
        texts = checked_completion({"model": MODEL, "prompt": ["물", "water"]})
        assert (await upstream.prepare(texts, tenant="t")).prompt_tokens > 8
        await upstream.close()


async def test_counts_that_contradict_each_other_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    answer = streams(delta("Hi"), delta(finish="stop"), usage(7, 1), DONE)
    async with scripted(answer, tokenize={"count": 5, "max_model_len": 50}) as server:
        upstream = Upstream("over there", UpstreamOptions(url=server.url))
        for _ in range(2):
            await last_of(upstream, checked_chat(chat_body("hi")))
        await upstream.close()
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "over there counted 7" in line


async def test_tokens_cached_there_are_told_and_never_more_than_the_prompt_has() -> None:
    for told, known in ((3, 3), (900, 5)):
        answer = streams(
            delta("Hi"), delta(finish="stop"), usage(5, 1, prompt_tokens_details={"cached_tokens": told}), DONE
        )
        async with scripted(answer, tokenize={"count": 5, "max_model_len": 50}) as server:
            upstream = Upstream("u", UpstreamOptions(url=server.url))
            assert (await last_of(upstream, checked_chat(chat_body("hi")))).cached_tokens == known
            await upstream.close()
