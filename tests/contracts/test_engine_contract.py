"""What `Engine` promises, kept by every adapter; of `Answerer` also by a gateway elsewhere."""

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import jsonschema
import orjson
import pytest
from elsewhere import Elsewhere, elsewhere
from harness import MODEL, chat_body, eventually, script, serving, settings

from mulgil.engine.base import Engine, Prepared
from mulgil.engine.simulated import SimulatedEngine
from mulgil.engine.snapshot import ChoiceSnapshot, Snapshot
from mulgil.errors import ContextLengthError, MulgilError
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.schemas.completions import CompletionRequest

# The model continues it for long, and the simulated engine obeys it.
LONG = script("Count from one to one thousand in words: one, two, three, four, five,", tokens=1500, gap=0.002)


OURS = ["simulated", pytest.param("vllm", marks=pytest.mark.model)]


@pytest.fixture(scope="module")
async def upstream(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Elsewhere]:
    chosen = settings(max_model_len=2048, state_folder=tmp_path_factory.mktemp("elsewhere"))
    async with serving(chosen) as server, elsewhere(server) as answerer:
        yield answerer


@pytest.fixture(params=[*OURS, "upstream"])
def engine(request: pytest.FixtureRequest) -> Engine:
    # Not async: a fixture that is running cannot have the server's fixture started.
    if request.param == "simulated":
        return SimulatedEngine(max_model_len=2048)
    if request.param == "upstream":
        answerer: Engine = request.getfixturevalue("upstream")
        return answerer
    running: Engine = request.getfixturevalue("vllm_server").engine
    return running


@pytest.fixture(params=OURS)
def own_engine(request: pytest.FixtureRequest) -> Engine:
    """For what is promised of engines of this process alone."""
    if request.param == "simulated":
        return SimulatedEngine(max_model_len=2048)
    running: Engine = request.getfixturevalue("vllm_server").engine
    return running


async def prepare(engine: Engine, content: str = "Hello!", **fields: object) -> Prepared:
    request = ChatCompletionRequest.model_validate(chat_body(content, temperature=0, **fields))
    return await engine.prepare(request, tenant="t")


async def run(engine: Engine, prepared: Prepared) -> list[Snapshot]:
    return [snapshot async for snapshot in engine.generate(prepared)]


async def test_the_first_snapshot_is_empty_and_says_accepted(engine: Engine) -> None:
    first, *rest = await run(engine, await prepare(engine, max_tokens=5))
    assert first.completion_tokens == 0
    assert [choice.text for choice in first.choices] == [""]
    assert rest


@pytest.mark.parametrize("content", ["Hello!", "한국의 수도는 어디인가요?", "🌊💧 emoji please 👨‍👩‍👧‍👦", LONG])
async def test_a_snapshot_continues_the_one_before(engine: Engine, content: str) -> None:
    snapshots = await run(engine, await prepare(engine, content, max_tokens=40))
    for earlier, later in pairwise(snapshots):
        for before, after in zip(earlier.choices, later.choices, strict=True):
            assert after.text.startswith(before.text)
            assert after.tokens >= before.tokens
            assert before.finish_reason is None
    assert snapshots[-1].choices[0].finish_reason in ("stop", "length")


async def test_max_tokens_cuts_the_answer_with_length(engine: Engine) -> None:
    prepared = await prepare(engine, LONG, max_tokens=7)
    assert prepared.prompts[0].max_tokens == prepared.most_output_tokens == 7
    last = (await run(engine, prepared))[-1]
    assert last.choices[0].tokens == 7
    assert last.choices[0].finish_reason == "length"


async def test_without_max_tokens_it_is_set_and_within_the_context(engine: Engine) -> None:
    prepared = await prepare(engine)
    assert 0 < prepared.prompts[0].max_tokens <= engine.max_model_len - prepared.prompt_tokens


async def test_a_stop_sequence_ends_the_answer_and_is_not_part_of_it(engine: Engine) -> None:
    whole = (await run(engine, await prepare(engine, LONG, max_tokens=30)))[-1].choices[0].text
    stop = whole[10:14]
    last = (await run(engine, await prepare(engine, LONG, max_tokens=30, stop=stop)))[-1].choices[0]
    assert last.finish_reason == "stop"
    assert last.text == whole[: whole.index(stop)]


async def test_the_same_greedy_request_has_the_same_prompt_and_the_same_answer(engine: Engine) -> None:
    prepared = [await prepare(engine, "Tell me about water.", max_tokens=12) for _ in range(2)]
    answers = [(await run(engine, one))[-1].choices[0].text for one in prepared]
    assert prepared[0].prompts[0].token_ids == prepared[1].prompts[0].token_ids
    assert prepared[0].id != prepared[1].id
    assert answers[0] == answers[1]


async def test_several_choices_are_counted_one_by_one(engine: Engine) -> None:
    request = ChatCompletionRequest.model_validate(chat_body(LONG, n=3, seed=1, temperature=1, max_tokens=9))
    prepared = await engine.prepare(request, tenant="t")
    last = (await run(engine, prepared))[-1]
    assert prepared.choices == len(last.choices) == 3
    assert all(choice.finish_reason for choice in last.choices)
    assert last.completion_tokens == sum(choice.tokens for choice in last.choices)


async def test_abort_ends_it_with_a_last_snapshot_and_an_exact_count(engine: Engine) -> None:
    prepared = await prepare(engine, LONG, max_tokens=1500)
    snapshots: list[Snapshot] = []

    async def collect() -> None:
        async for snapshot in engine.generate(prepared):
            snapshots.append(snapshot)

    running = asyncio.create_task(collect())
    await eventually(lambda: bool(snapshots) and snapshots[-1].completion_tokens >= 5, within=20)
    await engine.abort(prepared.id)
    await asyncio.wait_for(running, 1)
    assert snapshots[-1].choices[0].finish_reason == "abort"
    assert snapshots[-1].completion_tokens >= snapshots[-2].completion_tokens >= 5
    assert snapshots[-1].choices[0].text.startswith(snapshots[-2].choices[0].text)
    assert engine.load().unfinished == 0


async def test_abort_of_an_unknown_or_finished_request_is_no_error(engine: Engine) -> None:
    prepared = await prepare(engine, max_tokens=2)
    await engine.abort(prepared.id)
    assert (await run(engine, prepared))[-1].completion_tokens > 0
    await engine.abort(prepared.id)
    await engine.abort("nobody")


async def test_closing_the_iterator_aborts(engine: Engine) -> None:
    async with aclosing(engine.generate(await prepare(engine, LONG, max_tokens=1500))) as snapshots:
        async for snapshot in snapshots:
            if snapshot.completion_tokens >= 2:
                break
        assert engine.load().unfinished == 1
    assert engine.load().unfinished == 0


async def test_cancelling_the_reader_aborts(engine: Engine) -> None:
    running = asyncio.create_task(run(engine, await prepare(engine, LONG, max_tokens=1500)))
    await eventually(lambda: engine.load().unfinished == 1)
    running.cancel()
    await asyncio.wait([running])
    await eventually(lambda: engine.load().unfinished == 0, within=0.25)


@pytest.mark.parametrize("words", [2_500, 60_000])
async def test_a_prompt_that_does_not_fit_is_refused_before_it_runs(engine: Engine, words: int) -> None:
    with pytest.raises(ContextLengthError) as refusal:
        await prepare(engine, "water " * words)
    assert refusal.value.param == "messages"
    assert str(engine.max_model_len) in refusal.value.message
    assert engine.load().unfinished == 0


def a_long_conversation(turns: int = 60) -> list[dict[str, Any]]:
    """Several times as long as the context, with calls and a text that spells a control token."""
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Seoul"}'}}
    question = {"role": "user", "content": f"<|im_end|> {'water flows where the ground allows it ' * 5}"}
    turn: list[dict[str, Any]] = [
        question,
        {"role": "assistant", "content": "I look it up.", "tool_calls": [call]},
        {"role": "tool", "content": "22 C", "tool_call_id": "c1"},
        {"role": "assistant", "content": "the river reaches the sea " * 5},
    ]
    return [{"role": "system", "content": "Be brief."}, *turn * turns, {"role": "user", "content": "Hello!"}]


async def test_a_conversation_that_does_not_fit_loses_as_few_turns_as_possible(engine: Engine) -> None:
    messages = a_long_conversation()

    async def prepared(messages: list[dict[str, Any]], truncation: str | None = "auto") -> Prepared:
        return await prepare(engine, max_tokens=1_500, messages=messages, truncation=truncation)

    shorter = await prepared(messages)
    dropped = shorter.dropped_messages
    assert dropped > 0
    assert dropped % 4 == 0
    assert shorter.prompts[0].max_tokens == 1_500
    assert shorter.prompt_tokens + 1_500 <= engine.max_model_len
    same = await prepared([messages[0], *messages[1 + dropped :]])
    assert same.dropped_messages == 0
    assert same.prompts[0].token_ids == shorter.prompts[0].token_ids
    with_one_more = [messages[0], *messages[1 + dropped - 4 :]]
    assert (await prepared(with_one_more)).dropped_messages == 4
    with pytest.raises(ContextLengthError):
        await prepared(messages, truncation=None)


async def test_one_of_which_the_last_turn_does_not_fit_is_refused(engine: Engine) -> None:
    messages = [*a_long_conversation(5), {"role": "user", "content": "water " * 2_500}]
    with pytest.raises(ContextLengthError, match="without the turns that may be dropped"):
        await prepare(engine, messages=messages, truncation="auto")


async def test_requests_at_the_same_time_keep_apart(engine: Engine) -> None:
    async def answer(number: int) -> int:
        prepared = await prepare(engine, f"Say {number}", max_tokens=5 + number)
        return (await run(engine, prepared))[-1].completion_tokens

    counts = await asyncio.gather(*(answer(number) for number in range(8)))
    assert all(count <= 5 + number for number, count in enumerate(counts))
    assert engine.load().unfinished == 0


async def test_a_round_trip_through_a_healthy_engine_says_nothing(own_engine: Engine) -> None:
    await own_engine.check()
    assert not own_engine.dead


@pytest.mark.parametrize(
    "message",
    [
        {"role": "tool", "content": "22 C", "tool_call_id": "c1"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "", "name": "ada"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ],
)
async def test_every_kind_of_message_is_rendered_or_refused_with_an_error_of_ours(
    engine: Engine, message: dict[str, object]
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Seoul"}'}}
    if message["role"] == "assistant":
        message = message | {"tool_calls": [call]}
    history = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    request = ChatCompletionRequest.model_validate(chat_body(max_tokens=2) | {"messages": [*history, message]})
    try:
        prepared = await engine.prepare(request, tenant="t")
    except MulgilError as refusal:
        assert refusal.status == 400
    else:
        assert (await run(engine, prepared))[-1].completion_tokens > 0


async def prepare_texts(engine: Engine, prompt: Any, **fields: object) -> Prepared:
    body: dict[str, Any] = {"model": MODEL, "prompt": prompt, "temperature": 0, **fields}
    return await engine.prepare(CompletionRequest.model_validate(body), tenant="t")


async def test_several_prompts_are_one_request_with_their_choices_in_order(engine: Engine) -> None:
    prompts = ["Water is", "The capital of France is", "One, two,"]
    apart = [await prepare_texts(engine, prompt, max_tokens=6) for prompt in prompts]
    answers = [(await run(engine, one))[-1].choices[0] for one in apart]
    together = await prepare_texts(engine, prompts, max_tokens=6)
    assert [one.token_ids for one in together.prompts] == [one.prompts[0].token_ids for one in apart]
    assert together.prompt_tokens == sum(one.prompt_tokens for one in apart)
    assert (together.width, together.most_output_tokens) == (3, 18)
    first, *_, last = await run(engine, together)
    assert [choice.tokens for choice in first.choices] == [0, 0, 0]
    assert [choice.text for choice in last.choices] == [answer.text for answer in answers]
    assert last.completion_tokens == sum(answer.tokens for answer in answers)
    if not isinstance(engine, Elsewhere):  # the wire has one count for all
        assert [choice.tokens for choice in last.choices] == [answer.tokens for answer in answers]
    assert engine.load().unfinished == 0


async def test_choices_of_one_prompt_come_before_those_of_the_next(engine: Engine) -> None:
    prepared = await prepare_texts(engine, ["Water", "Stone"], n=2, max_tokens=5, temperature=1, seed=3, echo=True)
    last = (await run(engine, prepared))[-1]
    assert (prepared.choices, prepared.width, prepared.most_output_tokens) == (2, 4, 20)
    assert [choice.text[:5] for choice in last.choices] == ["Water", "Water", "Stone", "Stone"]
    assert last.completion_tokens == sum(choice.tokens for choice in last.choices) <= 20


async def test_abort_ends_every_prompt_of_a_request(engine: Engine) -> None:
    prepared = await prepare_texts(engine, [LONG, LONG, LONG], max_tokens=1000, min_tokens=900)
    running = asyncio.create_task(run(engine, prepared))
    await eventually(lambda: engine.load().unfinished > 0)
    await asyncio.sleep(0.1)
    await engine.abort(prepared.id)
    last = (await asyncio.wait_for(running, 2))[-1]
    assert {choice.finish_reason for choice in last.choices} == {"abort"}
    assert engine.load().unfinished == 0


async def test_token_ids_are_taken_as_they_are(own_engine: Engine) -> None:
    by_text = await prepare_texts(own_engine, "Water is", max_tokens=5)
    by_ids = await prepare_texts(own_engine, by_text.prompts[0].token_ids, max_tokens=5)
    assert by_ids.prompts[0].token_ids == by_text.prompts[0].token_ids
    assert (await run(own_engine, by_ids))[-1].choices[0].text == (await run(own_engine, by_text))[-1].choices[0].text


@pytest.mark.parametrize("prompt", [[10**8], [[1], [10**8]], [2**31 - 1]])
async def test_a_token_id_that_the_model_does_not_have_is_refused(engine: Engine, prompt: Any) -> None:
    with pytest.raises(MulgilError) as refusal:
        await run(engine, await prepare_texts(engine, prompt))
    assert (refusal.value.status, refusal.value.param) == (422, "prompt")


@pytest.mark.parametrize("fields", [{"logit_bias": {"100000000": 5}}, {"stop_token_ids": [10**8]}])
async def test_a_bias_or_stop_for_a_token_that_the_model_does_not_have_is_refused(
    engine: Engine, fields: dict[str, Any]
) -> None:
    with pytest.raises(MulgilError) as refusal:
        await run(engine, await prepare(engine, **fields))
    assert refusal.value.status in (400, 422)
    assert (refusal.value.param or "").startswith(next(iter(fields)))


def assert_logprobs_fit(choice: ChoiceSnapshot, *, top: int) -> None:
    assert "".join(token.text for token in choice.logprobs) == choice.text
    offset = 0
    for token in choice.logprobs:
        assert token.start == offset
        offset += len(token.text)
        if token.logprob is not None:
            assert token.logprob <= 0
            assert not math.isnan(token.logprob)
            assert len(token.top) <= max(top, 0)
            assert [one for _, one in token.top] == sorted((one for _, one in token.top), reverse=True)


@pytest.mark.parametrize("content", ["Hello!", "한국의 수도는 어디인가요?", "🌊💧 emoji please 👨‍👩‍👧‍👦"])
@pytest.mark.parametrize("top", [0, 3])
async def test_logprobs_grow_with_the_text_and_their_tokens_make_it_up(engine: Engine, content: str, top: int) -> None:
    snapshots = await run(engine, await prepare(engine, content, logprobs=True, top_logprobs=top, max_tokens=25))
    last = snapshots[-1].choices[0]
    assert_logprobs_fit(last, top=top)
    assert all(len(token.top) == top for token in last.logprobs)
    assert all(token.logprob is not None for token in last.logprobs)
    for earlier, later in pairwise(snapshots):
        before, after = earlier.choices[0].logprobs, later.choices[0].logprobs
        if later.choices[0].finish_reason is None:
            assert after[: len(before)] == before


async def test_no_logprobs_are_made_that_nobody_asked_for(engine: Engine) -> None:
    assert (await run(engine, await prepare(engine, max_tokens=5)))[-1].choices[0].logprobs == ()


async def test_an_echo_begins_with_the_prompt(engine: Engine) -> None:
    prompt = "Water flows downhill, 물 🌊"
    snapshots = await run(engine, await prepare_texts(engine, prompt, echo=True, logprobs=2, max_tokens=4))
    assert snapshots[0].choices[0].text == ""
    assert all(one.choices[0].text.startswith(prompt) for one in snapshots[1:])
    last = snapshots[-1].choices[0]
    assert_logprobs_fit(last, top=2)
    assert last.logprobs[0].logprob is None
    assert all(token.logprob is not None for token in last.logprobs[1:])
    assert last.tokens <= 4


async def test_a_prompt_may_be_scored_without_an_answer(engine: Engine) -> None:
    prepared = await prepare_texts(engine, "Water flows downhill", echo=True, logprobs=1, max_tokens=0)
    last = (await run(engine, prepared))[-1].choices[0]
    assert last.text == "Water flows downhill"
    assert last.finish_reason == "length"
    assert_logprobs_fit(last, top=1)


CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Seoul", "Busan"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "sights", "parameters": CITY}},
]
ASK = "What is the weather in Seoul for the next 3 days?"


async def test_a_call_that_is_required_is_made_and_its_arguments_keep_to_their_schema(engine: Engine) -> None:
    prepared = await prepare(engine, ASK, tools=TOOLS, tool_choice="required", max_tokens=200)
    snapshots = await run(engine, prepared)
    last = snapshots[-1].choices[0]
    assert last.finish_reason == "tool_calls"
    assert last.tool_calls
    for call in last.tool_calls:
        assert call.name in ("weather", "sights")
        jsonschema.validate(orjson.loads(call.arguments), CITY)
    assert len({call.id for call in last.tool_calls}) == len(last.tool_calls)
    for earlier, later in pairwise(snapshots):
        for before, after in zip(earlier.choices[0].tool_calls, later.choices[0].tool_calls, strict=False):
            assert (after.id, after.name) == (before.id, before.name)
            assert after.arguments.startswith(before.arguments)


async def test_a_function_that_is_named_is_called_and_ends_with_stop(engine: Engine) -> None:
    named = {"type": "function", "function": {"name": "sights"}}
    last = (await run(engine, await prepare(engine, ASK, tools=TOOLS, tool_choice=named, max_tokens=100)))[-1]
    (call,) = last.choices[0].tool_calls
    assert call.name == "sights"
    jsonschema.validate(orjson.loads(call.arguments), CITY)
    assert last.choices[0].finish_reason == "stop"


async def test_a_call_that_is_cut_off_says_length(engine: Engine) -> None:
    ask = script(ASK, split_characters=True)  # or the simulated engine says all JSON in one token
    last = (await run(engine, await prepare(engine, ask, tools=TOOLS, tool_choice="required", max_tokens=3)))[-1]
    assert last.choices[0].finish_reason == "length"
    assert last.choices[0].tokens == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}},
        {"structured_outputs": {"json": CITY}},
    ],
    ids=["response_format", "structured_outputs"],
)
async def test_an_answer_by_a_schema_validates(engine: Engine, fields: dict[str, Any]) -> None:
    last = (await run(engine, await prepare(engine, ASK, max_tokens=200, **fields)))[-1].choices[0]
    assert last.finish_reason == "stop"
    jsonschema.validate(orjson.loads(last.text), CITY)


async def test_an_answer_in_json_is_an_object(engine: Engine) -> None:
    ask = 'Answer with the JSON object {"city": "Seoul"} and nothing else.'
    prepared = await prepare(engine, ask, response_format={"type": "json_object"}, max_tokens=300)
    last = (await run(engine, prepared))[-1].choices[0]
    assert last.text.lstrip().startswith("{")
    if last.finish_reason == "stop":
        assert isinstance(orjson.loads(last.text), dict)


async def test_an_answer_by_choice_is_one_of_the_choices(engine: Engine) -> None:
    choices = ["Seoul", "Busan or elsewhere"]
    last = (await run(engine, await prepare(engine, ASK, structured_outputs={"choice": choices}, max_tokens=20)))[-1]
    assert last.choices[0].text in choices
    assert last.choices[0].finish_reason == "stop"
