"""The use case: prepare, admit, generate, settle. Knows the order of things and nothing else."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from mulgil.auth.keys import Caller
from mulgil.engine.base import Engine, Prepared
from mulgil.errors import EngineError, InternalServerError, ModelNotFoundError, MulgilError
from mulgil.generation import Generation
from mulgil.schemas.chat import ChatCompletionRequest

log = logging.getLogger(__name__)


class Gateway:
    """Turns requests into generations and owns each of them until it is settled.

    Args:
        engine: gives the engine, or raises `EngineUnavailableError`.
        models: names under which the model is served; the first is its main name.
    """

    def __init__(self, engine: Callable[[], Engine], models: tuple[str, ...]) -> None:
        self._engine = engine
        self.models = models
        self._running: dict[str, tuple[Generation, Engine]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, request: ChatCompletionRequest, caller: Caller) -> Generation:
        """Prepare and run *request*; returns when the engine has accepted it.

        Cancelling the call abandons the generation.

        Raises:
            MulgilError: it was refused; nothing runs.
        """
        if request.model not in self.models:
            raise ModelNotFoundError(request.model)
        engine = self._engine()
        prepared = await engine.prepare(request, tenant=caller.tenant)
        generation = Generation(prepared, model=request.model)
        self._running[generation.id] = generation, engine
        self._spawn(self._run(engine, prepared, generation))
        try:
            await generation.accepted()
        except asyncio.CancelledError:
            self.abandon(generation)
            raise
        return generation

    def abandon(self, generation: Generation) -> None:
        """Nobody wants the rest of *generation*: stop the engine on it. No harm on a closed one.

        Does not wait: the work is done by a task that the caller's own cancellation cannot reach.
        """
        if generation.abandoned or generation.closed:
            return
        generation.abandoned = True
        _, engine = self._running[generation.id]
        self._spawn(engine.abort(generation.id))

    @property
    def running(self) -> int:
        """Generations that are not settled yet."""
        return len(self._running)

    async def drain(self) -> None:
        """Abandon all that still runs and wait until every generation is settled."""
        for generation, _ in list(self._running.values()):
            self.abandon(generation)
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, engine: Engine, prepared: Prepared, generation: Generation) -> None:
        error: MulgilError | None = InternalServerError("The server stopped while processing your request.")
        try:
            async for snapshot in engine.generate(prepared):
                generation.publish(snapshot)
                if generation.abandoned:
                    # Also when it was abandoned before the engine knew it, so that abort found nothing.
                    await engine.abort(prepared.id)
            error = _verdict(generation)
        except MulgilError as failure:
            error = failure
        except Exception:
            log.exception("generation failed")
            error = InternalServerError("The server had an error while processing your request.")
        finally:
            del self._running[generation.id]
            generation.close(error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _verdict(generation: Generation) -> MulgilError | None:
    """An end without a reason, or an abort, must never be taken for a whole answer."""
    reasons = {choice.finish_reason for choice in generation.snapshot.choices}
    if "abort" in reasons:
        return EngineError("The request was cancelled before the answer was complete.")
    if None in reasons:
        return EngineError("The engine ended the answer without saying why.")
    return None
