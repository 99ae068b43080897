"""Streams that outlive their readers: kept for a while, so that a broken line costs nothing."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from mulgil.asked import NO_WISHES, Wishes
from mulgil.auth.keys import Caller
from mulgil.auth.tickets import Tickets
from mulgil.errors import MulgilError, OverloadedError, StreamNotFoundError
from mulgil.gateway import Gateway
from mulgil.generation import Generation
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.telemetry.observation import Observation

Status = Literal["running", "completed", "failed", "cancelled"]

_BYTES_A_CHARACTER = 4  # at most, in Python's strings


@dataclass(frozen=True, slots=True)
class KeepRules:
    """How long and how much is kept.

    Attributes:
        grace: seconds that a stream goes on without a reader.
        retention: seconds that it can be read after its end.
        most: streams at the same time.
        most_bytes: of the answers of finished streams, all together.
    """

    grace: float = 60.0
    retention: float = 300.0
    most: int = 1_000
    most_bytes: int = 64 * 1024 * 1024


@dataclass(slots=True, eq=False)
class KeptStream:
    """A stream that can be read again from anywhere.

    Attributes:
        id: random; nobody can guess it.
        generation: what is read; it has a timeline.
        request: what was asked.
        caller: whose it is.
        readers: how many read it at this moment.
    """

    id: str
    generation: Generation
    request: ChatCompletionRequest
    caller: Caller
    readers: int = 0
    lonely: asyncio.TimerHandle | None = None

    @property
    def status(self) -> Status:
        """How it stands."""
        if not self.generation.closed:
            return "running"
        if self.generation.abandoned:
            return "cancelled"
        return "failed" if self.generation.error else "completed"

    @property
    def size(self) -> int:
        """Bytes of its answer, at most."""
        timeline = self.generation.timeline
        return _BYTES_A_CHARACTER * (timeline.length if timeline else 0)


class KeptStreams:
    """The kept streams of a process.

    Args:
        gateway: makes the answers, and stops those that nobody wants any more.
        tickets: forgotten with their stream.
        rules: how long and how much.
    """

    def __init__(self, gateway: Gateway, tickets: Tickets, rules: KeepRules) -> None:
        self._gateway = gateway
        self._tickets = tickets
        self._rules = rules
        self._streams: dict[str, KeptStream] = {}
        self._caring: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def main_model(self) -> str:
        """The model that answers where none is named."""
        return self._gateway.catalogue.main

    async def start(
        self,
        request: ChatCompletionRequest,
        caller: Caller,
        observed: Observation | None = None,
        wishes: Wishes = NO_WISHES,
    ) -> KeptStream:
        """Start to answer *request*, as its client *wishes*; returns when the engine has accepted it.

        Raises:
            OverloadedError: as many streams as may be kept are running.
            MulgilError: it was refused; nothing runs, and nothing is charged.
        """
        if len(self._streams) >= self._rules.most and not self._make_room():
            raise OverloadedError("The server keeps as many streams as it may.", retry_after=5.0)
        generation = await self._gateway.start(request, caller, wishes=replace(wishes, timed=True), observed=observed)
        kept = KeptStream(f"stream_{generation.id.partition('-')[2]}", generation, request, caller)
        self._streams[kept.id] = kept
        self._wait_for_a_reader(kept)
        task = asyncio.create_task(self._care(kept))
        self._caring.add(task)
        task.add_done_callback(self._caring.discard)
        return kept

    def find(self, stream_id: str, caller: Caller) -> KeptStream:
        """The stream, for its tenant.

        Raises:
            StreamNotFoundError: there is none, no more, or it is another tenant's.
        """
        kept = self._streams.get(stream_id)
        if kept is None or kept.caller.tenant != caller.tenant:
            raise StreamNotFoundError(stream_id)
        return kept

    def join(self, kept: KeptStream) -> Callable[[], None]:
        """Begin to read it; what is returned ends that, and may be called more than once."""
        kept.readers += 1
        if kept.lonely is not None:
            kept.lonely.cancel()
        left = False

        def leave() -> None:
            nonlocal left
            if not left:
                left = True
                kept.readers -= 1
                self._wait_for_a_reader(kept)

        return leave

    def delete(self, kept: KeptStream) -> None:
        """Stop it, and forget it."""
        self._gateway.abandon(kept.generation)
        self._drop(kept)

    async def close(self) -> None:
        """Forget all of them."""
        for task in list(self._caring):
            task.cancel()
        if self._caring:
            await asyncio.wait(self._caring)

    def _wait_for_a_reader(self, kept: KeptStream) -> None:
        if not kept.readers and not kept.generation.closed:
            loop = asyncio.get_running_loop()
            kept.lonely = loop.call_later(self._rules.grace, self._gateway.abandon, kept.generation)

    async def _care(self, kept: KeptStream) -> None:
        try:
            with contextlib.suppress(MulgilError):
                await kept.generation.finished()
            if kept.lonely is not None:
                kept.lonely.cancel()
            while sum(one.size for one in self._finished()) > self._rules.most_bytes and self._make_room():
                pass
            await asyncio.sleep(self._rules.retention)
        finally:
            self._drop(kept)

    def _finished(self) -> list[KeptStream]:
        return [kept for kept in self._streams.values() if kept.generation.closed]

    def _make_room(self) -> bool:
        """Drop the oldest finished stream that nobody reads; whether there was one."""
        for kept in self._finished():
            if not kept.readers:
                self._drop(kept)
                return True
        return False

    def _drop(self, kept: KeptStream) -> None:
        if self._streams.pop(kept.id, None) is not None:
            self._tickets.forget(kept.id)
