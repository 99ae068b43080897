"""A text that only grows, read from any offset at any speed."""

import asyncio
from itertools import accumulate

import pytest
from harness import eventually
from hypothesis import given
from hypothesis import strategies as st

from mulgil.admission.lease import Leases
from mulgil.admission.policy import Limits
from mulgil.admission.store import Account
from mulgil.engine.base import ChoiceSnapshot, Prepared, Snapshot
from mulgil.errors import EngineError
from mulgil.generation import Generation, slices
from mulgil.stores.memory import MemoryStore

texts = st.text(st.characters(codec="utf-8"), max_size=12)
growths = st.lists(texts, min_size=1, max_size=20)


def generation(choices: int = 1) -> Generation:
    lease = Leases(MemoryStore(), ttl=30, renew_interval=5).open(Account("t", "k"), Limits(), Limits())
    return Generation(Prepared("mg-1", [1, 2, 3], 100, choices, None), lease, model="m")


def snapshot(*choice_texts: str) -> Snapshot:
    return Snapshot(tuple(ChoiceSnapshot(text, len(text)) for text in choice_texts))


@given(growths, st.data())
def test_the_slices_put_together_are_the_last_text_whatever_snapshots_a_reader_sees(
    pieces: list[str], data: st.DataObject
) -> None:
    whole = list(accumulate(pieces))
    seen = [text for text in whole[:-1] if data.draw(st.booleans())] + [whole[-1]]
    start = offset = data.draw(st.integers(0, len(seen[0])))
    read = ""
    for text in seen:
        for piece in slices(snapshot(text), [offset]):
            assert piece.text
            read += piece.text
            offset = piece.end
    assert read == whole[-1][start:]
    assert offset == len(whole[-1])


@given(growths, st.lists(st.integers(0, 3), max_size=20), st.integers(0, 5))
def test_followers_of_any_speed_and_offset_read_the_same_text(pieces: list[str], naps: list[int], start: int) -> None:
    async def scenario() -> None:
        subject = generation(choices=2)

        async def read(offset: int, nap: int) -> list[str]:
            read = ["", ""]
            async for news in subject.follow([offset, offset]):
                for piece in news:
                    read[piece.index] += piece.text
                for _ in range(nap):
                    await asyncio.sleep(0)
            return read

        offset = min(start, len(pieces[0]))
        readers = [asyncio.create_task(read(0, nap)) for nap in (0, 1, 7)]
        for text, nap in zip(accumulate(pieces), [*naps, *[0] * len(pieces)], strict=False):
            subject.publish(snapshot(text, text[::-1] if text == pieces[0] else text))
            for _ in range(nap):
                await asyncio.sleep(0)
        late = asyncio.create_task(read(offset, 0))
        subject.close()
        whole = "".join(pieces)
        for reader in readers:
            assert (await reader)[0] == whole
        assert (await late)[0] == whole[offset:]

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
