"""Runs scripts on the server: one round trip each, a deadline on each, and one kind of error."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar

from redis.exceptions import NoScriptError, RedisClusterException, RedisError

from mulgil.admission.store import StoreError
from mulgil.stores.redis_clients import Connected

T = TypeVar("T")

_SLICES = 16
_BATCH = 100
_LONGEST_REASON = 200


@dataclass(frozen=True)
class Script:
    """A script, and the name under which the server keeps it."""

    text: str
    sha: str

    @classmethod
    def of_files(cls, *names: str) -> "Script":
        """The script that the files of these names make together."""
        text = "\n".join(files("mulgil.stores").joinpath("lua", name).read_text("utf-8") for name in names)
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@dataclass(frozen=True, slots=True)
class Call:
    """One run of a script."""

    script: Script
    keys: tuple[str, ...]
    args: Sequence[str | int]

    def by_sha(self) -> tuple[str | int, ...]:
        """The command for a server that knows the script."""
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    def by_text(self) -> tuple[str | int, ...]:
        """The command for one that does not; it learns the script from it."""
        return ("EVAL", self.script.text, len(self.keys), *self.keys, *self.args)


class ScriptRunner:
    """Runs scripts.

    A command that is cancelled or comes too late takes its connection with it: redis-py closes it, since
    its reply would be read as that of the next command. Nothing is ever repeated but a script that the
    server did not know, and so did not run.

    Args:
        connected: the client.
        connections: most commands on their way at the same time; the others wait.
        timeout: seconds for one step, waiting included; those in which our own loop was busy do not count.
    """

    def __init__(self, connected: Connected, *, connections: int, timeout: float) -> None:
        self._connected = connected
        self._client: Any = connected.client  # its commands are typed for both sync and async use
        self._timeout = timeout
        self._turns = asyncio.Semaphore(connections)

    async def run(self, call: Call) -> Any:
        """The script's reply.

        Raises:
            StoreError: there was none.
        """

        async def step() -> Any:
            try:
                return await self._client.execute_command(*call.by_sha())
            except NoScriptError:
                return await self._client.execute_command(*call.by_text())

        return await self._attempt(step)

    async def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """The replies to many calls, which are sent together; each batch of them is a step.

        Raises:
            StoreError: not every call was answered.
        """
        replies: list[Any] = []
        for start in range(0, len(calls), _BATCH):
            batch = calls[start : start + _BATCH]
            replies += await self._attempt(partial(self._run_batch, batch))
        return replies

    async def ping(self) -> None:
        """A round trip.

        Raises:
            StoreError: there was no answer.
        """
        await self._attempt(self._client.ping)

    async def close(self) -> None:
        """Close every connection."""
        await self._connected.close()

    async def _run_batch(self, batch: Sequence[Call]) -> list[Any]:
        replies = await self._send([call.by_sha() for call in batch])
        unknown = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            again = await self._send([batch[index].by_text() for index in unknown])
            for index, reply in zip(unknown, again, strict=True):
                replies[index] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def _send(self, commands: Sequence[tuple[str | int, ...]]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
            return replies

    async def _attempt(self, step: Callable[[], Awaitable[T]]) -> T:
        try:
            async with _deadline(self._timeout), self._turns:
                return await step()
        except TimeoutError:
            raise StoreError(f"no answer within {self._timeout:g} s") from None
        except (RedisError, RedisClusterException, OSError, RuntimeError) as error:
            # RedisClusterException is no RedisError; RuntimeError is uvloop's word for a closed transport.
            raise StoreError(self._reason(error)) from error

    def _reason(self, error: Exception) -> str:
        reason = f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
        for secret in self._connected.secrets:
            reason = reason.replace(secret, "…")
        return reason


class _Countdown:
    """Lets *timeout* end after *seconds* in which the event loop would have noticed an answer.

    Counted in slices, each ended by a turn of the loop: a burst of requests that keeps the loop from
    reading replies for a while must not look like a store that does not answer.
    """

    def __init__(self, timeout: asyncio.Timeout, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._slice = seconds / _SLICES
        self._left = _SLICES
        self._timer = self._loop.call_later(self._slice, self._tick)

    def cancel(self) -> None:
        self._timer.cancel()

    def _tick(self) -> None:
        self._left -= 1
        if self._left:
            self._timer = self._loop.call_later(self._slice, self._tick)
        else:
            self._timeout.reschedule(self._loop.time())


@asynccontextmanager
async def _deadline(seconds: float) -> AsyncGenerator[None]:
    async with asyncio.timeout(None) as timeout:
        countdown = _Countdown(timeout, seconds)
        try:
            yield
        finally:
            countdown.cancel()
