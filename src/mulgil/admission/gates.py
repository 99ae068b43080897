"""What a request passes on its way to the engine."""

from collections.abc import Mapping
from dataclasses import dataclass

from mulgil.admission.lease import Leases
from mulgil.admission.queue import FairQueue
from mulgil.tiers import Tier


@dataclass(frozen=True, slots=True)
class Gates:
    """In this order: what its tier allows, its budgets, its turn.

    Attributes:
        tiers: by name; `default` is among them.
        leases: where budgets are taken.
        queue: where turns are waited for.
    """

    tiers: Mapping[str, Tier]
    leases: Leases
    queue: FairQueue
