"""Single flight: one generation for all who ask the same at the same time, which goes on while anyone reads it."""

import asyncio
from collections.abc import Callable

from mulgil.errors import MulgilError, ShuttingDownError
from mulgil.generation import Generation


class Flight:
    """One generation, from before it is admitted, and how many read it.

    Args:
        starting: what admits and begins it; nobody who waits for it can cancel it.
        abandon: stops the generation.
    """

    def __init__(self, starting: asyncio.Task[Generation], abandon: Callable[[Generation], None]) -> None:
        self.starting = starting
        self._abandon = abandon
        self._readers = 0
        self._left = False

    @property
    def joinable(self) -> bool:
        """It was not stopped for want of readers."""
        return not self._left

    def join(self) -> Callable[[], None]:
        """Begin to read it; what is returned ends that, and may be called more than once. The last one stops it."""
        self._readers += 1
        here = True

        def leave() -> None:
            nonlocal here
            if here:
                here = False
                self._readers -= 1
                if not self._readers:
                    self._stop()

        return leave

    async def started(self) -> Generation:
        """The generation, once the engine has accepted it.

        Raises:
            MulgilError: it was refused.
        """
        await asyncio.wait([self.starting])
        if self.starting.cancelled():
            raise ShuttingDownError
        return self.starting.result()

    @property
    def generation(self) -> Generation | None:
        """What was begun; None before that, and where it was refused."""
        if not self.starting.done() or self.starting.cancelled() or self.starting.exception() is not None:
            return None
        return self.starting.result()

    async def landed(self) -> Generation | None:
        """The generation, once it has ended well; None if it has not."""
        await asyncio.wait([self.starting])
        if self.generation is None:
            return None
        try:
            await self.generation.finished()
        except MulgilError:
            return None
        return self.generation

    def _stop(self) -> None:
        self._left = True
        if self.generation is not None:
            self._abandon(self.generation)
        else:
            self.starting.cancel()  # no harm on one that has ended
