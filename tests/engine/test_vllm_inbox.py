"""The outputs of vLLM that nobody has read yet."""

import asyncio
from typing import Any

import pytest

from mulgil.engine.vllm.inbox import LONGEST_PAUSE, Inbox, Pace

pytestmark = pytest.mark.model


def collector() -> Any:
    """vLLM's own."""
    from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415 - an optional extra
    from vllm.v1.engine.output_processor import RequestOutputCollector  # noqa: PLC0415 - an optional extra

    return RequestOutputCollector(RequestOutputKind.CUMULATIVE, "request")


def output(text: str, *, choice: int = 0, finished: bool = False) -> Any:
    """An output of vLLM's with one choice."""
    from vllm.outputs import CompletionOutput, RequestOutput  # noqa: PLC0415 - an optional extra

    made = CompletionOutput(choice, text, [1], None, None, finish_reason="stop" if finished else None)
    return RequestOutput("request", None, [1], None, [made], finished)


def texts(new: dict[Any, Any]) -> dict[Any, str]:
    return {place: choice.text for place, (choice, _) in new.items()}


async def test_without_an_interval_each_output_wakes_the_reader() -> None:
    seen: list[int] = []
    inbox, source = Inbox(lambda: 0.0, lambda: seen.append(1)), collector()
    inbox.attach(0, source)
    for text in ("a", "ab"):
        reading = asyncio.create_task(inbox.read())
        await asyncio.sleep(0)
        source.put(output(text))
        assert texts(await reading) == {(0, 0): text}
    assert len(seen) == 2
    assert not inbox.over


async def test_the_first_comes_at_once_and_what_follows_together_when_it_is_due() -> None:
    inbox, source = Inbox(lambda: 0.1, lambda: None), collector()
    inbox.attach(0, source)
    source.put(output("a"))
    assert texts(await inbox.read()) == {(0, 0): "a"}
    begun = asyncio.get_running_loop().time()
    for text in ("ab", "abc", "abcd"):
        source.put(output(text))
    assert texts(await inbox.read()) == {(0, 0): "abcd"}
    assert asyncio.get_running_loop().time() - begun > 0.08


async def test_what_comes_while_the_reader_waits_is_told_when_it_is_due_and_not_with_the_next_one() -> None:
    inbox, source = Inbox(lambda: 0.05, lambda: None), collector()
    inbox.attach(0, source)
    source.put(output("a"))
    await inbox.read()
    reading = asyncio.create_task(inbox.read())
    await asyncio.sleep(0)
    source.put(output("ab"))
    async with asyncio.timeout(5):
        assert texts(await reading) == {(0, 0): "ab"}


async def test_the_end_waits_for_nothing() -> None:
    inbox, source = Inbox(lambda: 60.0, lambda: None), collector()
    inbox.attach(0, source)
    source.put(output("a"))
    await inbox.read()
    reading = asyncio.create_task(inbox.read())
    await asyncio.sleep(0)
    source.put(output("ab"))
    await asyncio.sleep(0.01)
    assert not reading.done()
    source.put(output("abc", finished=True))
    async with asyncio.timeout(5):
        assert texts(await reading) == {(0, 0): "abc"}
    assert inbox.over


async def test_all_prompts_and_choices_are_told_and_the_end_is_that_of_the_last() -> None:
    inbox, sources = Inbox(lambda: 0.0, lambda: None), [collector(), collector()]
    for index, source in enumerate(sources):
        inbox.attach(index, source)
    sources[0].put(output("a", choice=1))
    sources[0].put(output("b", finished=True))
    sources[1].put(output("c"))
    assert texts(await inbox.read()) == {(0, 1): "a", (0, 0): "b", (1, 0): "c"}
    assert not inbox.over
    sources[1].put(output("cd", finished=True))
    assert texts(await inbox.read()) == {(1, 0): "cd"}
    assert inbox.over


async def test_what_came_before_it_was_attached_is_not_lost() -> None:
    inbox, source = Inbox(lambda: 0.0, lambda: None), collector()
    source.put(output("a", finished=True))
    inbox.attach(0, source)
    assert texts(await inbox.read()) == {(0, 0): "a"}


async def test_a_failure_waits_for_nothing_and_is_raised() -> None:
    inbox, source = Inbox(lambda: 60.0, lambda: None), collector()
    inbox.attach(0, source)
    source.put(output("a"))
    await inbox.read()
    reading = asyncio.create_task(inbox.read())
    await asyncio.sleep(0)
    source.put(ValueError("the engine is dead"))
    with pytest.raises(ValueError, match="the engine is dead"):
        await asyncio.wait_for(reading, 5)


async def test_a_reader_that_is_cancelled_leaves_what_there_is_to_the_next_one() -> None:
    inbox, source = Inbox(lambda: 0.05, lambda: None), collector()
    inbox.attach(0, source)
    reading = asyncio.create_task(inbox.read())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    source.put(output("a"))
    assert texts(await inbox.read()) == {(0, 0): "a"}


@pytest.mark.parametrize(
    ("interval", "streams", "expected"),
    [
        (0.03, 1, 0.03),
        (0.03, 45, 0.03),
        (0.03, 90, 0.06),
        (0.03, 10_000, LONGEST_PAUSE),
        (0.5, 10_000, 0.5),
        (0, 999, 0),
    ],
    ids=["one", "as many as there are events for", "twice as many", "too many", "longer anyway", "every token"],
)
def test_more_streams_than_there_are_events_for_wait_longer(interval: float, streams: int, expected: float) -> None:
    pace = Pace(interval, events=1_500)
    pace.streams = streams
    assert pace.now() == pytest.approx(expected)
