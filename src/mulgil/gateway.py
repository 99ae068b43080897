"""The use case: prepare, admit, generate, settle. Knows the order of things and nothing else."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any

from mulgil.admission.lease import Leases
from mulgil.admission.policy import Charge, Limits
from mulgil.admission.store import Account
from mulgil.auth.keys import Caller
from mulgil.engine.base import Engine, Prepared
from mulgil.errors import (
    EngineError,
    EngineUnavailableError,
    InternalServerError,
    InvalidFieldError,
    ModelNotFoundError,
    MulgilError,
)
from mulgil.generation import Generation
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.tiers import Tier, TierLimits, check_model_allowed

log = logging.getLogger(__name__)


class Gateway:
    """Turns requests into generations and owns each of them until it is settled.

    Args:
        engine: gives the engine, or raises `EngineUnavailableError`.
        models: names under which the model is served; the first is its main name.
        leases: where budgets are taken.
        tiers: by name; `default` is among them.
    """

    def __init__(
        self, engine: Callable[[], Engine], models: tuple[str, ...], leases: Leases, tiers: Mapping[str, Tier]
    ) -> None:
        self._engine = engine
        self.models = models
        self._leases = leases
        self._tiers = tiers
        self._running: dict[str, tuple[Generation, Engine]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False

    async def start(self, request: ChatCompletionRequest, caller: Caller) -> Generation:
        """Prepare, admit and run *request*; returns when the engine has accepted it.

        Cancelling the call leaves nothing running and nothing reserved.

        Raises:
            MulgilError: it was refused; nothing runs, and nothing is charged.
        """
        if self._draining:
            raise EngineUnavailableError("The server is shutting down.")
        tier = self._tiers.get(caller.tier) or self._tiers["default"]
        self._check(request, caller, tier)
        engine = self._engine()
        prepared = await engine.prepare(request, tenant=caller.tenant, default_max_tokens=tier.max_tokens)
        lease = self._leases.open(Account(caller.tenant, caller.key_id), *_limits(tier))
        await lease.reserve(Charge(prepared.prompt_tokens, prepared.choices * prepared.max_tokens))
        # From here on nothing is awaited until the task that settles the lease has it.
        generation = Generation(prepared, lease, model=request.model)
        lease.made = lambda: generation.snapshot.completion_tokens
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
        self._spawn(_abort(engine, generation.id))

    @property
    def running(self) -> int:
        """Generations that are not settled yet."""
        return len(self._running)

    async def drain(self, *, within: float = 5.0) -> None:
        """Take nothing on any more, abandon all that still runs, and wait until it is settled.

        What an engine does not let go of *within* seconds is cut off from it, and settled too.
        """
        self._draining = True
        for generation, _ in list(self._running.values()):
            self.abandon(generation)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, engine: Engine, prepared: Prepared, generation: Generation) -> None:
        error: MulgilError | None = InternalServerError("The server stopped while processing your request.")
        try:
            async with aclosing(engine.generate(prepared)) as snapshots:
                async for snapshot in snapshots:
                    generation.publish(snapshot)
                    if generation.abandoned:
                        # Also when it was abandoned before the engine knew it, so that abort found nothing.
                        await _abort(engine, prepared.id)
            error = _verdict(generation)
        except MulgilError as failure:
            error = failure
        except Exception:
            log.exception("generation failed")
            error = InternalServerError("The server had an error while processing your request.")
        finally:
            # Before the end is told: a client's next request must not meet its own reservation.
            try:
                await generation.lease.settle(refund=_was_refused(generation, error))
            finally:
                del self._running[generation.id]
                generation.close(error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check(self, request: ChatCompletionRequest, caller: Caller, tier: Tier) -> None:
        if request.model not in self.models:
            raise ModelNotFoundError(request.model)
        check_model_allowed(request.model, caller.models, tier)
        if tier.max_tokens is not None and (request.output_tokens or 0) > tier.max_tokens:
            name = "max_tokens" if request.max_tokens is not None else "max_completion_tokens"
            raise InvalidFieldError(
                f"Invalid '{name}': integer above maximum value. Expected a value <= {tier.max_tokens}, "
                f"but got {request.output_tokens} instead.",
                param=name,
                code="integer_above_max_value",
            )


async def _abort(engine: Engine, request_id: str) -> None:
    """Abort, and leave the end to the generation's own task, whatever the engine says to it."""
    try:
        await engine.abort(request_id)
    except Exception:
        log.exception("the engine could not be told to abort")


def _limits(tier: Tier) -> tuple[Limits, Limits]:
    """Of a key of this tier, and of its tenant."""

    def of(limits: TierLimits) -> Limits:
        return Limits(
            requests=limits.requests_per_minute,
            input_tokens=limits.input_tokens_per_minute,
            output_tokens=limits.output_tokens_per_minute,
            concurrency=limits.concurrent_requests,
        )

    return of(tier), of(tier.tenant or tier)


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
