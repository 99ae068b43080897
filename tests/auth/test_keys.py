"""What a key looks like, and how it is kept."""

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mulgil.auth.keys import bearer_token, digest, new_key, stored_form

KEY = "sk-mg-test-key-of-the-suite"
DIGEST = "sha256:" + hashlib.sha256(KEY.encode()).hexdigest()


def test_a_new_key_carries_256_bits_in_letters_and_digits() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(re.fullmatch(r"sk-mg-[A-Za-z0-9]{43}", key) for key in keys)
    assert len(set("".join(keys))) == 26 + 26 + 10 + 1, "letters, digits and the hyphen"


def test_a_new_key_can_be_configured() -> None:
    key = new_key()
    assert stored_form(key) == digest(key.encode())


@pytest.mark.parametrize("entry", [KEY, DIGEST])
def test_a_key_is_kept_as_its_digest_only(entry: str) -> None:
    assert stored_form(entry) == DIGEST


@pytest.mark.parametrize("entry", ["x" * 8, "x" * 512, "!#$%&'*+-.^_`|~", "a,b;c=d:e/f"])
def test_a_plain_key_is_any_printable_ascii_without_spaces(entry: str) -> None:
    assert stored_form(entry) == digest(entry.encode())


@pytest.mark.parametrize(
    "entry",
    [
        "",
        "x" * 7,
        "x" * 513,
        "a space in it",
        "a\ttab-in-it",
        "a-line\nfeed",
        "a-null\x00byte",
        "schlüssel-wörter",
        "열쇠열쇠열쇠열쇠",
        "lone-\ud800-surrogate",
        "sha256:",
        "sha256:" + "a" * 63,
        "sha256:" + "a" * 65,
        "sha256:" + "A" * 64,
        "sha256:" + "g" * 64,
        "sha256: " + "a" * 64,
        "SHA256:" + "a" * 64,
        DIGEST + "\n",
        digest(b""),
    ],
    ids=ascii,
)
def test_a_malformed_entry_is_refused_and_not_repeated(entry: str) -> None:
    with pytest.raises(ValueError, match=r"a key is|a digest is|this is the digest of no key") as refused:
        stored_form(entry)
    assert not entry or entry not in str(refused.value) or entry == "sha256:"


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (b"Bearer abc", b"abc"),
        (b"bearer abc", b"abc"),
        (b"BEARER   abc  ", b"abc"),
        (b"  Bearer abc", b"abc"),
        (b"Bearer caf\xe9", b"caf\xe9"),
        (b"Bearer " + b"x" * 512, b"x" * 512),
        (b"Bearer " + b"x" * 513, None),
        (b"Bearer " + b"x" * 100_000, None),
        (b"", None),
        (b"   ", None),
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"Bearer\tabc", None),
        (b"Bearerabc", None),
        (b"abc", None),
        (b"Basic abc", None),
        (b"Bearer\xa0abc", None),
        (b"\xff\xfe", None),
    ],
    ids=lambda value: f"{value!s:.24}{len(value or b'')}",
)
def test_the_token_of_a_bearer_header(header: bytes, token: bytes | None) -> None:
    assert bearer_token(header) == token


@hypothesis_settings(max_examples=200, deadline=None, database=None)
@given(st.binary(max_size=600))
def test_no_bytes_in_a_header_make_an_error(header: bytes) -> None:
    for sent in (header, b"Bearer " + header):
        token = bearer_token(sent)
        assert token is None or 0 < len(token) <= 512
