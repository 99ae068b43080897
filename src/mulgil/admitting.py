"""How a prepared request is let in: by its budgets first, then by its turn."""

import asyncio

from mulgil.admission.gates import Gates
from mulgil.admission.lease import Lease
from mulgil.admission.policy import Charge, limits_of_tier
from mulgil.admission.store import Account
from mulgil.admission.waiting_room import Demand
from mulgil.asked import Asked
from mulgil.engine.base import Prepared
from mulgil.errors import MulgilError, ShuttingDownError
from mulgil.running import Place, Running


class Admission:
    """Takes what a request needs before anything is made for it.

    Args:
        gates: the budgets and the queue.
        running: does what must be done when the request is not there any more.
    """

    def __init__(self, gates: Gates, running: Running) -> None:
        self._leases = gates.leases
        self._queue = gates.queue
        self._running = running

    async def reserve(self, asked: Asked, prepared: Prepared) -> Lease:
        """A lease on the exact prompt and the longest possible answer.

        Raises:
            MulgilError: there is not enough left; nothing was taken.
        """
        asked.observed.truncated_messages = prepared.dropped_messages
        account = Account(asked.caller.tenant, asked.caller.key_id)
        lease = self._leases.open(account, *limits_of_tier(asked.tier))
        asked.observed.begin("reserve")
        await lease.reserve(Charge(prepared.prompt_tokens, prepared.most_output_tokens))
        return lease

    async def turn(self, asked: Asked, prepared: Prepared, lease: Lease) -> Place:
        """A turn for *prepared*, which holds *lease* while it waits; without a turn the lease is given back.

        Raises:
            OverloadedError: there was none in time, or too many wait.
            ShuttingDownError: nothing begins any more.
        """
        asked.observed.begin("queue")
        demand = Demand(
            asked.caller.tenant,
            prepared.prompt_tokens,
            prepared.most_output_tokens,
            turns=prepared.width,
            priority=asked.tier.priority,
            weight=asked.tier.weight,
        )
        try:
            turn = await self._queue.enter(demand)
            if not self._running.draining:
                return turn
            turn.give_back()  # it came up in the very moment in which the drain began
            raise ShuttingDownError
        except asyncio.CancelledError:
            self._running.spawn(lease.settle(refund=True))
            raise
        except MulgilError:
            # Before it is told: the client's next request must not meet its own reservation.
            await asyncio.shield(self._running.spawn(lease.settle(refund=True)))
            raise
