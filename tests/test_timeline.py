"""One number says exactly how much of an answer a reader has, whatever the answer is made of."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mulgil.engine.snapshot import ChoiceSnapshot, Snapshot, TokenLogprob, ToolCallSnapshot
from mulgil.pacing import Pacing
from mulgil.slices import Slice
from mulgil.timeline import Timeline

CHOICES = 2
steps = st.lists(
    st.tuples(
        st.integers(0, CHOICES - 1),
        st.sampled_from(["text", "reasoning", "begin", "arguments"]),
        st.text("ab 물🌊.", max_size=5),
    ),
    max_size=40,
)


def grown(snapshot: Snapshot, choice: int, part: str, text: str) -> Snapshot:
    old = snapshot.choices[choice]
    new = old
    if part == "text":
        token = TokenLogprob(text, -1.0, len(old.text))
        new = replace(old, text=old.text + text, logprobs=(*old.logprobs, token))
    elif part == "reasoning":
        new = replace(old, reasoning=old.reasoning + text)
    elif part == "begin":
        call = ToolCallSnapshot(f"call_{len(old.tool_calls)}", "f", text)
        new = replace(old, tool_calls=(*old.tool_calls, call))
    elif old.tool_calls:
        last = old.tool_calls[-1]
        new = replace(old, tool_calls=(*old.tool_calls[:-1], replace(last, arguments=last.arguments + text)))
    choices = list(snapshot.choices)
    choices[choice] = new
    return Snapshot(tuple(choices))


def history(script: list[tuple[int, str, str]]) -> tuple[Timeline, list[Snapshot]]:
    timeline, snapshots = Timeline(), [Snapshot((ChoiceSnapshot(),) * CHOICES)]
    for step in script:
        snapshots.append(grown(snapshots[-1], *step))
        timeline.note(*snapshots[-2:])
    return timeline, snapshots


class Book:
    """What a reader has put together."""

    def __init__(self) -> None:
        self.choices = [ChoiceSnapshot()] * CHOICES

    def read(self, piece: Slice) -> None:
        old = self.choices[piece.index]
        calls = list(old.tool_calls)
        for call in piece.calls:
            if call.begun:
                assert call.index == len(calls)
                calls.append(replace(call.begun, arguments=""))
            calls[call.index] = replace(calls[call.index], arguments=calls[call.index].arguments + call.arguments)
        self.choices[piece.index] = ChoiceSnapshot(
            text=old.text + piece.text,
            reasoning=old.reasoning + piece.reasoning,
            tool_calls=tuple(calls),
            logprobs=old.logprobs + piece.logprobs,
        )


@given(steps, st.data())
def test_cut_anywhere_and_resumed_from_the_last_offset_nothing_is_missing_or_told_twice(
    script: list[tuple[int, str, str]], data: st.DataObject
) -> None:
    timeline, snapshots = history(script)
    book, offset = Book(), 0
    while offset < timeline.length:
        # A new reader each time, as after a broken line.
        positions = timeline.positions(offset, CHOICES)
        pieces = list(timeline.slices(snapshots[-1], positions, offset, last=True))
        for piece in pieces[: data.draw(st.integers(1, len(pieces)))]:
            assert piece.offset is not None
            assert piece.offset > offset
            book.read(piece)
            offset = piece.offset
    last = snapshots[-1].choices
    assert [(c.text, c.reasoning, c.tool_calls) for c in book.choices] == [
        (c.text, c.reasoning, c.tool_calls) for c in last
    ]
    assert [c.logprobs for c in book.choices] == [
        tuple(token for token in c.logprobs if token.start < len(c.text)) for c in last
    ]


@given(steps, st.sampled_from(["token", "word", "sentence"]))
def test_a_reader_of_any_pace_reads_it_all_and_its_offsets_are_those_of_the_growth(
    script: list[tuple[int, str, str]], unit: str
) -> None:
    timeline, grown_to = Timeline(), [Snapshot((ChoiceSnapshot(),) * CHOICES)]
    book, offset = Book(), 0
    positions = timeline.positions(0, CHOICES)
    for number, step in enumerate([*script, (0, "text", "")]):
        grown_to.append(grown(grown_to[-1], *step))
        timeline.note(*grown_to[-2:])
        last = number == len(script)
        for piece in timeline.slices(grown_to[-1], positions, offset, last=last, pacing=Pacing(unit)):  # type: ignore[arg-type]  # one of its units
            book.read(piece)
            positions[piece.index] = piece.end
            offset = piece.offset or 0
    assert offset == timeline.length
    assert [c.text for c in book.choices] == [c.text for c in grown_to[-1].choices]


def test_the_offset_of_nothing_but_text_is_that_of_the_text() -> None:
    timeline, snapshots = history([(0, "text", "ab"), (0, "text", "물 c")])
    (piece,) = timeline.slices(snapshots[-1], timeline.positions(1, CHOICES), 1, last=True)
    assert (piece.text, piece.offset, timeline.length) == ("b물 c", 5, 5)


def test_lengths_only_grow() -> None:
    lengths = [history([(0, "text", "ab"), (1, "begin", ""), (0, "text", "c")][:count])[0].length for count in range(4)]
    assert lengths == [0, 2, 3, 4]
    assert all(later >= earlier for earlier, later in pairwise(lengths))
