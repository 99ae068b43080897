"""The use case of embeddings: prepare, admit, embed, settle."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from mulgil.accounting import Bill, row_of_embedding
from mulgil.admission.lease import Lease, Leases
from mulgil.admission.policy import Charge, limits_of_tier
from mulgil.admission.store import Account
from mulgil.auth.keys import Caller
from mulgil.engine.embedding import Embedder, PreparedInputs, Vector
from mulgil.errors import (
    InternalServerError,
    ModelNotFoundError,
    MulgilError,
    ShuttingDownError,
    UnsupportedParameterError,
)
from mulgil.ledger.base import Ledger
from mulgil.schemas.embedding import EmbeddingRequest
from mulgil.schemas.tokenize import Tokenized, TokenizeRequest
from mulgil.telemetry.observation import Observation, Used
from mulgil.tiers import Tier, check_model_allowed

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Embedded:
    """What was asked for.

    Attributes:
        vectors: one for each input, in order.
        prompt_tokens: of all inputs together; what was charged.
        lease: settled.
    """

    vectors: list[Vector]
    prompt_tokens: int
    lease: Lease


class EmbeddingGateway:
    """Turns requests into vectors and settles each of them.

    Args:
        embedder: gives the embedder, or raises `EngineUnavailableError`.
        models: names under which the embedding model is served.
        leases: where budgets are taken.
        tiers: by name; `default` is among them.
        ledger: refuses who may spend no more, and takes what was used.
    """

    def __init__(
        self,
        embedder: Callable[[], Embedder],
        models: tuple[str, ...],
        leases: Leases,
        tiers: Mapping[str, Tier],
        ledger: Ledger,
    ) -> None:
        self._embedder = embedder
        self.models = models
        self._leases = leases
        self._tiers = tiers
        self._ledger = ledger
        self._work: set[asyncio.Task[list[Vector]]] = set()
        self._settlements: set[asyncio.Task[None]] = set()
        self._draining = False

    async def embed(self, request: EmbeddingRequest, caller: Caller, observed: Observation | None = None) -> Embedded:
        """The vectors of *request*, settled. *observed* is told of each stage, and held until then.

        Cancelling the call stops the work; it is settled by a task that the cancellation cannot reach.

        Raises:
            MulgilError: it was refused, or failed; nothing is charged.
        """
        observed = observed or Observation()
        observed.asks("embeddings", request.model)
        if self._draining:
            raise ShuttingDownError
        tier = self._tier_of(caller)
        self._check_model(request.model, caller, tier)
        await self._ledger.check(caller.tenant, caller.key_id, tier)
        embedder = self._embedder()
        observed.begin("tokenise")
        prepared = await embedder.prepare(request)
        observed.begin("reserve")
        lease = self._leases.open(Account(caller.tenant, caller.key_id), *limits_of_tier(tier))
        await lease.reserve(Charge(prepared.prompt_tokens, 0))
        # From here on nothing is awaited until the task that settles the lease exists.
        observed.generates("embed")
        prepared = replace(prepared, trace_headers=observed.trace_headers)
        work = _kept(self._work, _embed(embedder, prepared))
        bill = Bill(lease, observed, request.model, prepared.prompt_tokens)
        settled = _kept(self._settlements, self._settle_after(work, bill))
        try:
            await asyncio.shield(settled)
        except asyncio.CancelledError:
            work.cancel()
            raise
        if work.cancelled():
            raise ShuttingDownError
        return Embedded(work.result(), prepared.prompt_tokens, lease)

    async def tokenize(self, request: TokenizeRequest, caller: Caller) -> Tokenized:
        """The tokens of *request*; charges nothing.

        Raises:
            MulgilError: it was refused.
        """
        self._check_model(request.model or "", caller, self._tier_of(caller))
        for name in ("messages", "return_token_strs"):
            if getattr(request, name):
                raise UnsupportedParameterError(
                    f"Unsupported parameter: '{name}' is not supported by an embedding model.", param=name
                )
        embedder = self._embedder()
        ids = await embedder.tokenize(request.prompt or "", special=request.add_special_tokens)
        # Not validated, which for a million tokens takes long: they are our own.
        return Tokenized.model_construct(count=len(ids), max_model_len=embedder.max_model_len or len(ids), tokens=ids)

    @property
    def running(self) -> int:
        """Requests that are not settled yet."""
        return len(self._settlements)

    async def drain(self, *, within: float = 5.0) -> None:
        """Take nothing on any more, stop all that still runs, and wait until it is settled, but not for ever."""
        self._draining = True
        for work in list(self._work):
            work.cancel()
        if self._settlements:
            await asyncio.wait(self._settlements, timeout=within)

    def _tier_of(self, caller: Caller) -> Tier:
        return self._tiers.get(caller.tier) or self._tiers["default"]

    def _check_model(self, model: str, caller: Caller, tier: Tier) -> None:
        if model not in self.models:
            raise ModelNotFoundError(model)
        check_model_allowed(model, caller.models, tier)

    async def _settle_after(self, work: asyncio.Task[list[Vector]], bill: Bill) -> None:
        await asyncio.wait([work])
        observed = bill.observed
        observed.begin("settle")
        # A client that leaves pays for what it asked for; a failure of ours, a shutdown included, costs nothing.
        left = work.cancelled() and not self._draining
        error = (ShuttingDownError() if self._draining else None) if work.cancelled() else work.exception()
        refused = error is not None
        try:
            await bill.lease.settle(refund=refused)
        finally:
            self._ledger.note(row_of_embedding(bill, error, left=left))
            observed.begin("send")
            finish = "refused" if refused else "abort" if left else "stop"
            observed.used = Used(0 if refused else bill.prompt_tokens, finish=finish)
            observed.release()


async def _embed(embedder: Embedder, prepared: PreparedInputs) -> list[Vector]:
    try:
        return await embedder.embed(prepared)
    except MulgilError:
        raise
    except Exception:
        log.exception("embedding failed")
        raise InternalServerError("The server had an error while processing your request.") from None


def _kept(tasks: set[asyncio.Task[T]], work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task of *work* that is in *tasks* until it ends."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
