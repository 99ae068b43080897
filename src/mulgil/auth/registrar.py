"""Makes, changes and withdraws keys, on behalf of the command line and the admin API alike."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError

from mulgil.audit import Actor, Audit
from mulgil.auth.keys import KeyRecord, ReplacedKey, digest, new_key, new_key_id, public_prefix
from mulgil.auth.source import KeyStore
from mulgil.errors import InvalidFieldError, KeyNotFoundError
from mulgil.tiers import DEFAULT, Tier

LONGEST_GRACE = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Grant:
    """What a new key is for; the fields are those of `KeyRecord`."""

    tenant: str = "default"
    tier: str = DEFAULT
    models: Sequence[str] | None = None
    expires: datetime | None = None


@dataclass(frozen=True, slots=True)
class Issued:
    """A new key: the only moment at which it is known."""

    record: KeyRecord
    key: str


class Registrar:
    """Checks what is asked for, does it in the store, and notes it in the audit log.

    Every method may raise `KeysUnavailableError`; those that take an id, `KeyNotFoundError`; those that
    take values, `InvalidFieldError`.

    Args:
        store: keeps the records.
        tiers: that a key may have.
        audit: is told of every change, never of a key or a digest.
    """

    def __init__(self, store: KeyStore, tiers: Mapping[str, Tier], audit: Audit) -> None:
        self._store = store
        self.tiers = tiers
        self._audit = audit

    async def get(self, key_id: str) -> KeyRecord:
        """The record with this id."""
        return _found(key_id, await self._store.get(key_id))

    async def list(self) -> Sequence[KeyRecord]:
        """All records, the oldest first."""
        return await self._store.list()

    async def create(self, by: Actor, grant: Grant) -> Issued:
        """A new key."""
        self._check(asdict(grant))
        while True:
            key = new_key()
            record = _valid(
                {
                    "id": new_key_id(),
                    "digest": digest(key.encode()),
                    "prefix": public_prefix(key),
                    "created": _now(),
                    **asdict(grant),
                }
            )
            if await self._store.add(record):
                break
        self._note(by, "key.create", record, {name: value for name, value in asdict(grant).items() if name != "tenant"})
        return Issued(record, key)

    async def rotate(self, by: Actor, key_id: str, grace: timedelta) -> Issued:
        """A new key for an old record; the old key works for *grace* longer, the one before it no more."""
        if not timedelta(0) <= grace <= LONGEST_GRACE:
            raise InvalidFieldError(
                f"Invalid 'grace': expected 0 to {LONGEST_GRACE.days} days.", param="grace", code="invalid_value"
            )
        key = new_key()
        until = _now() + grace

        def change(record: KeyRecord) -> KeyRecord:
            replaced = ReplacedKey(digest=record.digest, valid_until=until) if grace else None
            return record.model_copy(
                update={"digest": digest(key.encode()), "prefix": public_prefix(key), "replaced": replaced}
            )

        record = _found(key_id, await self._store.change(key_id, change))
        self._note(by, "key.rotate", record, {"old_valid_until": until})
        return Issued(record, key)

    async def change(self, by: Actor, key_id: str, changes: Mapping[str, Any]) -> KeyRecord:
        """The record with some of `tier`, `models`, `expires` and `disabled` changed."""
        self._check(changes)
        record = await self._store.change(key_id, lambda old: _valid({**old.model_dump(), **changes}))
        self._note(by, "key.change", found := _found(key_id, record), changes)
        return found

    async def delete(self, by: Actor, key_id: str) -> KeyRecord:
        """What the record was."""
        record = _found(key_id, await self._store.delete(key_id))
        self._note(by, "key.delete", record, {})
        return record

    def _check(self, values: Mapping[str, Any]) -> None:
        if (tier := values.get("tier", DEFAULT)) not in self.tiers:
            known = ", ".join(f"'{name}'" for name in sorted(self.tiers))
            raise InvalidFieldError(
                f"Invalid 'tier': there is no tier '{str(tier)[:64]}'. Expected one of: {known}.",
                param="tier",
                code="invalid_value",
            )
        if (expires := values.get("expires")) is not None and expires <= _now():
            raise InvalidFieldError(
                "Invalid 'expires': expected a time in the future.", param="expires", code="invalid_value"
            )

    def _note(self, by: Actor, what: str, record: KeyRecord, values: Mapping[str, Any]) -> None:
        self._audit.write(by, what, key_id=record.id, tenant=record.tenant, **{"values": values or None})


def _found(key_id: str, record: KeyRecord | None) -> KeyRecord:
    if record is None:
        raise KeyNotFoundError(key_id)
    return record


def _now() -> datetime:
    return datetime.now(UTC)


def _valid(fields: Mapping[str, Any]) -> KeyRecord:
    try:
        return KeyRecord.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        param = str(first["loc"][0])
        raise InvalidFieldError(f"Invalid '{param}': {first['msg']}.", param=param, code="invalid_value") from None
