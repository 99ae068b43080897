"""The keys of the quick start, and the server without keys."""

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mulgil.auth.keys import digest
from mulgil.auth.source import KeySource, OpenDoor, StaticKeys

FIRST = "sk-mg-first-key"
SECOND = "sk-mg-second-key"


async def test_a_key_is_found_whether_it_was_given_plainly_or_as_its_digest() -> None:
    plain = await StaticKeys([FIRST]).find(FIRST.encode())
    hashed = await StaticKeys([digest(FIRST.encode())]).find(FIRST.encode())
    assert plain is not None
    assert plain == hashed


async def test_keys_are_told_apart_and_belong_to_one_tenant() -> None:
    keys = StaticKeys([FIRST, SECOND], tenant="acme")
    first, second = await keys.find(FIRST.encode()), await keys.find(SECOND.encode())
    assert first is not None
    assert second is not None
    assert first.key_id != second.key_id
    assert first.tenant == second.tenant == "acme"


async def test_the_name_of_a_key_says_nothing_about_the_key() -> None:
    caller = await StaticKeys([FIRST]).find(FIRST.encode())
    assert caller is not None
    assert caller.key_id == "key-" + digest(FIRST.encode())[len("sha256:") :][:8]


@pytest.mark.parametrize(
    "presented",
    [
        b"",
        FIRST[:-1].encode(),
        FIRST.encode() + b" ",
        FIRST.upper().encode(),
        digest(FIRST.encode()).encode(),
        digest(FIRST.encode()).removeprefix("sha256:").encode(),
        b"caf\xe9",
        b"\x00" * 1_000,
    ],
    ids=lambda key: f"{key!s:.30}",
)
async def test_nothing_but_the_key_is_the_key(presented: bytes) -> None:
    assert await StaticKeys([FIRST, digest(FIRST.encode())]).find(presented) is None


@hypothesis_settings(max_examples=200, deadline=None, database=None)
@given(st.binary(max_size=600))
async def test_no_bytes_are_an_error(presented: bytes) -> None:
    assert await StaticKeys([FIRST]).find(presented) is None


async def test_without_entries_there_is_no_key() -> None:
    assert await StaticKeys([]).find(b"") is None


@pytest.mark.parametrize("entry", ["short", "not a key at all", "sha256:123", "Sha256:" + "a" * 64])
def test_one_malformed_entry_spoils_them_all_and_is_not_repeated(entry: str) -> None:
    with pytest.raises(ValueError, match=r"a (key|digest) is") as refused:
        StaticKeys([FIRST, entry])
    assert entry not in str(refused.value)
    assert FIRST not in str(refused.value)


@pytest.mark.parametrize("presented", [b"", b"whatever", b"\xff"])
async def test_the_open_door_lets_everybody_in_as_the_same_caller(presented: bytes) -> None:
    door: KeySource = OpenDoor()
    caller = await door.find(presented)
    assert caller is not None
    assert caller == await door.find(b"somebody else")
    assert caller.key_id == "insecure"
