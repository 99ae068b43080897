"""What a request passes on its way to the engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mulgil.admission.lease import Leases
from mulgil.admission.queue import FairQueue
from mulgil.ledger.base import Ledger, NoLedger
from mulgil.tiers import Tier


@dataclass(frozen=True, slots=True)
class Gates:
    """In this order: what its tier allows, its quotas, its budgets, its turn.

    Attributes:
        tiers: by name; `default` is among them.
        leases: where budgets are taken.
        queue: where turns are waited for.
        ledger: refuses who may spend no more, and takes what was used.
    """

    tiers: Mapping[str, Tier]
    leases: Leases
    queue: FairQueue
    ledger: Ledger = field(default_factory=NoLedger)
