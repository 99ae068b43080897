"""Runs scripts on the server: one round trip for all of a moment, a deadline on each, and one kind of error."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar

from redis.asyncio import RedisCluster
from redis.exceptions import NoScriptError, RedisClusterException, RedisError, ResponseError

from mulgil.admission.store import StoreError
from mulgil.stores.redis_clients import Connected

T = TypeVar("T")

_SLICES = 16
_BATCH = 100
# So that the server works on one batch while the replies to another are read.
_TOGETHER = 16
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


_Batch = list[tuple[Call, asyncio.Future[Any]]]
"""Calls that go together, each with its reply."""


class ScriptRunner:
    """Runs scripts.

    What is asked for in one turn of the event loop goes together: nearly all that the client library costs, it costs
    for each round trip. In a Cluster each call goes by itself, since one node must not make the steps of others fail.

    A command that is cancelled or comes too late takes its connection with it: redis-py closes it, since
    its reply would be read as that of the next command. Nothing is ever repeated but a script that the
    server did not know, and so did not run.

    Args:
        connected: the client.
        connections: most round trips at the same time; the others wait.
        timeout: seconds for one step, waiting included; those in which our own loop was busy do not count.
    """

    def __init__(self, connected: Connected, *, connections: int, timeout: float) -> None:
        self._connected = connected
        self._client: Any = connected.client  # its commands are typed for both sync and async use
        self._timeout = timeout
        self._turns = asyncio.Semaphore(connections)
        self._gathers = not isinstance(connected.client, RedisCluster)
        self._boarding: _Batch | None = None
        self._flights: set[asyncio.Task[None]] = set()

    async def run(self, call: Call) -> Any:
        """The script's reply.

        Raises:
            StoreError: there was none.
        """

        if not self._gathers:
            return await self._attempt(partial(self._run_alone, call))
        batch = self._boarding
        if batch is None or len(batch) == _TOGETHER:
            batch = self._boarding = []
            flight = asyncio.create_task(self._fly(batch))
            self._flights.add(flight)
            flight.add_done_callback(self._flights.discard)
        reply = asyncio.get_running_loop().create_future()
        batch.append((call, reply))
        return await reply

    async def run_all(self, calls: Sequence[Call]) -> list[Any]:
        """The replies to many calls, which are sent together; each batch of them is a step.

        Raises:
            StoreError: not every call was answered.
        """
        replies: list[Any] = []
        for start in range(0, len(calls), _BATCH):
            batch = calls[start : start + _BATCH]
            replies += await self._attempt(partial(self._run_whole, batch))
        return replies

    async def ping(self) -> None:
        """A round trip.

        Raises:
            StoreError: there was no answer.
        """
        await self._attempt(self._client.ping)

    async def close(self) -> None:
        """Close every connection; what is under way fails."""
        for flight in self._flights:
            flight.cancel()
        await asyncio.gather(*self._flights, return_exceptions=True)
        await self._connected.close()

    async def _run_alone(self, call: Call) -> Any:
        try:
            return await self._client.execute_command(*call.by_sha())
        except NoScriptError:
            return await self._client.execute_command(*call.by_text())

    async def _fly(self, batch: _Batch) -> None:
        failure: Exception = StoreError("the store was closed")
        replies: list[Any] | None = None
        try:
            replies = await self._attempt(partial(self._take_off, batch))
        except StoreError as error:
            failure = error
        finally:
            self._close_doors(batch)
            self._deliver(batch, [failure] * len(batch) if replies is None else replies)

    def _deliver(self, batch: _Batch, replies: list[Any]) -> None:
        for (_, reply), found in zip(batch, replies, strict=True):
            if reply.done():  # whoever asked does not wait any more
                continue
            if isinstance(found, Exception):
                # To each its own: an exception that is raised twice grows. What they have in common is the cause.
                failure = StoreError(str(found) if isinstance(found, StoreError) else self._reason(found))
                failure.__cause__ = found
                reply.set_exception(failure)
            else:
                reply.set_result(found)

    async def _take_off(self, batch: _Batch) -> list[Any]:
        self._close_doors(batch)
        return await self._run_batch([call for call, _ in batch])

    def _close_doors(self, batch: _Batch) -> None:
        if self._boarding is batch:
            self._boarding = None

    async def _run_batch(self, batch: Sequence[Call]) -> list[Any]:
        replies = await self._send([call.by_sha() for call in batch])
        unknown = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            again = await self._send([batch[index].by_text() for index in unknown])
            for index, reply in zip(unknown, again, strict=True):
                replies[index] = reply
        return replies

    async def _run_whole(self, batch: Sequence[Call]) -> list[Any]:
        replies = await self._run_batch(batch)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def _send(self, commands: Sequence[tuple[str | int, ...]]) -> list[Any]:
        if self._gathers:
            return await self._round_trip(commands)
        async with self._client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
            return replies

    async def _round_trip(self, commands: Sequence[tuple[str | int, ...]]) -> list[Any]:
        pool = self._client.connection_pool
        connection = await pool.get_connection()
        try:
            await connection.send_packed_command(connection.pack_commands(commands))
            replies: list[Any] = []
            for _ in commands:
                try:
                    replies.append(await connection.read_response())
                except ResponseError as error:
                    replies.append(error)
            return replies
        finally:
            await pool.release(connection)

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
