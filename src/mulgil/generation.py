"""A generation: a text that only grows, and everyone who follows it from an offset.

The engine side publishes cumulative snapshots and closes the generation once; any number of
followers read it, each at its own pace and from its own offsets. A follower that is slow skips
snapshots and misses nothing, since every snapshot holds the whole text.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Protocol

from mulgil.admission.lease import Lease
from mulgil.engine.snapshot import ChoiceSnapshot, Snapshot
from mulgil.errors import MulgilError
from mulgil.pacing import EVERY_TOKEN
from mulgil.slices import Position, Slice, slices
from mulgil.telemetry.observation import Observation, Used
from mulgil.timeline import Timeline


class Work(Protocol):
    """What a generation has to know of a request: a prepared one says it, or an answer that was kept."""

    @property
    def id(self) -> str:
        """Random, ours, unique."""
        ...

    @property
    def prompt_tokens(self) -> int:
        """Length of all prompts together."""
        ...

    @property
    def width(self) -> int:
        """Number of choices of all prompts together."""
        ...

    @property
    def dropped_messages(self) -> int:
        """How many of a conversation were left out, so that it fits."""
        ...


class Generation:
    """One answer in the making.

    Attributes:
        id: of the work; random, ours.
        model: the name that the client asked for.
        fingerprint: names the model and the way it is served; the same seed repeats itself under the same one.
        created: Unix time in whole seconds.
        prompt_tokens: exact length of the prompt.
        dropped_messages: how many the conversation has lost, so that it fits.
        lease: what it may use; open until the generation is closed.
        snapshot: the newest one.
        abandoned: nobody wants the rest.
        pacing: how much of it is told at a time.
        timeline: the order in which it grew; None where nobody will ask.
        observed: the request that it answers.
        free: it was made for another request, which pays for it: this one pays for no token.
    """

    def __init__(
        self, work: Work, lease: Lease, *, model: str, fingerprint: str = "fp_none", timed: bool = False
    ) -> None:
        self.id = work.id
        self.model = model
        self.fingerprint = fingerprint
        self.lease = lease
        self.created = int(time.time())
        self.prompt_tokens = work.prompt_tokens
        self.dropped_messages = work.dropped_messages
        self.snapshot = Snapshot((ChoiceSnapshot(),) * work.width)
        self.abandoned = False
        self.free = False
        self.pacing = EVERY_TOKEN
        self.observed = Observation()
        self.timeline = Timeline() if timed else None
        self._accepted = False
        self._begun = False
        self._closed = False
        self._error: MulgilError | None = None
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def accepted_by_engine(self) -> bool:
        """The engine has taken the request on."""
        return self._accepted

    @property
    def error(self) -> MulgilError | None:
        """What it failed with, once it is closed."""
        return self._error

    @property
    def closed(self) -> bool:
        """Nothing will follow, and what it used is settled."""
        return self._closed

    def publish(self, snapshot: Snapshot) -> None:
        """Replace the snapshot by a newer one and wake the followers."""
        if self.timeline is not None:
            self.timeline.note(self.snapshot, snapshot)
        self.snapshot = snapshot
        self._accepted = True
        if not self._begun and snapshot.completion_tokens:
            self._begun = True
            self.observed.begin("decode")
        self._wake()

    def close(self, error: MulgilError | None = None) -> None:
        """End it, with *error* if it failed. Only the first call counts."""
        if not self._closed:
            self._closed = True
            self._error = error
            self._wake()

    def conclude(self, *, refused: bool) -> None:
        """Note what it used and how it ended, as it was charged: nothing if it was *refused*. To be called once."""
        tokens = [choice.tokens for choice in self.snapshot.choices]
        used = Used(longest=max(tokens))
        if not self.free:
            used.cached, used.completion = self.snapshot.cached_tokens, sum(tokens)
            used.prompt = 0 if refused else self.prompt_tokens
        reasons = {choice.finish_reason for choice in self.snapshot.choices}
        if self.abandoned:
            used.finish = "abort"
        elif self._error is not None:
            used.finish = "refused" if refused else "error"
            self.observed.error = self._error.code or self._error.type
        else:
            # The one that tells most of an answer with several choices.
            used.finish = next((one for one in ("content_filter", "length", "tool_calls") if one in reasons), "stop")
        self.observed.used = used
        self.observed.begin("send")
        self.observed.release()

    async def accepted(self) -> None:
        """Wait until the engine has accepted the request.

        Raises:
            MulgilError: it refused.
        """
        while not (self._accepted or self._closed):
            await self._change()
        if not self._accepted and self._error is not None:
            raise self._error

    async def finished(self) -> Snapshot:
        """Wait for the end; the last snapshot.

        Raises:
            MulgilError: the generation failed.
        """
        while not self._closed:
            await self._change()
        if self._error is not None:
            raise self._error
        return self.snapshot

    async def snapshots(self) -> AsyncGenerator[Snapshot]:
        """The newest snapshot whenever there is one, to the last; whether it failed is to be read from `error` then."""
        seen: Snapshot | None = None
        while True:
            # Read before the snapshot, as in `follow`.
            closed = self._closed
            if self.snapshot is not seen:
                seen = self.snapshot
                yield seen
            elif closed:
                return
            else:
                await self._change()

    async def follow(self, offset: int = 0) -> AsyncGenerator[list[Slice]]:
        """The growth of every choice from *offset* to the end.

        Ends when the generation is closed, so the finish reasons are to be read from `snapshot` then.

        Args:
            offset: how much is known, as the timeline counts; not 0 only where there is one.

        Raises:
            MulgilError: the generation failed; all that was made before has been yielded.
        """
        reader = _Reader(self, offset)
        while True:
            # Read before the snapshot: text published just before the end must not be missed.
            closed = self._closed
            if news := reader.news(last=closed):
                yield news
                if self.pacing.interval and not self._closed:
                    await self._pause(self.pacing.interval)
            elif closed:
                break
            else:
                await self._change()
        if self._error is not None:
            raise self._error

    async def _pause(self, seconds: float) -> None:
        """Wait so long, or until the end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._closed:
                    await self._change()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def _change(self) -> None:
        # One future a follower: a shared one would be cancelled for all when one follower leaves.
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future


class _Reader:
    """What one follower of a generation knows of it."""

    def __init__(self, generation: Generation, offset: int) -> None:
        self._generation = generation
        self._offset = offset
        choices = len(generation.snapshot.choices)
        timeline = generation.timeline
        self._known = [Position()] * choices if timeline is None else timeline.positions(offset, choices)

    def news(self, *, last: bool) -> list[Slice]:
        """What it does not know yet, and knows from here on."""
        snapshot, timeline = self._generation.snapshot, self._generation.timeline
        if timeline is None:
            found = slices(snapshot, self._known, last=last, pacing=self._generation.pacing)
        else:
            found = list(
                timeline.slices(snapshot, self._known, self._offset, last=last, pacing=self._generation.pacing)
            )
        for piece in found:
            self._known[piece.index] = piece.end
            self._offset = piece.offset or 0
        return found
