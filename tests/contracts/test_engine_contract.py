"""What `Engine` promises, kept by every adapter."""

import asyncio
from contextlib import aclosing
from itertools import pairwise

import pytest
from harness import chat_body, eventually, script

from mulgil.engine.base import Engine, Prepared, Snapshot
from mulgil.engine.simulated import SimulatedEngine
from mulgil.errors import ContextLengthError, MulgilError
from mulgil.schemas.chat import ChatCompletionRequest

# The model continues it for long, and the simulated engine obeys it.
LONG = script("Count from one to one thousand in words: one, two, three, four, five,", tokens=1500, gap=0.002)


@pytest.fixture(params=["simulated", pytest.param("vllm", marks=pytest.mark.model)])
async def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "vllm":
        running: Engine = request.getfixturevalue("vllm_server").engine
        return running
    simulated = SimulatedEngine(max_model_len=2048)
    await simulated.start()
    return simulated


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
    assert prepared.max_tokens == 7
    last = (await run(engine, prepared))[-1]
    assert last.choices[0].tokens == 7
    assert last.choices[0].finish_reason == "length"


async def test_without_max_tokens_it_is_set_and_within_the_context(engine: Engine) -> None:
    prepared = await prepare(engine)
    assert 0 < prepared.max_tokens <= engine.max_model_len - prepared.prompt_tokens


async def test_a_stop_sequence_ends_the_answer_and_is_not_part_of_it(engine: Engine) -> None:
    whole = (await run(engine, await prepare(engine, LONG, max_tokens=30)))[-1].choices[0].text
    stop = whole[10:14]
    last = (await run(engine, await prepare(engine, LONG, max_tokens=30, stop=stop)))[-1].choices[0]
    assert last.finish_reason == "stop"
    assert last.text == whole[: whole.index(stop)]


async def test_the_same_greedy_request_has_the_same_prompt_and_the_same_answer(engine: Engine) -> None:
    prepared = [await prepare(engine, "Tell me about water.", max_tokens=12) for _ in range(2)]
    answers = [(await run(engine, one))[-1].choices[0].text for one in prepared]
    assert prepared[0].prompt_token_ids == prepared[1].prompt_token_ids
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


async def test_requests_at_the_same_time_keep_apart(engine: Engine) -> None:
    async def answer(number: int) -> int:
        prepared = await prepare(engine, f"Say {number}", max_tokens=5 + number)
        return (await run(engine, prepared))[-1].completion_tokens

    counts = await asyncio.gather(*(answer(number) for number in range(8)))
    assert all(count <= 5 + number for number, count in enumerate(counts))
    assert engine.load().unfinished == 0


async def test_a_round_trip_through_a_healthy_engine_says_nothing(engine: Engine) -> None:
    await engine.check()
    assert not engine.dead


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
