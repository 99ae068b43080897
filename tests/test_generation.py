"""A text that only grows, read from any offset at any speed."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import pytest
from harness import eventually
from hypothesis import given
from hypothesis import strategies as st

from mulgil.admission.lease import Leases
from mulgil.admission.policy import Limits
from mulgil.admission.store import Account
from mulgil.engine.base import Prepared, Prompt
from mulgil.engine.snapshot import ChoiceSnapshot, Snapshot, TokenLogprob, ToolCallSnapshot
from mulgil.errors import EngineError
from mulgil.generation import Generation
from mulgil.slices import CallSlice, Position, Slice, slices
from mulgil.stores.memory import MemoryStore

texts = st.text(st.characters(codec="utf-8"), max_size=12)
growths = st.lists(texts, min_size=1, max_size=20)


def generation(choices: int = 1, *, timed: bool = False) -> Generation:
    lease = Leases(MemoryStore(), ttl=30, renew_interval=5).open(Account("t", "k"), Limits(), Limits())
    return Generation(Prepared("mg-1", (Prompt([1, 2, 3], 100),), choices, None), lease, model="m", timed=timed)


def snapshot(*choice_texts: str) -> Snapshot:
    return Snapshot(tuple(ChoiceSnapshot(text, len(text)) for text in choice_texts))


@given(growths, st.data())
def test_the_slices_put_together_are_the_last_text_whatever_snapshots_a_reader_sees(
    pieces: list[str], data: st.DataObject
) -> None:
    whole = list(accumulate(pieces))
    seen = [text for text in whole[:-1] if data.draw(st.booleans())] + [whole[-1]]
    start = data.draw(st.integers(0, len(seen[0])))
    position = Position(start)
    read = ""
    for text in seen:
        for piece in slices(snapshot(text), [position]):
            assert piece.text
            read += piece.text
            position = piece.end
    assert read == whole[-1][start:]
    assert position.text == len(whole[-1])


def grown(choice: ChoiceSnapshot, step: tuple[str, str]) -> ChoiceSnapshot:
    """*choice* after one token of this kind."""
    kind, new = step
    if kind == "reasoning":
        return replace(choice, reasoning=choice.reasoning + new)
    if kind == "call":
        begun = ToolCallSnapshot(f"call_{len(choice.tool_calls)}", f"f{len(choice.tool_calls)}", new)
        return replace(choice, tool_calls=(*choice.tool_calls, begun))
    if kind == "arguments" and choice.tool_calls:
        *others, last = choice.tool_calls
        return replace(choice, tool_calls=(*others, replace(last, arguments=last.arguments + new)))
    # A token is told at once. One that is part of a character has no text; that of another may be held back, since
    # it could be the beginning of a stop sequence.
    said = said_by(choice.logprobs)
    token = TokenLogprob("" if kind == "half" else new, -1.0 - len(choice.logprobs), len(said))
    told = (*choice.logprobs, token)
    return replace(choice, text=said_by(told) if kind == "text" else choice.text, logprobs=told)


def said_by(tokens: Sequence[TokenLogprob]) -> str:
    return "".join(token.text for token in tokens)


def history(steps: list[tuple[str, str]]) -> list[ChoiceSnapshot]:
    """All snapshots of a choice; in the last one nothing is held back."""
    found = list(accumulate(steps, grown, initial=ChoiceSnapshot()))
    return [*found, replace(found[-1], text=said_by(found[-1].logprobs))]


kinds = st.sampled_from(("text", "text", "held", "half", "reasoning", "call", "arguments"))
choice_growths = st.lists(st.tuples(kinds, texts.filter(bool)), max_size=15)


class Reader:
    """Puts the slices of one choice together, as strictly as the strictest client."""

    def __init__(self) -> None:
        self.choice = ChoiceSnapshot()

    def read(self, piece: Slice) -> None:
        assert piece.text or piece.reasoning or piece.calls or piece.logprobs, "a slice is never nothing"
        told = self.choice.logprobs + piece.logprobs
        self.choice = replace(
            self.choice,
            text=self.choice.text + piece.text,
            reasoning=self.choice.reasoning + piece.reasoning,
            logprobs=told,
        )
        assert said_by(told) == self.choice.text, "tokens come with the text that they make up"
        for call in piece.calls:
            self._read_call(call)

    def _read_call(self, call: CallSlice) -> None:
        calls = list(self.choice.tool_calls)
        if call.index == len(calls):
            assert call.begun is not None
            calls.append(replace(call.begun, arguments=call.arguments))
        else:
            assert call.begun is None, "a call begins once"
            assert call.arguments
            known = calls[call.index]
            calls[call.index] = replace(known, arguments=known.arguments + call.arguments)
        self.choice = replace(self.choice, tool_calls=tuple(calls))


@given(st.lists(choice_growths, min_size=1, max_size=3), st.data())
def test_text_reasoning_calls_and_logprobs_put_together_are_the_last_snapshot_whatever_a_reader_sees(
    growths_of_all: list[list[tuple[str, str]]], data: st.DataObject
) -> None:
    histories = [history(steps) for steps in growths_of_all]
    length = max(map(len, histories))
    whole = [Snapshot(tuple(one[min(at, len(one) - 1)] for one in histories)) for at in range(length)]
    seen = [one for one in whole[:-1] if data.draw(st.booleans())] + [whole[-1]]
    positions, readers = [Position()] * len(histories), [Reader() for _ in histories]
    for number, snapshot_seen in enumerate(seen):
        last = number == len(seen) - 1 and data.draw(st.booleans(), label="closed when it is read")
        found = slices(snapshot_seen, positions, last=last)
        assert [piece.index for piece in found] == sorted({piece.index for piece in found})
        for piece in found:
            readers[piece.index].read(piece)
            positions[piece.index] = piece.end
    for piece in slices(whole[-1], positions, last=True):
        assert not (piece.text or piece.reasoning or piece.calls), "only logprobs wait for the end"
        readers[piece.index].read(piece)
        positions[piece.index] = piece.end
    assert [reader.choice for reader in readers] == list(whole[-1].choices)
    assert slices(whole[-1], positions, last=True) == []


@given(choice_growths, st.lists(st.integers(0, 3), max_size=15))
def test_followers_of_any_speed_read_the_same_calls_and_logprobs(steps: list[tuple[str, str]], naps: list[int]) -> None:
    async def scenario() -> None:
        subject = generation()

        async def read(nap: int) -> ChoiceSnapshot:
            reader = Reader()
            async for news in subject.follow():
                for piece in news:
                    reader.read(piece)
                for _ in range(nap):
                    await asyncio.sleep(0)
            return reader.choice

        readers = [asyncio.create_task(read(nap)) for nap in (0, 1, 7)]
        whole = history(steps)
        for choice, nap in zip(whole, [*naps, *[0] * len(whole)], strict=False):
            subject.publish(Snapshot((choice,)))
            for _ in range(nap):
                await asyncio.sleep(0)
        late = asyncio.create_task(read(0))
        subject.close()
        for reader in (*readers, late):
            assert await reader == whole[-1]

    asyncio.run(scenario())


@given(growths, st.lists(st.integers(0, 3), max_size=20), st.integers(0, 5))
def test_followers_of_any_speed_and_offset_read_the_same_text(pieces: list[str], naps: list[int], start: int) -> None:
    async def scenario() -> None:
        subject = generation(timed=True)

        async def read(offset: int, nap: int) -> str:
            read = ""
            async for news in subject.follow(offset):
                for piece in news:
                    read += piece.text
                    assert piece.offset == offset + len(read)
                for _ in range(nap):
                    await asyncio.sleep(0)
            return read

        readers = [asyncio.create_task(read(0, nap)) for nap in (0, 1, 7)]
        for text, nap in zip(accumulate(pieces), [*naps, *[0] * len(pieces)], strict=False):
            subject.publish(snapshot(text))
            for _ in range(nap):
                await asyncio.sleep(0)
        whole = "".join(pieces)
        offset = min(start, len(whole))
        late = asyncio.create_task(read(offset, 0))
        subject.close()
        for reader in readers:
            assert await reader == whole
        assert await late == whole[offset:]

    asyncio.run(scenario())


async def test_text_published_just_before_the_end_is_not_lost() -> None:
    subject = generation()
    subject.publish(snapshot("a"))
    follower = subject.follow()
    assert [piece.text for piece in await anext(follower)] == ["a"]
    subject.publish(snapshot("abc"))
    subject.close()
    assert [piece.text for piece in await anext(follower)] == ["bc"]
    with pytest.raises(StopAsyncIteration):
        await anext(follower)


async def test_a_failure_comes_after_all_text() -> None:
    subject = generation()
    subject.publish(snapshot("some"))
    subject.close(EngineError("broken"))
    read = []
    with pytest.raises(EngineError, match="broken"):
        async for news in subject.follow():
            read += [piece.text for piece in news]
    assert read == ["some"]
    with pytest.raises(EngineError, match="broken"):
        await subject.finished()


async def test_a_follower_that_leaves_does_not_take_the_others_along() -> None:
    subject = generation()
    staying = asyncio.create_task(subject.finished())
    leaving = asyncio.create_task(anext(subject.follow()))
    await eventually(lambda: len(subject._waiting) == 2)
    leaving.cancel()
    await asyncio.wait([leaving])
    subject.publish(snapshot("on"))
    subject.close()
    assert (await staying).choices[0].text == "on"


async def test_only_the_first_end_counts() -> None:
    subject = generation()
    subject.publish(snapshot("x"))
    subject.close()
    subject.close(EngineError("too late"))
    assert (await subject.finished()).choices[0].text == "x"


async def test_it_is_accepted_with_the_first_snapshot_and_not_before() -> None:
    subject = generation()
    waiting = asyncio.create_task(subject.accepted())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    subject.publish(snapshot(""))
    await waiting


async def test_a_refusal_is_raised_to_whoever_waits_for_acceptance() -> None:
    subject = generation()
    waiting = asyncio.create_task(subject.accepted())
    await asyncio.sleep(0)
    subject.close(EngineError("refused"))
    with pytest.raises(EngineError, match="refused"):
        await waiting
