"""Answers in Redis or Valkey, shared by all gateways that have the same secret."""

from typing import Any

from mulgil.stores.redis_clients import connect
from mulgil.stores.redis_scripts import Call, Script, ScriptRunner

_PREFIX = "mulgil:1:answer:"


class RedisAnswers:
    """Implements `AnswerStore`. Every entry has a time to live; which ones go first when the server's memory is full is
    the server's to say (`maxmemory-policy`).

    Args:
        url: where; see `redis_clients.connect`.
        most_bytes: of a value that is read; of a longer one, which is none of ours, comes no more than that and one.
        timeout: seconds that one step may take, waiting for a connection included.
        connections: most steps at the same time; more wait.

    Raises:
        ValueError: the URL is none.
    """

    def __init__(self, url: str, *, most_bytes: int, timeout: float = 0.4, connections: int = 32) -> None:
        self._runner = ScriptRunner(
            connect(url, connections=connections, timeout=timeout), connections=connections, timeout=timeout
        )
        self._most_bytes = most_bytes
        self._get = Script.of_files("answers_get_v1.lua")
        self._put = Script.of_files("answers_put_v1.lua")

    @property
    def held(self) -> tuple[int, int] | None:
        return None

    async def get(self, key: str) -> bytes | None:
        raw: bytes | None = await self._run(self._get, key, self._most_bytes)
        return raw or None

    async def put(self, key: str, value: bytes, ttl: float) -> None:
        await self._run(self._put, key, value, max(1, round(ttl * 1_000)))

    async def close(self) -> None:
        await self._runner.close()

    async def _run(self, script: Script, key: str, *args: Any) -> Any:
        return await self._runner.run(Call(script, (_PREFIX + key,), args))
