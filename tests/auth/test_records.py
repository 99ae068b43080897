"""Whom a record lets in, when, and what may be seen of it."""

from typing import Any

import pytest
from keyrecords import made, now, record_of
from pydantic import ValidationError

from mulgil.auth.keys import Caller, ReplacedKey, digest, is_of_our_making, new_key, public_prefix

OLD = digest(b"the old key")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, "active"),
        ({"expires": now(hours=1)}, "active"),
        ({"expires": now(seconds=-1)}, "expired"),
        ({"disabled": True}, "disabled"),
        ({"disabled": True, "expires": now(seconds=-1)}, "disabled"),
    ],
)
def test_a_record_opens_while_it_is_neither_disabled_nor_expired(fields: dict[str, Any], status: str) -> None:
    _, record = made(**fields)
    assert record.status(now()) == status
    assert record.opened_by(record.digest, now()) == (status == "active")
    assert not record.opened_by(digest(b"another key"), now())


@pytest.mark.parametrize(
    ("seconds", "fields", "opens"),
    [(60, {}, True), (-1, {}, False), (60, {"disabled": True}, False), (60, {"expires": now(seconds=-1)}, False)],
)
def test_the_key_before_a_rotation_opens_within_its_grace(seconds: float, fields: dict[str, Any], opens: bool) -> None:
    _, record = made(replaced=ReplacedKey(digest=OLD, valid_until=now(seconds=seconds)), **fields)
    assert record.opened_by(OLD, now()) == opens


def test_expiry_is_exact_to_the_moment() -> None:
    end = now(hours=1)
    _, record = made(expires=end)
    assert record.opened_by(record.digest, end.replace(microsecond=0))
    assert not record.opened_by(record.digest, end)


def test_what_may_be_seen_of_a_record_is_neither_key_nor_digest() -> None:
    key, record = made(tenant="acme", models=("m",), replaced=ReplacedKey(digest=OLD, valid_until=now(hours=1)))
    seen = repr(record.view(now()))
    assert public_prefix(key) in seen
    for secret in (key, key[10:], record.digest, record.digest[7:], OLD):
        assert secret not in seen


def test_who_calls_is_what_the_record_says() -> None:
    _, record = made(tenant="acme", tier="gold", models=("m", "n"))
    assert record.caller == Caller(record.id, "acme", "gold", ("m", "n"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", ""), ("id", "a/b"), ("id", "a" * 65), ("digest", "sk-mg-plain"), ("digest", digest(b"")),
        ("digest", digest(b"x") + "\n"), ("tenant", ""), ("tenant", "a b"), ("tenant", "a/b"), ("tenant", "열쇠"),
        ("tier", "a b"), ("models", ()), ("models", ("",)), ("models", ("a\n",)), ("models", "m"),
        ("disabled", "false"), ("disabled", 0), ("expires", now().replace(tzinfo=None)), ("expire", now()),
    ],
)  # fmt: skip
def test_a_wrong_field_spoils_the_record(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        record_of(new_key(), **{field: value})


def test_a_key_of_our_making_is_recognised_by_its_form() -> None:
    assert is_of_our_making(new_key().encode())
    for other in (b"", b"sk-mg-short", new_key().encode() + b"x", new_key().encode() + b"\n", b"sk-mg-" + b"\xff" * 43):
        assert not is_of_our_making(other)
