"""Who waits for a turn, in which order, and who has to leave when there are too many."""

from collections import OrderedDict
from dataclasses import dataclass, field
from math import ceil

from mulgil.admission.fairness import StartTimeOrder
from mulgil.admission.keyed_heap import KeyedHeap
from mulgil.tiers import Priority

CLASS_WEIGHTS: dict[Priority, int] = {"interactive": 64, "normal": 8, "batch": 1}
"""How classes that wait at the same time share, in tokens: almost in strict order, and nobody starves.

A class gets its weight divided by the weights of all classes that wait: beside both others `interactive` gets
64/73 (88 %), `normal` 8/73 (11 %) and `batch` 1/73 (1.4 %); `batch` beside `normal` gets 1/9 (11 %).
"""


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """What one request asks of the queue. Two demands are never equal.

    Attributes:
        tenant: who pays; those of a tenant and a class are served in the order in which they came.
        prompt_tokens: exact.
        most_output_tokens: the most it can make, all choices together.
        turns: one for each choice.
        priority: class of its tier.
        weight: of its tenant among those of the class, by its tier.
    """

    tenant: str
    prompt_tokens: int
    most_output_tokens: int
    turns: int = 1
    priority: Priority = "normal"
    weight: int = 1


@dataclass(slots=True)
class _Class:
    """The lines of one class, one for each tenant that waits.

    `lengths` has the longest line first, by weight, and of equals the one whose turn is farthest: both are negative.
    """

    order: StartTimeOrder[str] = field(default_factory=StartTimeOrder)
    lines: dict[str, OrderedDict[Demand, None]] = field(default_factory=dict)
    lengths: KeyedHeap[str, tuple[float, float]] = field(default_factory=KeyedHeap)
    places: int = 0

    def length(self, tenant: str) -> tuple[float, float]:
        """Of the tenant's line, as `lengths` has it."""
        line = self.lines[tenant]
        return -len(line) / next(iter(line)).weight, -self.order.start(tenant)

    def measure(self, tenant: str, *, change: int = 0) -> None:
        """Note that its line, or its place in the order, has changed."""
        self.places += change
        if self.lines.get(tenant):
            self.lengths.set(tenant, self.length(tenant))
        else:
            self.lines.pop(tenant, None)
            self.lengths.discard(tenant)


class WaitingRoom:
    """Two levels of `StartTimeOrder`: classes share by `CLASS_WEIGHTS`, the tenants of a class by their tiers' weights.

    Every step takes O(log tenants), amortised; `ahead_of` alone takes longer, and no step uses it.
    """

    def __init__(self) -> None:
        self._classes: dict[Priority, _Class] = {name: _Class() for name in CLASS_WEIGHTS}
        self._order: StartTimeOrder[Priority] = StartTimeOrder()
        self._waiting: set[Demand] = set()
        self.turns = 0
        """Turns that all who wait ask for."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, demand: Demand) -> bool:
        return demand in self._waiting

    @property
    def remembered(self) -> int:
        """Tenants that are remembered, those that have turns or owe something included."""
        return sum(len(one.order) for one in self._classes.values())

    def push(self, demand: Demand) -> None:
        """It waits, behind all of its tenant and class."""
        of_class = self._classes[demand.priority]
        of_class.lines.setdefault(demand.tenant, OrderedDict())[demand] = None
        of_class.order.join(demand.tenant, demand.weight)
        of_class.measure(demand.tenant, change=1)
        self._order.join(demand.priority, CLASS_WEIGHTS[demand.priority])
        self._waiting.add(demand)
        self.turns += demand.turns

    def remove(self, demand: Demand) -> None:
        """It waits no more."""
        of_class = self._take_out(demand)
        of_class.order.leave(demand.tenant)
        of_class.measure(demand.tenant, change=-1)
        self._order.leave(demand.priority)

    def first(self) -> Demand | None:
        """Whose turn is next; None if nobody waits."""
        name = self._order.first()
        if name is None:
            return None
        tenant = self._classes[name].order.first()
        assert tenant is not None, "a class that waits has a tenant that waits"
        return next(iter(self._classes[name].lines[tenant]))

    def serve(self, demand: Demand, cost: float) -> None:
        """The first one has its turn, at this cost as far as is known."""
        of_class = self._take_out(demand)
        of_class.order.serve(demand.tenant, cost)
        of_class.measure(demand.tenant, change=-1)
        self._order.serve(demand.priority, cost)

    def end(self, demand: Demand, correction: float) -> None:
        """One that was served has ended, and has cost so much more, or less, than expected."""
        of_class = self._classes[demand.priority]
        of_class.order.end(demand.tenant, correction)
        of_class.measure(demand.tenant)
        # Expectations are right on the whole, and that is exact enough for a class. Repaid, answers of `batch` that
        # were shorter than expected would bring it before its betters, for as long as their tokens last.
        self._order.end(demand.priority, 0)

    def crowded_out_by(self, newcomer: Demand) -> Demand:
        """Who has to leave, now that *newcomer* is one too many: perhaps the newcomer itself.

        Places are shared as turns are: the class with the most places for its weight gives one up, and of it
        the last of the longest line, by weight (P. McKenney, "Stochastic Fairness Queueing", INFOCOM 1990,
        drops from the longest queue likewise). Of lines that are equally long the one gives it up whose turn is
        farthest, so that nobody holds a place for long while others overtake.
        """
        own = newcomer.priority
        name = max(self._classes, key=lambda one: (self._classes[one].places / CLASS_WEIGHTS[one], one == own))
        of_class = self._classes[name]
        longest = of_class.lengths.first()
        assert longest is not None, "it has the newcomer's place at least"
        tenant, length = longest
        if name == own and of_class.length(newcomer.tenant) <= length:
            tenant = newcomer.tenant
        return next(reversed(of_class.lines[tenant]))

    def ahead_of(self, demand: Demand) -> int:
        """About how many turns come before its own, if nobody came any more and all cost alike.

        Takes as long as its line, and as many tenants as wait in its class.
        """
        of_class = self._classes[demand.priority]
        line = of_class.lines[demand.tenant]
        before, rank = 0, 1
        for other in line:
            if other is demand:
                break
            before, rank = before + other.turns, rank + 1
        for tenant, others in of_class.lines.items():
            if tenant != demand.tenant:
                weight = next(iter(others)).weight
                before += min(len(others), ceil(rank * weight / demand.weight) - 1)
        for name, other_class in self._classes.items():
            if name != demand.priority:
                shares = CLASS_WEIGHTS[name] / CLASS_WEIGHTS[demand.priority]
                before += min(other_class.places, ceil((before + 1) * shares))
        return before

    def _take_out(self, demand: Demand) -> _Class:
        of_class = self._classes[demand.priority]
        del of_class.lines[demand.tenant][demand]
        self._waiting.discard(demand)
        self.turns -= demand.turns
        return of_class
