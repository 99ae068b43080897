"""API keys: what one looks like, how it is kept, and who it stands for.

A key is `sk-mg-` and 43 characters of [A-Za-z0-9], 256 bits of chance, so a plain SHA-256 digest is
enough to keep it by: there is nothing to guess. The key itself is shown once and kept nowhere.
"""

import hashlib
import hmac
import re
import secrets
import string
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StrictBool

from mulgil.tiers import DEFAULT, TierName

PREFIX = "sk-mg-"
_ALPHABET = string.ascii_letters + string.digits
_SECRET_LENGTH = 43
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST_KEY = 512
_KEY = re.compile(rb"sk-mg-[A-Za-z0-9]{43}")
_SHOWN = len(PREFIX) + 4
_ID_LENGTH = 8


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated key and the tenant it belongs to.

    Attributes:
        key_id: short public name of the key, fit for logs.
        tenant: whose key it is.
        tier: name of the limits and rights it has.
        models: names of the models it may use; None for all.
        prefix: the first characters of the key, by which people tell keys apart; empty where they would tell too much.
    """

    key_id: str
    tenant: str
    tier: str = DEFAULT
    models: tuple[str, ...] | None = None
    prefix: str = field(default="", compare=False)


def _no_digest_of_nothing(value: str) -> str:
    if value == digest(b""):
        raise ValueError("this is the digest of no key at all: everybody would have it")
    return value


Digest = Annotated[str, Field(pattern=rf"^{_DIGEST.pattern}$"), AfterValidator(_no_digest_of_nothing)]
KeyId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
TenantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}$")]
ModelName = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,256}$")]


class ReplacedKey(BaseModel):
    """The key before the last rotation.

    Attributes:
        digest: of it.
        valid_until: when it stops being accepted.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    digest: Digest
    valid_until: AwareDatetime


class KeyRecord(BaseModel):
    """All that is kept of a key.

    Attributes:
        id: its public name; stays when it is rotated.
        digest: by which it is found.
        prefix: its first characters, by which people tell keys apart.
        tenant: whose it is.
        tier: name of its limits and rights.
        models: names of the models it may use; None for all.
        created: when.
        expires: when it stops being accepted; None for never.
        disabled: not accepted for now.
        replaced: the key before the last rotation.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: KeyId
    digest: Digest
    prefix: Annotated[str, Field(pattern=r"^[!-~]{0,16}$")] = ""
    tenant: TenantName = "default"
    tier: TierName = DEFAULT
    models: Annotated[tuple[ModelName, ...], Field(min_length=1, max_length=256)] | None = None
    created: AwareDatetime
    expires: AwareDatetime | None = None
    disabled: StrictBool = False
    replaced: ReplacedKey | None = None

    @property
    def digests(self) -> tuple[str, ...]:
        """All under which it may be found."""
        return (self.digest, self.replaced.digest) if self.replaced else (self.digest,)

    @property
    def caller(self) -> Caller:
        """Who calls with it."""
        return Caller(self.id, self.tenant, self.tier, self.models, self.prefix)

    def status(self, now: datetime) -> Literal["active", "disabled", "expired"]:
        """What is to be said of it at *now*."""
        if self.disabled:
            return "disabled"
        return "expired" if self.expires is not None and self.expires <= now else "active"

    def view(self, now: datetime) -> dict[str, Any]:
        """What anybody may see of it who may see keys: no digest."""
        return {
            "id": self.id,
            "prefix": self.prefix,
            "tenant": self.tenant,
            "tier": self.tier,
            "models": self.models,
            "status": self.status(now),
            "created": self.created,
            "expires": self.expires,
            "disabled": self.disabled,
            "replaced_valid_until": self.replaced.valid_until if self.replaced else None,
        }

    def opened_by(self, presented: str, now: datetime) -> bool:
        """Whether the key with the digest *presented* is accepted at *now*."""
        if self.status(now) != "active":
            return False
        if hmac.compare_digest(presented.encode(), self.digest.encode()):
            return True
        return (
            self.replaced is not None
            and hmac.compare_digest(presented.encode(), self.replaced.digest.encode())
            and now < self.replaced.valid_until
        )


def new_key() -> str:
    """A fresh random key."""
    return PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(_SECRET_LENGTH))


def new_key_id() -> str:
    """A fresh random name for a key."""
    return "key_" + "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))


def public_prefix(key: str) -> str:
    """As much of *key* as anybody may see; the rest still carries 232 bits."""
    return key[:_SHOWN]


def is_of_our_making(key: bytes) -> bool:
    """Whether *key* has the form of a `new_key`."""
    return _KEY.fullmatch(key) is not None


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
