"""What is kept comes back as it was, or not at all."""

from hypothesis import given
from hypothesis import strategies as st

from mulgil.cache.entry import Entry, is_whole, opened, sealed
from mulgil.cache.sealing import Seal
from mulgil.engine.snapshot import ChoiceSnapshot, Snapshot, TokenLogprob, ToolCallSnapshot

SEAL = Seal(b"the secret of the tests")
texts = st.text(st.characters(codec="utf-8"), max_size=12)
logprobs = st.none() | st.floats(max_value=0, allow_nan=False)
likely = st.tuples(texts, st.floats(max_value=0, allow_nan=False))
tokens = st.builds(TokenLogprob, texts, logprobs, st.integers(0, 99), st.lists(likely, max_size=2).map(tuple))
choices = st.builds(
    ChoiceSnapshot,
    texts,
    st.integers(0, 99),
    st.sampled_from(["stop", "length", "tool_calls"]),
    texts,
    st.integers(0, 99),
    st.lists(st.builds(ToolCallSnapshot, texts, texts, texts), max_size=2).map(tuple),
    st.lists(tokens, max_size=3).map(tuple),
)
entries = st.builds(
    Entry,
    made_at=st.floats(0, 1e10),
    prompt_tokens=st.integers(1, 99),
    choices=st.lists(choices, min_size=1, max_size=3).map(tuple),
)
ENTRY = Entry(made_at=1.0, prompt_tokens=3, choices=(ChoiceSnapshot("hello", 1, "stop"),))


@given(entries)
def test_an_entry_comes_back_as_it_was_infinite_logprobs_too(entry: Entry) -> None:
    assert opened(sealed(entry, "key", SEAL), "key", SEAL) == entry


@given(st.data())
def test_one_that_was_cut_off_or_changed_anywhere_is_none(data: st.DataObject) -> None:
    raw = bytearray(sealed(ENTRY, "key", SEAL))
    where = data.draw(st.integers(0, len(raw) - 1))
    assert opened(bytes(raw[:where]), "key", SEAL) is None
    raw[where] ^= data.draw(st.integers(1, 255))
    assert opened(bytes(raw), "key", SEAL) is None


@given(st.binary(max_size=200))
def test_what_was_never_an_entry_is_none(raw: bytes) -> None:
    assert opened(raw, "key", SEAL) is None


def test_one_from_under_another_key_or_another_seal_is_none() -> None:
    raw = sealed(ENTRY, "key", SEAL)
    assert opened(raw, "other", SEAL) is None
    assert opened(raw, "key", Seal(b"another secret")) is None
    assert opened(raw.replace(b"answer-1", b"answer-2"), "key", SEAL) is None


def test_a_sealed_body_that_is_no_entry_is_none() -> None:
    body = b'{"made_at": 1}'
    assert opened(b"mulgil-answer-1\n" + SEAL.digest(b"entry", b"key", body) + body, "key", SEAL) is None


def test_parts_of_a_digest_are_not_run_together() -> None:
    assert SEAL.digest(b"ab", b"c") != SEAL.digest(b"a", b"bc")
    assert SEAL.digest(b"ab") != SEAL.digest(b"ab", b"")


def test_only_ends_of_an_answers_own_are_whole() -> None:
    def ended(*reasons: str | None) -> bool:
        return is_whole(Snapshot(tuple(ChoiceSnapshot("x", 1, reason) for reason in reasons)))  # type: ignore[arg-type]  # those of the parameters

    assert ended("stop", "length", "tool_calls")
    for reason in (None, "abort", "content_filter"):
        assert not ended("stop", reason)


def test_the_snapshot_of_an_entry_has_its_whole_prompt_from_the_cache() -> None:
    assert ENTRY.snapshot == Snapshot(ENTRY.choices, cached_tokens=3)
