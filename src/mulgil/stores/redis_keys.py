"""Keys in Redis or Valkey, shared by all gateways."""

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from mulgil.admission.store import StoreError
from mulgil.auth.keys import KeyRecord
from mulgil.errors import KeysUnavailableError
from mulgil.stores.redis_clients import connect
from mulgil.stores.redis_scripts import Call, Script, ScriptRunner

_BASE = "mulgil:1:{keys}:"
_RECORDS = f"{_BASE}records"
_DIGESTS = f"{_BASE}digests"
_MOST_ATTEMPTS = 10


class RedisKeys:
    """A `KeyStore`, and the directory in which a key is found by its digest.

    Two hashes, records by id and ids by digest, so that one key among many is found as fast as among few.
    They have no time to live.

    Args:
        url: where; see `redis_clients.connect`.
        timeout: seconds that one step may take, waiting for a connection included.
        connections: most steps at the same time; more wait.

    Raises:
        ValueError: the URL is none.
    """

    def __init__(self, url: str, *, timeout: float = 0.4, connections: int = 8) -> None:
        self._runner = ScriptRunner(
            connect(url, connections=connections, timeout=timeout), connections=connections, timeout=timeout
        )
        self._find = Script.of_files("keys_find_v1.lua")
        self._read = Script.of_files("keys_read_v1.lua")
        self._write = Script.of_files("keys_write_v1.lua")

    async def by_digest(self, presented: str) -> KeyRecord | None:
        return _record(await self._run(self._find, presented))

    async def get(self, key_id: str) -> KeyRecord | None:
        return _record(await self._run(self._read, key_id)) if key_id else None

    async def list(self) -> Sequence[KeyRecord]:
        found = map(_record, await self._run(self._read, ""))
        return sorted((record for record in found if record is not None), key=lambda record: record.created)

    async def add(self, record: KeyRecord) -> bool:
        return await self._replace(record.id, b"", None, record)

    async def change(self, key_id: str, change: Callable[[KeyRecord], KeyRecord]) -> KeyRecord | None:
        return await self._swap(key_id, change)

    async def delete(self, key_id: str) -> KeyRecord | None:
        return await self._swap(key_id, lambda _: None)

    async def close(self) -> None:
        await self._runner.close()

    async def _swap(self, key_id: str, change: Callable[[KeyRecord], KeyRecord | None]) -> KeyRecord | None:
        """The record after *change*, or before it if there is none after it."""
        for _ in range(_MOST_ATTEMPTS):
            raw = await self._run(self._read, key_id) if key_id else None
            before = _record(raw)
            if before is None:
                return None
            after = change(before)
            if await self._replace(key_id, raw or b"", before, after):
                return after or before
        raise KeysUnavailableError("The key is being changed by others; try again.")

    async def _replace(self, key_id: str, raw: bytes, before: KeyRecord | None, after: KeyRecord | None) -> bool:
        had = before.digests if before else ()
        gets = after.digests if after else ()
        becomes = after.model_dump_json(exclude_none=True) if after else ""
        return bool(await self._run(self._write, key_id, raw, becomes, len(had), *had, *gets))

    async def _run(self, script: Script, *args: Any) -> Any:
        try:
            return await self._runner.run(Call(script, (_RECORDS, _DIGESTS), args))
        except StoreError as error:
            raise KeysUnavailableError("The keys cannot be read or written at the moment.") from error


def _record(reply: Any) -> KeyRecord | None:
    if not reply:
        return None
    try:
        return KeyRecord.model_validate_json(reply)
    except ValidationError as error:
        # Its fields may hold anything, and would be repeated.
        names = {str(problem["loc"][0]) for problem in error.errors(include_input=False) if problem["loc"]}
        raise KeysUnavailableError(
            f"A record of a key in Redis cannot be read: {', '.join(sorted(names)) or 'no JSON'}"
        ) from None
