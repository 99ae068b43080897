"""The use case: prepare, admit, generate, settle. Knows the order of things and nothing else."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from mulgil.accounting import row_of_generation
from mulgil.admission.gates import Gates
from mulgil.admission.lease import Lease
from mulgil.admission.policy import Charge, limits_of_tier
from mulgil.admission.queue import Turn
from mulgil.admission.store import Account
from mulgil.admission.waiting_room import Demand
from mulgil.auth.keys import Caller
from mulgil.engine.base import Engine, Prepared, TextRequest
from mulgil.engine.truncation import decided
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
from mulgil.schemas.tokenize import MOST_TEXTS, Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest
from mulgil.telemetry.observation import Observation
from mulgil.tiers import Priority, Tier, check_length_allowed, check_model_allowed

log = logging.getLogger(__name__)

_IN_THE_ENGINE: dict[Priority, int] = {"interactive": 0, "normal": 1, "batch": 2}


class Gateway:
    """Turns requests into generations and owns each of them until it is settled.

    Args:
        engine: gives the engine, or raises `EngineUnavailableError`.
        models: names under which the model is served; the first is its main name.
        gates: what a request passes before the engine has it.
        fingerprint: names the model and the way it is served.
        rebuilt: returns when the engine is not being rebuilt, or after as long as a request may wait for that.
    """

    def __init__(
        self,
        engine: Callable[[], Engine],
        models: tuple[str, ...],
        gates: Gates,
        *,
        fingerprint: str,
        rebuilt: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._engine = engine
        self.models = models
        self.queue = gates.queue
        self._leases = gates.leases
        self._tiers = gates.tiers
        self._fingerprint = fingerprint
        self._rebuilt = rebuilt
        self._ledger = gates.ledger
        self._models = gates.models
        self._running: dict[str, tuple[Generation, Engine]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False
        self.leaving = False
        """Whether it will soon take nothing on any more; balancers should send new requests elsewhere."""

    async def start(
        self, request: TextRequest, caller: Caller, *, timed: bool = False, observed: Observation | None = None
    ) -> Generation:
        """Prepare, admit and run *request*; returns when the engine has accepted it.

        Cancelling the call leaves nothing running and nothing reserved.

        Args:
            request: what to answer.
            caller: who asks.
            timed: note the order in which the answer grows, so that it can be read again from anywhere.
            observed: is told of each stage, and held until the generation is settled.

        Raises:
            MulgilError: it was refused; nothing runs, and nothing is charged.
        """
        observed = (observed or Observation()).asks(request.operation, request.model)
        tier = await self.check(request, caller)
        engine = await self._engine_for(observed)
        observed.begin("tokenise")
        request = decided(request, self._models)
        prepared = await engine.prepare(request, tenant=caller.tenant, default_max_tokens=tier.max_tokens)
        observed.truncated_messages = prepared.dropped_messages
        lease = self._leases.open(Account(caller.tenant, caller.key_id), *limits_of_tier(tier))
        observed.begin("reserve")
        await lease.reserve(Charge(prepared.prompt_tokens, prepared.most_output_tokens))
        observed.begin("queue")
        turn = await self._turn(prepared, caller.tenant, tier, lease)
        # From here on nothing is awaited until the task that settles the lease, and gives the turn back, has both.
        observed.generates("first_token")
        prepared = replace(prepared, priority=_IN_THE_ENGINE[tier.priority], trace_headers=observed.trace_headers)
        generation = Generation(prepared, lease, model=request.model, fingerprint=self._fingerprint, timed=timed)
        generation.pacing = request.pacing or Pacing(tier.chunking)
        generation.observed = observed
        lease.made = lambda: generation.snapshot.completion_tokens
        self._running[generation.id] = generation, engine
        self._spawn(self._run(engine, prepared, generation, turn))
        try:
            await generation.accepted()
        except asyncio.CancelledError:
            self.abandon(generation)
            raise
        return generation

    async def check(self, request: TextRequest, caller: Caller) -> Tier:
        """Let *request* pass if its answer may be told to *caller*, whoever makes it; the tier of the caller.

        Raises:
            MulgilError: it may not, or nothing is taken on any more.
        """
        if self._draining:
            raise ShuttingDownError
        tier = self._tier_of(caller)
        self._check_model(request.model, caller, tier)
        param = "max_tokens" if request.max_tokens is not None else "max_completion_tokens"
        check_length_allowed(request.output_tokens, tier, param=param)
        await self._ledger.check(caller.tenant, caller.key_id, tier)
        return tier

    async def tokenize(self, request: TokenizeRequest, caller: Caller) -> Tokenized:
        """The tokens of *request*; charges nothing.

        Raises:
            MulgilError: it was refused.
        """
        self._check_model(request.model or self.models[0], caller, self._tier_of(caller))
        engine = self._engine()
        ids = await engine.tokenize(request)
        if request.return_token_strs and len(ids) > MOST_TEXTS:
            raise InvalidFieldError(
                f"Invalid 'return_token_strs': there are {len(ids)} tokens; texts are told of at most {MOST_TEXTS}.",
                param="return_token_strs",
                code="invalid_value",
            )
        # Not validated, which for a million tokens takes long: they are our own.
        return Tokenized.model_construct(
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
        self.queue.close()
        for generation, _ in list(self._running.values()):
            self.abandon(generation)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _engine_for(self, observed: Observation) -> Engine:
        if self._rebuilt is not None:
            observed.begin("wait_for_engine")
            await self._rebuilt()
        return self._engine()

    async def _turn(self, prepared: Prepared, tenant: str, tier: Tier, lease: Lease) -> Turn:
        """A turn for *prepared*, which holds *lease* while it waits; without a turn the lease is given back."""
        demand = Demand(
            tenant,
            prepared.prompt_tokens,
            prepared.most_output_tokens,
            turns=prepared.width,
            priority=tier.priority,
            weight=tier.weight,
        )
        try:
            turn = await self.queue.enter(demand)
            if not self._draining:
                return turn
            turn.give_back()  # it came up in the very moment in which the drain began
            raise ShuttingDownError
        except asyncio.CancelledError:
            self._spawn(lease.settle(refund=True))
            raise
        except MulgilError:
            # Before it is told: the client's next request must not meet its own reservation.
            await asyncio.shield(self._spawn(lease.settle(refund=True)))
            raise

    async def _run(self, engine: Engine, prepared: Prepared, generation: Generation, turn: Turn) -> None:
        error: MulgilError | None = InternalServerError("The server stopped while processing your request.")
        try:
            async with aclosing(engine.generate(prepared)) as snapshots:
                async for snapshot in snapshots:
                    generation.publish(snapshot)
                    if self.queue.waiting:
                        self.queue.review()  # a prompt that was read has left the engine's own queue
                    if generation.abandoned:
                        # Also when it was abandoned before the engine knew it, so that abort found nothing.
                        await _abort(engine, prepared.id)
            error = _verdict(generation)
            if error is not None and self._draining and generation.abandoned:
                error = ShuttingDownError()
        except MulgilError as failure:
            error = failure
        except Exception:
            log.exception("generation failed", extra={"request_id": generation.observed.id})
            error = InternalServerError("The server had an error while processing your request.")
        finally:
            generation.observed.begin("settle")
            refused = _was_refused(generation, error)
            turn.give_back(0 if refused else generation.prompt_tokens + generation.snapshot.completion_tokens)
            # Before the end is told: a client's next request must not meet its own reservation.
            try:
                await generation.lease.settle(refund=refused)
            finally:
                del self._running[generation.id]
                self._ledger.note(row_of_generation(generation, error, refunded=refused))
                generation.close(error)
                generation.conclude(refused=refused)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _tier_of(self, caller: Caller) -> Tier:
        return self._tiers.get(caller.tier) or self._tiers["default"]

    def _check_model(self, model: str, caller: Caller, tier: Tier) -> None:
        if model not in self.models:
            raise ModelNotFoundError(model)
        check_model_allowed(model, caller.models, tier)


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
