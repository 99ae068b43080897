"""The use case around the gateway's: an answer that is kept, one that is being made, or one that is made now."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from mulgil.accounting import row_of_generation
from mulgil.admission.gates import Gates
from mulgil.admission.lease import Lease
from mulgil.admission.policy import Charge, limits_of_tier
from mulgil.admission.store import Account
from mulgil.answers.flights import Flight
from mulgil.answers.told_again import Told, ToldAgain
from mulgil.aside import Aside
from mulgil.asked import NO_WISHES, Asked, Wishes
from mulgil.auth.keys import Caller
from mulgil.cache.entry import Entry, is_whole
from mulgil.cache.key import AnswerKeys, is_repeatable
from mulgil.cache.responses import ResponseCache
from mulgil.engine.base import TextRequest
from mulgil.engine.snapshot import Snapshot
from mulgil.errors import EngineError, MulgilError
from mulgil.gateway import Gateway
from mulgil.generation import Generation
from mulgil.telemetry.observation import Observation

_NO_TOKENS = Charge(0, 0)


@dataclass(frozen=True, slots=True)
class Caching:
    """What is cached, and where.

    Attributes:
        models: names of the models whose answers are kept.
        keys: tell which requests are the same.
        cache: keeps answers.
    """

    models: frozenset[str]
    keys: AnswerKeys
    cache: ResponseCache


class Answers:
    """Answers requests for chats and completions: by the cache where that is allowed and can be, else by the gateway.

    Args:
        gateway: makes answers.
        gates: what a request passes, also one whose answer is there.
        caching: what is cached, and where.
    """

    def __init__(self, gateway: Gateway, gates: Gates, caching: Caching) -> None:
        self._gateway = gateway
        self._gates = gates
        self._models = caching.models
        self._keys = caching.keys
        self._cache = caching.cache
        self._aside = Aside()
        self._flights: dict[str, Flight] = {}
        self._leaving: dict[str, Callable[[], None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(
        self, request: TextRequest, caller: Caller, *, observed: Observation, wishes: Wishes = NO_WISHES
    ) -> Generation:
        """Answer *request*; returns when its answer is there, or an engine has accepted it.

        `observed.cache` says afterwards where it is from: `hit` (kept, or made for another at this moment), `miss`, or
        `bypass`. Cancelling the call leaves nothing reserved, and nothing running that nobody else reads.

        Args:
            request: what to answer.
            caller: who asks.
            observed: is told of each stage.
            wishes: what the client wants beside, of the cache too.

        Raises:
            MulgilError: it was refused; nothing is charged.
        """
        asked = await self._gateway.ask(request, caller, wishes=wishes, observed=observed)
        if request.model not in self._models:
            return await self._gateway.begin(asked)
        # Two gateways that are each other's fallback would wait for each other's flights.
        if wishes.passed_on or not (wishes.cache.store and is_repeatable(asked.settled.request)):
            observed.cache = "bypass"
            return await self._gateway.begin(asked)
        observed.begin("cache")
        settled, longest = asked.settled, asked.tier.max_tokens
        key = await self._aside.run(
            lambda: self._keys.key(caller.tenant, settled.request, settled.fingerprint, longest), size=request.weight
        )
        if wishes.cache.takes_kept:
            if flight := self._flight(key):
                return await self._follow(flight, asked)
            if entry := await self._cache.find(key, wishes.cache):
                return await self._tell(entry, asked)
            # While the store was asked somebody else may have begun.
            if flight := self._flight(key):
                return await self._follow(flight, asked)
        return await self._lead(asked, key)

    def abandon(self, generation: Generation) -> None:
        """Its reader wants no more of *generation*. It is stopped unless others read the same one."""
        # More than once for one reader, so it stays here until the generation is closed.
        leave = self._leaving.get(generation.id)
        if leave is not None:
            leave()
        else:
            self._gateway.abandon(generation)

    async def drain(self, *, within: float = 5.0) -> None:
        """Wait until all is settled; the gateway was drained before, and so nothing new begins."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Let go of the store of answers."""
        await self._cache.store.close()

    async def _lead(self, asked: Asked, key: str) -> Generation:
        """Make the answer, for all who ask the same meanwhile too."""
        asked.observed.cache = "miss"
        # The request may be over before its generation begins, if somebody else waits for that.
        asked.observed.generates("cache")
        starting = asyncio.create_task(self._gateway.begin(asked))
        starting.add_done_callback(lambda _: asked.observed.release())
        flight = self._flights[key] = Flight(starting, self._gateway.abandon)
        leave = flight.join()
        self._spawn(self._land(flight, key, asked.settled.fingerprint))
        try:
            generation = await flight.started()
        except BaseException:
            leave()
            raise
        if not generation.closed:
            self._leaving[generation.id] = leave
        return generation

    async def _land(self, flight: Flight, key: str, fingerprint: str) -> None:
        """Keep what *flight* has made, and let nobody join it any more."""
        try:
            generation = await flight.landed()
            if generation is not None and _may_be_kept(generation, fingerprint):
                await self._cache.keep(key, generation.prompt_tokens, generation.snapshot, generation.dropped_messages)
        finally:
            if self._flights.get(key) is flight:
                del self._flights[key]
            if flight.generation is not None:
                self._leaving.pop(flight.generation.id, None)

    async def _follow(self, flight: Flight, asked: Asked) -> Generation:
        """Read what is being made for another; if that is refused, make it for this one alone."""
        leave = flight.join()
        lease: Lease | None = None
        try:
            lease = await self._lease(asked)
            asked.observed.begin("cache")
            leading = await flight.started()
        except MulgilError:
            leave()
            if lease is None:
                raise
            # The first one's budgets, its turn, its moment: none of it is this one's.
            await lease.settle(refund=True)
            asked.observed.cache = "miss"
            return await self._gateway.begin(asked)
        except BaseException:
            leave()
            if lease is not None:
                self._spawn(lease.settle(refund=True))
            raise
        return self._repeated(leading, asked, lease, leave)

    def _repeated(self, leading: Generation, asked: Asked, lease: Lease, leave: Callable[[], None]) -> Generation:
        """A generation that tells what *leading* makes, until its reader leaves."""
        work = Told(leading.prompt_tokens, len(leading.snapshot.choices), leading.dropped_messages)
        generation = Generation(work, lease, model=asked.request.model, fingerprint=leading.fingerprint)
        self._as_hit(generation, asked)
        asked.observed.fallback = leading.observed.fallback
        asked.observed.generates("first_token")
        # Two tasks: one that is cancelled before it has begun would settle nothing.
        repeating = asyncio.create_task(_repeat(leading, generation))

        def stop() -> None:
            generation.abandoned = not generation.closed
            repeating.cancel()
            leave()

        self._leaving[generation.id] = stop
        self._spawn(self._end_repeating(repeating, leading, generation, leave))
        return generation

    async def _end_repeating(
        self, repeating: asyncio.Task[None], leading: Generation, generation: Generation, leave: Callable[[], None]
    ) -> None:
        try:
            await asyncio.wait([repeating])
        finally:
            repeating.cancel()  # no harm on one that has ended
            leave()
            error = leading.error
            if leading.closed:
                generation.publish(_for_nothing(leading.snapshot, leading))
            else:
                error = EngineError("The request was cancelled before the answer was complete.")
            generation.observed.begin("settle")
            failed = error is not None and not generation.abandoned
            try:
                await self._end(generation, error, refund=failed and generation.snapshot.completion_tokens == 0)
            finally:
                del self._leaving[generation.id]

    async def _tell(self, entry: Entry, asked: Asked) -> Generation:
        """The answer that was kept."""
        lease = await self._lease(asked)
        work = Told(entry.prompt_tokens, len(entry.choices), entry.dropped_messages)
        generation = ToldAgain(work, lease, model=asked.request.model, fingerprint=asked.settled.fingerprint)
        generation.snapshot = entry.snapshot
        self._as_hit(generation, asked)
        asked.observed.generates("settle")
        await self._end(generation, None, refund=False)
        return generation

    def _as_hit(self, generation: Generation, asked: Asked) -> None:
        asked.observed.cache = "hit"
        generation.free = True
        generation.observed = asked.observed
        generation.pacing = asked.settled.pacing

    async def _end(self, generation: Generation, error: MulgilError | None, *, refund: bool) -> None:
        """Settle, and then tell the end, as the gateway does."""
        try:
            await generation.lease.settle(refund=refund)
        finally:
            self._gates.ledger.note(row_of_generation(generation, error, refunded=refund))
            generation.close(error)
            generation.conclude(refused=refund)

    async def _lease(self, asked: Asked) -> Lease:
        """One request's, and no tokens'."""
        account = Account(asked.caller.tenant, asked.caller.key_id)
        lease = self._gates.leases.open(account, *limits_of_tier(asked.tier))
        asked.observed.begin("reserve")
        await lease.reserve(_NO_TOKENS)
        return lease

    def _flight(self, key: str) -> Flight | None:
        flight = self._flights.get(key)
        return flight if flight is not None and flight.joinable else None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _may_be_kept(generation: Generation, fingerprint: str) -> bool:
    """Whether it is whole, and of what was asked: of no fallback, and of no adapter that came meanwhile."""
    asked = generation.observed.fallback is None and generation.fingerprint == fingerprint
    return asked and is_whole(generation.snapshot)


async def _repeat(leading: Generation, generation: Generation) -> None:
    """Tell *generation* all that *leading* makes."""
    async for snapshot in leading.snapshots():
        generation.publish(_for_nothing(snapshot, leading))


def _for_nothing(snapshot: Snapshot, leading: Generation) -> Snapshot:
    """*snapshot* for whom its prompt has cost nothing."""
    return replace(snapshot, cached_tokens=leading.prompt_tokens)
