"""An answer that was kept is told as any other, at the pace that was asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulgil.admission.lease import Leases
from mulgil.admission.policy import Limits
from mulgil.admission.store import Account
from mulgil.answers.told_again import Told, ToldAgain
from mulgil.engine.snapshot import ChoiceSnapshot, Snapshot, TokenLogprob, ToolCallSnapshot
from mulgil.pacing import Pacing, Unit
from mulgil.slices import Slice
from mulgil.stores.memory import MemoryStore

UNITS: tuple[Unit, ...] = ("token", "word", "sentence")
texts = st.text(st.sampled_from("ab .!?\n한🌊é́"), max_size=30)


def told(*choices: ChoiceSnapshot, unit: Unit = "token") -> ToldAgain:
    lease = Leases(MemoryStore(), ttl=30, renew_interval=5).open(Account("t", "k"), Limits(), Limits())
    generation = ToldAgain(Told(3, len(choices)), lease, model="m")
    generation.snapshot = Snapshot(choices)
    generation.pacing = Pacing(unit)
    generation.close()
    return generation


async def read(generation: ToldAgain) -> list[Slice]:
    return [piece async for news in generation.follow() for piece in news]


def choice(text: str, reasoning: str = "") -> ChoiceSnapshot:
    tokens = tuple(TokenLogprob(letter, -0.5, start) for start, letter in enumerate(text))
    calls = (ToolCallSnapshot("call_1", "f", '{"a": 1}'),)
    return ChoiceSnapshot(text, len(text), "stop", reasoning, 0, calls, tokens)


@pytest.mark.parametrize("unit", UNITS)
@given(answers=st.lists(st.tuples(texts, texts), min_size=1, max_size=3))
async def test_the_pieces_put_together_are_the_answer(unit: Unit, answers: list[tuple[str, str]]) -> None:
    generation = told(*(choice(*answer) for answer in answers), unit=unit)
    pieces = await read(generation)
    for index, whole in enumerate(generation.snapshot.choices):
        own = [piece for piece in pieces if piece.index == index]
        assert "".join(piece.text for piece in own) == whole.text
        assert "".join(piece.reasoning for piece in own) == whole.reasoning
        assert tuple(entry for piece in own for entry in piece.logprobs) == whole.logprobs
        calls = [call for piece in own for call in piece.calls]
        assert [call.begun for call in calls] == list(whole.tool_calls)
        assert tuple(calls) == own[-1].calls


async def test_words_come_one_by_one_and_sentences_too() -> None:
    text = "One two. Three four! Five"
    whole = ChoiceSnapshot(text, 5, "stop")
    assert [piece.text for piece in await read(told(whole))] == [text]
    assert [piece.text for piece in await read(told(whole, unit="sentence"))] == [
        "One",
        " two. ",
        "Three four! ",
        "Five",
    ]
    words = [piece.text for piece in await read(told(whole, unit="word"))]
    assert "".join(words) == text
    assert len(words) >= 5


async def test_it_can_be_read_at_once() -> None:
    generation = told(ChoiceSnapshot("hello", 1, "stop"))
    await generation.accepted()
    assert (await generation.finished()).choices[0].text == "hello"
