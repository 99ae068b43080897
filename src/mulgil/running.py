"""What runs: every generation that is not settled yet, and the task that will settle it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from mulgil.accounting import row_of_generation
from mulgil.engine.base import Answerer, Prepared
from mulgil.errors import EngineError, InternalServerError, MulgilError, ShuttingDownError
from mulgil.generation import Generation
from mulgil.ledger.base import Ledger

log = logging.getLogger(__name__)


class Place(Protocol):
    """The right to be answered, until it is given back."""

    def give_back(self, used: int = 0) -> None:
        """The request is over, and has *used* so many tokens. Only the first call counts."""
        ...


class NoPlace:
    """Of what nobody has to wait for."""

    def give_back(self, used: int = 0) -> None:
        pass


NO_PLACE = NoPlace()


@dataclass(frozen=True, slots=True)
class Run:
    """What makes an answer.

    Attributes:
        answerer: makes it.
        prepared: from this, which the same one has prepared.
        place: to be given back at the end.
        final: if it is refused, so is the request; else somebody else is asked, and what was refused is no row.
    """

    answerer: Answerer
    prepared: Prepared
    place: Place
    final: bool = True


class Running:
    """Pumps answers into generations, and settles each of them once, whatever happens around it.

    Args:
        ledger: takes what was used.
        on_progress: called when a generation has grown.
    """

    def __init__(self, ledger: Ledger, on_progress: Callable[[], None]) -> None:
        self._ledger = ledger
        self._on_progress = on_progress
        self._runs: dict[str, tuple[Generation, Answerer]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.draining = False
        """Nothing is taken on any more."""

    def __len__(self) -> int:
        return len(self._runs)

    def begin(self, run: Run, generation: Generation) -> None:
        """Have *generation* made. From here on its lease is settled, and its place given back, by a task of its own."""
        self._runs[generation.id] = generation, run.answerer
        self.spawn(self._pump(run, generation))

    def abandon(self, generation: Generation) -> None:
        """Nobody wants the rest of *generation*: stop whoever makes it. No harm on a closed one.

        Does not wait: the work is done by a task that the caller's own cancellation cannot reach.
        """
        if generation.abandoned or generation.closed:
            return
        generation.abandoned = True
        _, answerer = self._runs[generation.id]
        self.spawn(_abort(answerer, generation.id))

    async def drain(self, *, within: float) -> None:
        """Abandon all that runs, and wait until it is settled.

        What an engine does not let go of *within* seconds is cut off from it, and settled too.
        """
        self.draining = True
        for generation, _ in list(self._runs.values()):
            self.abandon(generation)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do *work*, which no request can cancel, and the drain waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _pump(self, run: Run, generation: Generation) -> None:
        error: MulgilError | None = InternalServerError("The server stopped while processing your request.")
        try:
            async with aclosing(run.answerer.generate(run.prepared)) as snapshots:
                async for snapshot in snapshots:
                    generation.publish(snapshot)
                    self._on_progress()
                    if generation.abandoned:
                        # Also when it was abandoned before the engine knew it, so that abort found nothing.
                        await _abort(run.answerer, generation.id)
            error = _verdict(generation)
            if error is not None and self.draining and generation.abandoned:
                error = ShuttingDownError()
        except MulgilError as failure:
            error = failure
        except Exception:
            log.exception("generation failed", extra={"request_id": generation.observed.id})
            error = InternalServerError("The server had an error while processing your request.")
        finally:
            await self._end(run, generation, error)

    async def _end(self, run: Run, generation: Generation, error: MulgilError | None) -> None:
        generation.observed.begin("settle")
        refused = _was_refused(generation, error)
        run.place.give_back(0 if refused else generation.prompt_tokens + generation.snapshot.completion_tokens)
        # Before the end is told: a client's next request must not meet its own reservation.
        try:
            await generation.lease.settle(refund=refused)
        finally:
            del self._runs[generation.id]
            if run.final or not refused:
                self._ledger.note(row_of_generation(generation, error, refunded=refused))
            generation.close(error)
            generation.conclude(refused=refused)


async def _abort(answerer: Answerer, request_id: str) -> None:
    """Abort, and leave the end to the generation's own task, whatever the engine says to it."""
    try:
        await answerer.abort(request_id)
    except Exception:
        log.exception("the engine could not be told to abort")


def _was_refused(generation: Generation, error: MulgilError | None) -> bool:
    """The engine failed before it made a token: nothing is to be paid. Leaving early is no failure."""
    failed = error is not None and not generation.abandoned
    return (failed or not generation.accepted_by_engine) and generation.snapshot.completion_tokens == 0


def _verdict(generation: Generation) -> MulgilError | None:
    """An end without a reason, or an abort, must never be taken for a whole answer."""
    reasons = {choice.finish_reason for choice in generation.snapshot.choices}
    if "abort" in reasons:
        return EngineError("The request was cancelled before the answer was complete.")
    if None in reasons:
        return EngineError("The engine ended the answer without saying why.")
    return None
