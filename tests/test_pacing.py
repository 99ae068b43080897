"""Whole words and sentences, never a split character, nothing held back at the beginning, nothing lost at the end."""

from itertools import accumulate, pairwise
from typing import Any

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from mulgil.pacing import Pacing

SAID = "Hello world. This is 3.14, e.g. nice! 물길은 흐른다. 東京は晴れ。水が 👨‍👩‍👧‍👦 ok\nnew line"


def pieces(unit: Any, tokens: list[str]) -> list[str]:
    """What a reader gets when the text comes in these tokens."""
    pacing, told, sent = Pacing(unit), 0, []
    for text in accumulate(tokens):
        end = pacing.end(text, told)
        assert told <= end <= len(text)
        sent.append(text[told:end])
        told = end
    return [piece for piece in (*sent, "".join(tokens)[told:]) if piece]


def tokens(length: int) -> list[str]:
    return [SAID[start : start + length] for start in range(0, len(SAID), length)]


def test_tokens_are_sent_as_they_come() -> None:
    assert pieces("token", tokens(3)) == tokens(3)


def test_words_are_sent_whole_with_the_blank_behind_them() -> None:
    assert pieces("word", tokens(3)) == [
        "Hel", "lo ", "world. ", "This ", "is ", "3.14, ", "e.g. ", "nice! ", "물길은 ", "흐른다. ",
        *pieces("word", tokens(3))[10:-3], "ok\n", "new ", "line",
    ]  # fmt: skip
    assert "👨‍👩‍👧‍👦 " in pieces("word", tokens(3))


def test_sentences_are_sent_whole_and_a_point_in_a_number_ends_none() -> None:
    assert pieces("sentence", tokens(3)) == [
        "Hel",
        "lo world. ",
        "This is 3.14, e.g. ",
        "nice! ",
        "물길은 흐른다. ",
        "東京は晴れ。",
        "水が 👨‍👩‍👧‍👦 ok\n",
        "new line",
    ]


@pytest.mark.parametrize("unit", ["word", "sentence"])
def test_a_text_without_an_end_is_not_held_back_for_ever(unit: str) -> None:
    sent = pieces(unit, ["x"] * 1_000)
    assert max(map(len, sent)) <= 401


@pytest.mark.parametrize("unit", ["token", "word", "sentence"])
@given(said=st.lists(st.text(st.sampled_from("ab .!\n물ᄆ수。e🌊👨‍👩\u200d🏽1\ufe0f"), max_size=4), max_size=30))
def test_nothing_is_lost_or_held_back_at_the_start_and_no_character_is_split(unit: str, said: list[str]) -> None:
    whole = "".join(said)
    sent = pieces(unit, said)
    assert "".join(sent) == whole
    first = next((token for token in said if token), "")
    if first and first[-1].isascii() and first[-1].isalpha():
        assert sent[0] == first
    if unit != "token":
        boundaries = {found.end() for found in regex.finditer(r"\X", whole)}
        for end in list(accumulate(map(len, sent)))[:-1]:
            assert end in boundaries or (whole[end - 1].isascii() and whole[end - 1].isalpha())


def test_each_piece_goes_on_where_the_one_before_ended() -> None:
    pacing = Pacing("word")
    ends = [pacing.end(text, 0) for text in accumulate(tokens(1))]
    assert all(later >= earlier for earlier, later in pairwise(ends))
