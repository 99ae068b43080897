"""How long the Python client waits, and how it makes events of bytes: for all numbers, headers and cuts."""

import math
import time
from email.utils import formatdate

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulgil.client import BackOff, call_with_retry
from mulgil.client.events import Event, EventParser
from mulgil.client.retrying import told_pause

seconds = st.floats(0, 1e6)
chances = st.floats(0, 1)
failures = st.integers(1, 10**6)
line_ends = st.sampled_from(["\n", "\r\n", "\r"])
words = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]))


@given(seconds, seconds, failures, chances)
def test_a_pause_is_between_nothing_and_the_doubled_base_and_never_above_its_cap(
    base: float, cap: float, failed: int, chance: float
) -> None:
    pause = BackOff(base, cap, chance=lambda: chance).pause(failed)
    assert pause is not None
    assert 0 <= pause <= cap
    if failed < 50:
        assert pause <= base * 2 ** (failed - 1)


@given(seconds, seconds, failures)
def test_the_most_that_is_waited_never_falls_from_one_try_to_the_next(base: float, cap: float, failed: int) -> None:
    most = BackOff(base, cap, chance=lambda: 1.0)
    assert (most.pause(failed) or 0) <= (most.pause(failed + 1) or 0)


@given(st.floats(0, allow_infinity=True), seconds, failures, chances)
def test_what_the_server_says_is_never_cut_short_and_hardly_exceeded(
    told: float, longest: float, failed: int, chance: float
) -> None:
    pause = BackOff(longest=longest, chance=lambda: chance).pause(failed, told)
    if told > longest:
        assert pause is None
    else:
        assert pause is not None
        assert told <= pause <= told * 1.1


@given(st.text(), st.text())
def test_headers_of_any_text_are_understood_as_a_time_to_come_or_as_nothing(milliseconds: str, told: str) -> None:
    pause = told_pause({"retry-after-ms": milliseconds, "retry-after": told})
    assert pause is None or pause > 0


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after-ms": "x", "retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "0"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, math.inf),
        ({"retry-after": "1e999"}, math.inf),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, None),
        ({}, None),
    ],
)
def test_milliseconds_go_before_seconds(headers: dict[str, str], pause: float | None) -> None:
    assert told_pause(headers) == pause


def test_a_date_is_so_far_away_as_it_is() -> None:
    assert told_pause({"retry-after": formatdate(time.time() + 100, usegmt=True)}) == pytest.approx(99.5, abs=1)


@given(st.integers(1, 20), seconds, seconds)
def test_there_are_as_many_tries_as_said_and_a_wait_before_each_but_the_first(
    attempts: int, base: float, cap: float
) -> None:
    calls, waits = 0, list[float]()

    def call() -> None:
        nonlocal calls
        calls += 1
        raise openai.APIConnectionError(request=httpx2.Request("POST", "http://test"))

    with pytest.raises(openai.APIConnectionError):
        call_with_retry(call, attempts=attempts, back_off=BackOff(base, cap), sleep=waits.append)
    assert (calls, len(waits)) == (attempts, attempts - 1)
    assert all(0 <= wait <= cap for wait in waits)


def test_what_is_no_failure_of_a_request_is_not_tried_again() -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        raise KeyError

    with pytest.raises(KeyError):
        call_with_retry(call)
    assert calls == 1


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Event], bytes]:
    """Events, and one of the many ways to write them."""
    events, written, known = [], draw(st.sampled_from(["", "\ufeff"])), ""
    for _ in range(draw(st.integers(0, 4))):
        data, kind, number = draw(st.lists(words, min_size=1, max_size=3)), draw(words), draw(st.none() | words)
        space = draw(st.sampled_from(["", " "]))
        lines = [f"data:{space or (' ' if line.startswith(' ') else '')}{line}" for line in data]
        lines += [f"event: {kind}", *([] if number is None else [f"id: {number}"])]
        lines += [": a comment", "retry: 5", "nonsense", *draw(st.sampled_from([[], ["unknown: x"]]))]
        known = known if number is None else number
        events.append(Event("\n".join(data), kind or "message", known))
        end = draw(line_ends)
        written += "".join(line + end for line in [*lines, ""])
    return events, written.encode()


@given(streams(), st.data())
def test_events_are_the_same_wherever_the_bytes_are_cut(stream: tuple[list[Event], bytes], data: st.DataObject) -> None:
    events, written = stream
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=8)))
    parser, read = EventParser(), list[Event]()
    for start, end in zip([0, *cuts], [*cuts, len(written)], strict=True):
        read += parser.feed(written[start:end])
    assert read == events


@given(streams(), st.data())
def test_of_a_stream_that_is_cut_only_whole_events_count(
    stream: tuple[list[Event], bytes], data: st.DataObject
) -> None:
    events, written = stream
    parser, read = EventParser(), list[Event]()
    for number in written[: data.draw(st.integers(0, len(written)))]:
        read += parser.feed(bytes([number]))
    assert read == events[: len(read)]
