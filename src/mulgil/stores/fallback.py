"""`limiter_on_failure = local`: while the shared store is away, each replica keeps its share of every limit."""

from collections.abc import Sequence
from dataclasses import replace

from mulgil.admission.policy import Limits, impossible
from mulgil.admission.store import (
    Account,
    Balances,
    BudgetStore,
    Decision,
    Report,
    Reservation,
    Settlement,
    StoreClosedError,
    StoreError,
)

_MOST_DOUBTS = 1_000


class FallbackStore:
    """A `BudgetStore` that turns to a local one when the shared one does not answer.

    While that lasts, replicas that do not know of each other admit no more than the limits together,
    as long as there are no more than *replicas* of them.

    Args:
        shared: the store of all replicas.
        local: of this process.
        replicas: by which the limits are divided; every share is at least 1.
    """

    def __init__(self, shared: BudgetStore, local: BudgetStore, *, replicas: int) -> None:
        self._shared = shared
        self._local = local
        self._replicas = replicas
        self._held_locally: set[str] = set()
        self._in_doubt: list[Settlement] = []

    async def reserve(self, reservation: Reservation) -> Decision:
        try:
            return await self._shared.reserve(reservation)
        except StoreError as error:
            if not isinstance(error, StoreClosedError) and len(self._in_doubt) < _MOST_DOUBTS:
                # The shared store may have done it; it is told to forget it when it is back.
                self._in_doubt.append(Settlement(Report(reservation.lease_id, reservation.account, 0), refund=True))
        share = replace(
            reservation,
            key_limits=self._share(reservation.key_limits),
            tenant_limits=self._share(reservation.tenant_limits),
        )
        if impossible(share.charge, share.key_limits, "key") or impossible(share.charge, share.tenant_limits, "tenant"):
            # It fits the limits, and never this share of them: only the shared store can admit it.
            raise StoreClosedError("larger than this gateway's share of the limits")
        decision = await self._local.reserve(share)
        if decision.admitted:
            self._held_locally.add(reservation.lease_id)
        return decision

    async def renew(self, reports: Sequence[Report]) -> list[bool]:
        local = [report for report in reports if report.lease_id in self._held_locally]
        shared = [report for report in reports if report.lease_id not in self._held_locally]
        kept = dict(zip((report.lease_id for report in local), await self._local.renew(local), strict=True))
        if shared:
            alive = await self._shared.renew(shared)
            kept |= dict(zip((report.lease_id for report in shared), alive, strict=True))
        return [kept[report.lease_id] for report in reports]

    async def settle(self, settlement: Settlement) -> Balances:
        if settlement.report.lease_id in self._held_locally:
            self._held_locally.discard(settlement.report.lease_id)
            return await self._local.settle(settlement)
        balances = await self._shared.settle(settlement)
        await self._resolve_doubts()
        return balances

    async def balances(self, account: Account) -> Balances:
        try:
            return await self._shared.balances(account)
        except StoreError:
            return await self._local.balances(account)

    async def reset(self, account: Account, *, tenant_too: bool = False) -> None:
        await self._local.reset(account, tenant_too=tenant_too)
        await self._shared.reset(account, tenant_too=tenant_too)

    async def ping(self) -> None:
        await self._shared.ping()

    async def close(self) -> None:
        await self._shared.close()
        await self._local.close()

    async def _resolve_doubts(self) -> None:
        doubts, self._in_doubt = self._in_doubt, []
        for index, settlement in enumerate(doubts):
            try:
                await self._shared.settle(settlement)
            except StoreError:
                self._in_doubt += doubts[index:]
                return

    def _share(self, limits: Limits) -> Limits:
        def divided(limit: int | None) -> int | None:
            return None if limit is None else max(1, limit // self._replicas)

        return Limits(
            requests=divided(limits.requests),
            input_tokens=divided(limits.input_tokens),
            output_tokens=divided(limits.output_tokens),
            concurrency=divided(limits.concurrency),
        )
