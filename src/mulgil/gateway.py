"""The use case: settle what is asked, prepare, admit, generate. Knows the order of things and nothing else."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from mulgil.admission.gates import Gates
from mulgil.admission.lease import Lease
from mulgil.admitting import Admission
from mulgil.asked import NO_WISHES, Asked, Wishes
from mulgil.auth.keys import Caller
from mulgil.catalogue import Catalogue
from mulgil.engine.base import Answerer, Engine, TextRequest
from mulgil.errors import (
    ContextLengthError,
    EngineUnavailableError,
    InvalidFieldError,
    ModelNotFoundError,
    MulgilError,
    OverloadedError,
    ShuttingDownError,
)
from mulgil.generation import Generation
from mulgil.running import NO_PLACE, Run, Running
from mulgil.schemas.tokenize import MOST_TEXTS, Detokenized, DetokenizeRequest, Tokenized, TokenizeRequest
from mulgil.telemetry.observation import Observation
from mulgil.tiers import Priority, Tier, check_length_allowed, check_model_allowed

log = logging.getLogger(__name__)

_FOR_A_FALLBACK = (ContextLengthError, EngineUnavailableError, OverloadedError)
_IN_THE_ENGINE: dict[Priority, int] = {"interactive": 0, "normal": 1, "batch": 2}


class Gateway:
    """Turns requests into generations.

    Args:
        engine: gives the engine, or raises `EngineUnavailableError`.
        catalogue: what may be asked for.
        gates: what a request passes before the engine has it.
        upstreams: other servers that can answer as fallbacks, by name.
        rebuilt: returns when the engine is not being rebuilt, or after as long as a request may wait for that.
    """

    def __init__(
        self,
        engine: Callable[[], Engine],
        catalogue: Catalogue,
        gates: Gates,
        upstreams: Mapping[str, Answerer] | None = None,
        *,
        rebuilt: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._engine = engine
        self.catalogue = catalogue
        self.queue = gates.queue
        self._upstreams = upstreams or {}
        self._tiers = gates.tiers
        self._rebuilt = rebuilt
        self._ledger = gates.ledger
        self._running = Running(gates.ledger, self._on_progress)
        self._admission = Admission(gates, self._running)
        self.leaving = False
        """Whether it will soon take nothing on any more; balancers should send new requests elsewhere."""

    async def start(
        self,
        request: TextRequest,
        caller: Caller,
        *,
        wishes: Wishes = NO_WISHES,
        observed: Observation | None = None,
    ) -> Generation:
        """`ask`, and `begin` what comes of it."""
        return await self.begin(await self.ask(request, caller, wishes=wishes, observed=observed))

    async def ask(
        self,
        request: TextRequest,
        caller: Caller,
        *,
        wishes: Wishes = NO_WISHES,
        observed: Observation | None = None,
    ) -> Asked:
        """Let *request* pass if its answer may be told to *caller*, whoever makes it, and settle what it leaves open.

        Args:
            request: what to answer.
            caller: who asks.
            wishes: what the client wants beside.
            observed: is told of each stage, and held until the generation is settled.

        Raises:
            MulgilError: it may not, or nothing is taken on any more.
        """
        observed = (observed or Observation()).asks(request.operation, request.model)
        if self._running.draining:
            raise ShuttingDownError
        tier = self._tier_of(caller)
        self._check_model(request.model, caller, tier)
        param = "max_tokens" if request.max_tokens is not None else "max_completion_tokens"
        check_length_allowed(request.output_tokens, tier, param=param)
        settled = self.catalogue.settle(request, caller, tier, wishes.variant)
        observed.variant = settled.variant
        await self._ledger.check(caller.tenant, caller.key_id, tier)
        return Asked(request, settled, caller, tier, wishes, observed)

    async def begin(self, asked: Asked) -> Generation:
        """Prepare, admit and run what was *asked*; returns when the engine, or a fallback, has accepted it.

        A fallback is asked where the engine cannot answer, has no turn in time, or has no room for the prompt; each
        one once. What an engine has accepted is never answered by anybody else. Cancelling the call leaves nothing
        running and nothing reserved.

        Raises:
            MulgilError: it was refused; nothing runs, and nothing is charged.
        """
        final = asked.wishes.passed_on or not asked.settled.fallbacks
        try:
            return await self._by_engine(asked, final=final)
        except _FOR_A_FALLBACK as error:
            if final:
                raise
            return await self._by_fallback(asked, error)

    async def _by_fallback(self, asked: Asked, error: MulgilError) -> Generation:
        observed = asked.observed
        for name in asked.settled.fallbacks:
            observed.falls_back(name, error.code or error.type)
            upstream = self._upstreams.get(name)
            try:
                if upstream is not None:
                    settled = self.catalogue.answered_elsewhere(asked.settled, name)
                    return await self._by_upstream(replace(asked, settled=settled), upstream)
                return await self._by_engine(self._renamed(asked, name), final=False)
            except (
                *_FOR_A_FALLBACK,
                ModelNotFoundError,
            ) as failure:  # an adapter may be gone that was there at the start
                log.warning("fallback %s of %s does not answer either: %s", name, asked.request.model, failure.code)
        observed.fallback = observed.fallback_reason = None
        raise error

    def _renamed(self, asked: Asked, model: str) -> Asked:
        """*asked* as *model* answers it, which the operator has named and its caller need not be allowed to ask for."""
        request = asked.request.model_copy(update={"model": model})
        settled = self.catalogue.settle(request, asked.caller, asked.tier)
        return replace(asked, settled=settled)

    async def _by_upstream(self, asked: Asked, upstream: Answerer) -> Generation:
        asked.observed.begin("tokenise")
        prepared = await upstream.prepare(
            asked.settled.request, tenant=asked.caller.tenant, default_max_tokens=asked.tier.max_tokens
        )
        prepared = replace(prepared, trace_headers=asked.observed.trace_headers)
        lease = await self._admission.reserve(asked, prepared)
        return await self._accepted(Run(upstream, prepared, NO_PLACE, final=False), asked, lease)

    async def _by_engine(self, asked: Asked, *, final: bool) -> Generation:
        """By the engine of this process. Where there is nobody else, it is waited for while it is rebuilt."""
        observed, settled = asked.observed, asked.settled
        if final and self._rebuilt is not None:
            observed.begin("wait_for_engine")
            await self._rebuilt()
        engine = self._engine()
        observed.begin("tokenise")
        try:
            prepared = await engine.prepare(
                settled.request,
                tenant=asked.caller.tenant,
                default_max_tokens=asked.tier.max_tokens,
                adapter=settled.adapter,
            )
        except ModelNotFoundError as error:
            if settled.variant is None:
                raise
            raise EngineUnavailableError(f"The adapter of the variant '{settled.variant}' is not loaded.") from error
        if settled.adapter is not None:
            asked = replace(asked, settled=self.catalogue.answered_by(settled, prepared.adapter))
        lease = await self._admission.reserve(asked, prepared)
        place = await self._admission.turn(asked, prepared, lease)
        # From here on nothing is awaited until the task that settles the lease, and gives the turn back, has both.
        prepared = replace(prepared, priority=_IN_THE_ENGINE[asked.tier.priority], trace_headers=observed.trace_headers)
        return await self._accepted(Run(engine, prepared, place, final=final), asked, lease)

    async def _accepted(self, run: Run, asked: Asked, lease: Lease) -> Generation:
        """The generation of *run*, once it is accepted. Whatever happens, it settles *lease*."""
        settled = asked.settled
        asked.observed.generates("first_token")
        generation = Generation(
            run.prepared, lease, model=asked.request.model, fingerprint=settled.fingerprint, timed=asked.wishes.timed
        )
        generation.pacing = settled.pacing
        generation.observed = asked.observed
        lease.made = lambda: generation.snapshot.completion_tokens
        self._running.begin(run, generation)
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
        self._check_model(request.model or self.catalogue.main, caller, self._tier_of(caller))
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
        self._check_model(request.model or self.catalogue.main, caller, self._tier_of(caller))
        return Detokenized(prompt="".join(await self._engine().detokenize(request.tokens)))

    def abandon(self, generation: Generation) -> None:
        """Nobody wants the rest of *generation*: stop the engine on it. No harm on a closed one; does not wait."""
        self._running.abandon(generation)

    @property
    def draining(self) -> bool:
        """Nothing is taken on any more."""
        return self._running.draining

    @property
    def running(self) -> int:
        """Generations that are not settled yet."""
        return len(self._running)

    async def drain(self, *, within: float = 5.0) -> None:
        """Take nothing on any more, abandon all that still runs, and wait until it is settled.

        What an engine does not let go of *within* seconds is cut off from it, and settled too.
        """
        self.queue.close()
        await self._running.drain(within=within)

    def _on_progress(self) -> None:
        if self.queue.waiting:
            self.queue.review()  # a prompt that was read has left the engine's own queue

    def _tier_of(self, caller: Caller) -> Tier:
        return self._tiers.get(caller.tier) or self._tiers["default"]

    def _check_model(self, model: str, caller: Caller, tier: Tier) -> None:
        if model not in self.catalogue:
            raise ModelNotFoundError(model)
        check_model_allowed(model, caller.models, tier)
