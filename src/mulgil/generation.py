"""A generation: a text that only grows, and everyone who follows it from an offset.

The engine side publishes cumulative snapshots and closes the generation once; any number of
followers read it, each at its own pace and from its own offsets. A follower that is slow skips
snapshots and misses nothing, since every snapshot holds the whole text.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from mulgil.admission.lease import Lease
from mulgil.engine.base import ChoiceSnapshot, Prepared, Snapshot
from mulgil.errors import MulgilError


@dataclass(frozen=True, slots=True)
class Slice:
    """What one choice has grown by since an offset.

    Attributes:
        index: of the choice.
        text: the new text, never empty.
        end: offset behind it, in characters: where the next slice begins.
    """

    index: int
    text: str
    end: int


def slices(snapshot: Snapshot, offsets: Sequence[int]) -> list[Slice]:
    """What *snapshot* has beyond *offsets* (characters, one for each choice), in index order."""
    return [
        Slice(index, choice.text[offset:], len(choice.text))
        for index, (choice, offset) in enumerate(zip(snapshot.choices, offsets, strict=True))
        if len(choice.text) > offset
    ]


class Generation:
    """One answer in the making.

    Attributes:
        id: of the prepared request; random, ours.
        model: the name that the client asked for.
        created: Unix time in whole seconds.
        prompt_tokens: exact length of the prompt.
        lease: what it may use; open until the generation is closed.
        snapshot: the newest one.
        abandoned: nobody wants the rest.
    """

    def __init__(self, prepared: Prepared, lease: Lease, *, model: str) -> None:
        self.id = prepared.id
        self.model = model
        self.lease = lease
        self.created = int(time.time())
        self.prompt_tokens = prepared.prompt_tokens
        self.snapshot = Snapshot((ChoiceSnapshot(),) * prepared.choices)
        self.abandoned = False
        self._accepted = False
        self._closed = False
        self._error: MulgilError | None = None
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def accepted_by_engine(self) -> bool:
        """The engine has taken the request on."""
        return self._accepted

    @property
    def closed(self) -> bool:
        """Nothing will follow, and what it used is settled."""
        return self._closed

    def publish(self, snapshot: Snapshot) -> None:
        """Replace the snapshot by a newer one and wake the followers."""
        self.snapshot = snapshot
        self._accepted = True
        self._wake()

    def close(self, error: MulgilError | None = None) -> None:
        """End it, with *error* if it failed. Only the first call counts."""
        if not self._closed:
            self._closed = True
            self._error = error
            self._wake()

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

    async def follow(self, offsets: Sequence[int] | None = None) -> AsyncGenerator[list[Slice]]:
        """The growth of every choice from *offsets* (default: the beginning) to the end.

        Ends when the generation is closed, so the finish reasons are to be read from `snapshot` then.

        Raises:
            MulgilError: the generation failed; all text before that has been yielded.
        """
        position = [0] * len(self.snapshot.choices) if offsets is None else list(offsets)
        while True:
            # Read before the snapshot: text published just before the end must not be missed.
            closed = self._closed
            if news := slices(self.snapshot, position):
                for piece in news:
                    position[piece.index] = piece.end
                yield news
            elif closed:
                break
            else:
                await self._change()
        if self._error is not None:
            raise self._error

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
