"""The fair queue: who may go to the engine now, who waits, and for how long at most."""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf

from mulgil.admission.expectations import AnswerLengths, DrainRate
from mulgil.admission.waiting_room import Demand, WaitingRoom
from mulgil.errors import OverloadedError, ServiceUnavailableError, ShuttingDownError

_UNKNOWN_WAIT = 5.0
_SHORTEST_ADVICE, _LONGEST_ADVICE = 1.0, 60.0
_JITTER = 1.5


@dataclass(frozen=True, slots=True)
class QueueRules:
    """How much is let through, and how much waits.

    Attributes:
        turns: most choices under way at the same time.
        places: most requests that wait.
        timeout: seconds that a request waits at most.
        worst_case_share: share of the longest possible answer for which the engine must have room.
    """

    turns: int = 50
    places: int = 500
    timeout: float = 30.0
    worst_case_share: float = 0.5


@dataclass(slots=True)
class QueueCounters:
    """What happened to requests since the process began. Each ends in exactly one of these."""

    granted: int = 0
    refused: int = 0
    expired: int = 0
    left: int = 0


class Turn:
    """The right to use the engine, until it is given back. Made by `FairQueue.enter`."""

    def __init__(self, queue: "FairQueue", demand: Demand, charged: float) -> None:
        self.demand = demand
        self.charged = charged
        self._queue = queue
        self._over = False

    def give_back(self, used: int = 0) -> None:
        """The request is over. Only the first call counts.

        Args:
            used: tokens of prompt and answer; 0 if the engine did not serve it.
        """
        if not self._over:
            self._over = True
            self._queue.take_back(self, used)


class FairQueue:
    """Gives turns: by class, within a class fairly by tenant, counted in tokens; see `WaitingRoom`.

    A request takes as many turns as it has choices, or all there are if it has more. The one whose turn is next
    is never passed over, however many turns it needs. Of n requests that wait, none costs more than O(log n).

    Args:
        rules: how much is let through, and how much waits.
        room: whether the engine can begin with another request, given the choices of all under way and of this one,
            the tokens that those under way need, and those that this one needs. Not asked while nothing is under way,
            so that nobody waits for what no end will announce.
        clock: seconds, never going back.
        chance: scatters the moments at which those who are refused are advised to come back.
    """

    def __init__(
        self,
        rules: QueueRules,
        *,
        room: Callable[[int, int, int], bool] = lambda choices, held, asked: True,
        clock: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        self._rules = rules
        self._room = room
        self._clock = clock
        self._chance = chance or random.Random()
        self._waiting = WaitingRoom()
        self._answers = AnswerLengths()
        self._rate = DrainRate()
        self._futures: dict[Demand, asyncio.Future[Turn]] = {}
        self._tokens = 0
        self._closed = False
        self.turns_in_use = 0
        """Turns that were given and not given back."""
        self.counters = QueueCounters()

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    async def enter(self, demand: Demand) -> Turn:
        """A turn, as soon as it may have one; whoever gets it must give it back.

        Cancelling the call gives the place, or the turn, up.

        Raises:
            OverloadedError: the room is full, or the time is up; says when to come back.
            ShuttingDownError: the queue was closed.
        """
        if self._closed:
            raise ShuttingDownError
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Turn] = loop.create_future()
        self._futures[demand] = future
        self._waiting.push(demand)
        self._observe()
        self.review()
        if len(self._waiting) > self._rules.places:
            self._refuse(self._waiting.crowded_out_by(demand), self._overloaded("Too many requests are waiting"))
            self.counters.refused += 1
            self.review()
        deadline = None if future.done() else loop.call_later(self._rules.timeout, self._expire, demand)
        try:
            return await future
        except asyncio.CancelledError:
            self._leave(demand, future)
            raise
        finally:
            if deadline is not None:
                deadline.cancel()

    def review(self) -> None:
        """Give turns to those who may have one now; to be called when the engine may have got room."""
        while (demand := self._waiting.first()) is not None:
            future = self._futures[demand]
            if future.done():  # cancelled, and its task has not come to leave yet
                self._drop(demand)
                self.counters.left += 1
            elif self._fits(demand):
                self._grant(demand, future)
            else:
                return

    def close(self) -> None:
        """Give no turns any more, and refuse all who wait. Turns can still be given back."""
        self._closed = True
        for demand in list(self._futures):
            self._refuse(demand, ShuttingDownError())
            self.counters.refused += 1

    def position(self, demand: Demand) -> int | None:
        """About how many turns come before that of *demand*, if nobody came any more; None if it does not wait."""
        return self._waiting.ahead_of(demand) if demand in self._waiting else None

    def expected_wait(self, turns: int) -> float | None:
        """Seconds until so many turns have become free, at the pace of late; None if it is not known yet."""
        rate = self._rate.per_second
        if rate is None:
            return None
        return turns / rate if rate else inf

    def take_back(self, turn: Turn, used: int) -> None:
        """A turn is given back; see `Turn.give_back`."""
        demand = turn.demand
        self.turns_in_use -= self._width(demand)
        self._tokens -= self._needed(demand)
        self._rate.observe(self._clock(), waiting=len(self._waiting) > 0, returned=self._width(demand))
        if used > demand.prompt_tokens:
            self._answers.learn(demand.tenant, (used - demand.prompt_tokens) / demand.most_output_tokens)
        self._waiting.end(demand, used - turn.charged)
        self.review()

    def _width(self, demand: Demand) -> int:
        return min(demand.turns, self._rules.turns)

    def _needed(self, demand: Demand) -> int:
        """Tokens for which the engine must have room."""
        return demand.prompt_tokens + ceil(self._rules.worst_case_share * demand.most_output_tokens)

    def _fits(self, demand: Demand) -> bool:
        turns = self.turns_in_use + self._width(demand)
        if turns > self._rules.turns:
            return False
        return not self.turns_in_use or self._room(turns, self._tokens, self._needed(demand))

    def _grant(self, demand: Demand, future: asyncio.Future[Turn]) -> None:
        charged = demand.prompt_tokens + self._answers.expected(demand.tenant) * demand.most_output_tokens
        self._waiting.serve(demand, charged)
        self.turns_in_use += self._width(demand)
        self._tokens += self._needed(demand)
        self._forget(demand)
        self.counters.granted += 1
        future.set_result(Turn(self, demand, charged))

    def _drop(self, demand: Demand) -> None:
        """It waits no more."""
        self._waiting.remove(demand)
        self._forget(demand)

    def _forget(self, demand: Demand) -> None:
        del self._futures[demand]
        self._observe()

    def _observe(self) -> None:
        self._rate.observe(self._clock(), waiting=len(self._waiting) > 0)

    def _refuse(self, demand: Demand, error: ServiceUnavailableError) -> None:
        future = self._futures[demand]
        self._drop(demand)
        if not future.done():
            future.set_exception(error)

    def _expire(self, demand: Demand) -> None:
        if demand in self._futures:
            waited = f"No turn came up within {self._rules.timeout:g} s"
            self._refuse(demand, self._overloaded(waited))
            self.counters.expired += 1
            self.review()  # it may have been the one whom all others waited for

    def _leave(self, demand: Demand, future: asyncio.Future[Turn]) -> None:
        """Its task was cancelled, before or after its future was decided."""
        if demand in self._futures:
            self._drop(demand)
            self.counters.left += 1
            self.review()
        elif not future.cancelled() and future.exception() is None:
            future.result().give_back()

    def _overloaded(self, what: str) -> OverloadedError:
        wait = self.expected_wait(self._waiting.turns)
        wait = _UNKNOWN_WAIT if wait is None else wait
        # Bounded first and scattered then, so that no crowd comes back together, whatever the bound.
        wait = min(max(wait, _SHORTEST_ADVICE), _LONGEST_ADVICE / _JITTER) * self._chance.uniform(1, _JITTER)
        return OverloadedError(f"{what}. Please try again in {ceil(wait)} s.", retry_after=wait)
