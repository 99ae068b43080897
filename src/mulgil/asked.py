"""A request on its way: what its client wishes beside its body, and what has been found out about it."""

from dataclasses import dataclass

from mulgil.auth.keys import Caller
from mulgil.cache.control import ANY, CacheControl
from mulgil.catalogue import Settled
from mulgil.engine.base import TextRequest
from mulgil.telemetry.observation import Observation
from mulgil.tiers import Tier


@dataclass(frozen=True, slots=True)
class Wishes:
    """How a request is to be answered, as far as its body does not say.

    Attributes:
        timed: note the order in which the answer grows, so that it can be read again from anywhere.
        cache: what the client wants of the response cache.
        variant: the variant of the model that is to answer.
        passed_on: it comes from a gateway whose own engine could not answer it, and is passed on no further.
    """

    timed: bool = False
    cache: CacheControl = ANY
    variant: str | None = None
    passed_on: bool = False


NO_WISHES = Wishes()


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that its caller may make.

    Attributes:
        request: as it was asked; an answer is told under the name of its model, whoever makes it.
        settled: the request as it is to be answered.
        caller: who asks.
        tier: what the caller may do.
        wishes: what the client wants beside.
        observed: is told of each stage.
    """

    request: TextRequest
    settled: Settled
    caller: Caller
    tier: Tier
    wishes: Wishes
    observed: Observation
