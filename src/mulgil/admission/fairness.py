"""Whose turn is next: start-time fair queueing, with costs that are known exactly only afterwards.

P. Goyal, H. M. Vin, H. Cheng, "Start-time Fair Queuing: A Scheduling Algorithm for Integrated Services Packet
Switching Networks", SIGCOMM 1996, section 2. For a flow f of weight φ and its request j of cost l:

    start(j)  = max(v when j came, finish(j - 1))
    finish(j) = start(j) + l / φ
    v         = start of the request served last

The smallest start is served. Over any interval in which two flows always wait, what they are given by weight
differs by at most l_max/φ of the one and of the other (theorem 1), whatever the rate at which turns become free.

The cost of an answer is known when it ends. So an expected one is charged at first, and the difference to the
real one is added to finish(j) afterwards, as the token counters of Y. Sheng et al., "Fairness in Serving Large
Language Models", OSDI 2024, are.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from mulgil.admission.keyed_heap import KeyedHeap

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Flow:
    """One of those who share.

    `finish` is the paper's finish tag of what was served last, and so the start tag of what comes next.
    """

    weight: float
    finish: float = 0.0
    waiting: int = 0
    served: int = 0

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.served)


class StartTimeOrder(Generic[K]):
    """Shares something among flows by weight. Every step takes O(log flows), amortised.

    A flow that has nothing is forgotten as soon as nobody could tell: once v has passed it, or nobody waits.
    """

    def __init__(self) -> None:
        self._flows: dict[K, _Flow] = {}
        self._starts: KeyedHeap[K, float] = KeyedHeap()
        self._idle: KeyedHeap[K, float] = KeyedHeap()
        self._v = 0.0

    def __len__(self) -> int:
        """Flows that are remembered."""
        return len(self._flows)

    def join(self, key: K, weight: float) -> None:
        """One more request of this flow waits. The newest weight is the one that counts."""
        flow = self._flows.get(key)
        if flow is None:
            flow = self._flows[key] = _Flow(weight, self._v)
        self._idle.discard(key)
        flow.weight = weight
        flow.waiting += 1
        if flow.waiting == 1:
            flow.finish = max(self._v, flow.finish)
            self._starts.set(key, flow.finish)

    def leave(self, key: K) -> None:
        """One of its requests waits no more, and was not served."""
        flow = self._flows[key]
        flow.waiting -= 1
        self._waits_or_not(key, flow)

    def first(self) -> K | None:
        """The flow to be served next; None if nobody waits."""
        found = self._starts.first()
        return None if found is None else found[0]

    def start(self, key: K) -> float:
        """The start tag of what this flow, which waits, is served next."""
        return self._flows[key].finish

    def serve(self, key: K, cost: float) -> None:
        """One of its requests is served, at this cost as far as is known."""
        flow = self._flows[key]
        self._v = max(self._v, flow.finish)
        flow.finish += cost / flow.weight
        flow.waiting -= 1
        flow.served += 1
        if flow.waiting:
            self._starts.set(key, flow.finish)
        self._waits_or_not(key, flow)

    def end(self, key: K, correction: float) -> None:
        """What was served has ended, and its cost was so much more, or less, than expected."""
        flow = self._flows[key]
        flow.finish += correction / flow.weight
        flow.served -= 1
        if flow.waiting:
            self._starts.set(key, flow.finish)
        self._waits_or_not(key, flow)

    def _waits_or_not(self, key: K, flow: _Flow) -> None:
        if not flow.waiting:
            self._starts.discard(key)
        if flow.idle:
            self._idle.set(key, flow.finish)
        if not len(self._starts):
            for forgotten in self._idle.clear():
                del self._flows[forgotten]
            return
        while (oldest := self._idle.first()) is not None and oldest[1] <= self._v:
            self._idle.discard(oldest[0])
            del self._flows[oldest[0]]
