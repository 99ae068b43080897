"""The use case: prepare, admit, generate, settle. Knows the order of things and nothing else."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any

from mulgil.admission.lease import Leases
from mulgil.admission.policy import Charge, limits_of_tier
from mulgil.admission.store import Account
from mulgil.auth.keys import Caller
from mulgil.engine.base import Engine, Prepared, TextRequest
from mulgil.errors import (
    EngineError,
    InternalServerError,
    InvalidFieldError,
    ModelNotFoundError,
    MulgilError,
    ShuttingDownError,
)
from mulgil.generation import Generation
from mulgil.pacing import Pacing
from mulgil.schemas.tokenize import Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest
from mulgil.tiers import Tier, check_model_allowed

log = logging.getLogger(__name__)


class Gateway:
    """Turns requests into generations and owns each of them until it is settled.

    Args:
        engine: gives the engine, or raises `EngineUnavailableError`.
        models: names under which the model is served; the first is its main name.
        leases: where budgets are taken.
        tiers: by name; `default` is among them.
        fingerprint: names the model and the way it is served.
    """

    def __init__(
        self,
        engine: Callable[[], Engine],
        models: tuple[str, ...],
        leases: Leases,
        tiers: Mapping[str, Tier],
        *,
        fingerprint: str,
    ) -> None:
        self._engine = engine
        self.models = models
        self._leases = leases
        self._tiers = tiers
        self._fingerprint = fingerprint
        self._running: dict[str, tuple[Generation, Engine]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False
        self.leaving = False
        """Whether it will soon take nothing on any more; balancers should send new requests elsewhere."""

    async def start(self, request: TextRequest, caller: Caller, *, timed: bool = False) -> Generation:
        """Prepare, admit and run *request*; returns when the engine has accepted it.

        Cancelling the call leaves nothing running and nothing reserved.

        Args:
            request: what to answer.
            caller: who asks.
            timed: note the order in which the answer grows, so that it can be read again from anywhere.

        Raises:
            MulgilError: it was refused; nothing runs, and nothing is charged.
        """
        if self._draining:
            raise ShuttingDownError
        tier = self._tier_of(caller)
        self._check(request, caller, tier)
        engine = self._engine()
        prepared = await engine.prepare(request, tenant=caller.tenant, default_max_tokens=tier.max_tokens)
        lease = self._leases.open(Account(caller.tenant, caller.key_id), *limits_of_tier(tier))
        await lease.reserve(Charge(prepared.prompt_tokens, prepared.most_output_tokens))
        # From here on nothing is awaited until the task that settles the lease has it.
        generation = Generation(prepared, lease, model=request.model, fingerprint=self._fingerprint, timed=timed)
        generation.pacing = request.pacing or Pacing(tier.chunking)
        lease.made = lambda: generation.snapshot.completion_tokens
        self._running[generation.id] = generation, engine
        self._spawn(self._run(engine, prepared, generation))
        try:
            await generation.accepted()
        except asyncio.CancelledError:
            self.abandon(generation)
            raise
        return generation

    async def tokenize(self, request: TokenizeRequest, caller: Caller) -> Tokenized:
        """The tokens of *request*; charges nothing.

        Raises:
            MulgilError: it was refused.
        """
        self._check_model(request.model or self.models[0], caller, self._tier_of(caller))
        engine = self._engine()
        ids = await engine.tokenize(request)
        return Tokenized(
            count=len(ids),
            max_model_len=engine.max_model_len,
            tokens=ids,
            token_strs=await engine.detokenize(ids) if request.return_token_strs else None,
        )

    async def detokenize(self, request: DetokenizeRequest, caller: Caller) -> Detokenized:
        """The text of *request*; charges nothing.

        Raises:
            MulgilError: it was refused.
        """
        self._check_model(request.model or self.models[0], caller, self._tier_of(caller))
        return Detokenized(prompt="".join(await self._engine().detokenize(request.tokens)))

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
    def draining(self) -> bool:
        """Nothing is taken on any more."""
        return self._draining

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
            if error is not None and self._draining and generation.abandoned:
                error = ShuttingDownError()
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

    def _tier_of(self, caller: Caller) -> Tier:
        return self._tiers.get(caller.tier) or self._tiers["default"]

    def _check_model(self, model: str, caller: Caller, tier: Tier) -> None:
        if model not in self.models:
            raise ModelNotFoundError(model)
        check_model_allowed(model, caller.models, tier)

    def _check(self, request: TextRequest, caller: Caller, tier: Tier) -> None:
        self._check_model(request.model, caller, tier)
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
