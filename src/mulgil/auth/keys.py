"""API keys: what one looks like, how it is kept, and who it stands for.

A key is `sk-mg-` and 43 characters of [A-Za-z0-9], 256 bits of chance, so a plain SHA-256 digest is
enough to keep it by: there is nothing to guess. The key itself is shown once and kept nowhere.
"""

import hashlib
import re
import secrets
import string
from dataclasses import dataclass

PREFIX = "sk-mg-"
_ALPHABET = string.ascii_letters + string.digits
_SECRET_LENGTH = 43
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST_KEY = 512


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated key and the tenant it belongs to.

    Attributes:
        key_id: short public name of the key, fit for logs.
        tenant: whose key it is.
    """

    key_id: str
    tenant: str


def new_key() -> str:
    """A fresh random key."""
    return PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(_SECRET_LENGTH))


def digest(key: bytes) -> str:
    """The form in which a key is kept and looked up: `sha256:` and 64 hexadecimal digits."""
    return "sha256:" + hashlib.sha256(key).hexdigest()


def stored_form(entry: str) -> str:
    """The digest of *entry*, which is a plain key or already a digest.

    Raises:
        ValueError: *entry* cannot be sent in a header, or is a malformed digest.
    """
    if entry.lower().startswith("sha256:"):
        if not _DIGEST.fullmatch(entry):
            raise ValueError("a digest is 'sha256:' and 64 lower-case hexadecimal digits")
        if entry == digest(b""):
            raise ValueError("this is the digest of no key at all: everybody would have it")
        return entry
    if not entry.isascii() or not entry.isprintable() or " " in entry or not 8 <= len(entry) <= _LONGEST_KEY:
        raise ValueError(f"a key is 8 to {_LONGEST_KEY} printable ASCII characters without spaces")
    return digest(entry.encode())


def bearer_token(header: bytes) -> bytes | None:
    """The token of an `Authorization: Bearer …` header, or None when it holds none.

    Works on bytes, since a header may hold any: what is not ASCII is simply no key of ours.
    """
    scheme, _, token = header.strip().partition(b" ")
    token = token.strip()
    return token if scheme.lower() == b"bearer" and 0 < len(token) <= _LONGEST_KEY else None
