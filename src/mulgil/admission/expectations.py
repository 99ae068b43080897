"""What is to be expected from what was: how long answers get, and how fast turns become free."""

from collections import OrderedDict
from math import exp

_TENANTS = 10_000
_NEW = 1 / 8
_NEW_OF_ALL = 1 / 64
_FORGETTING = 30.0
_SHORTEST = 1.0


class AnswerLengths:
    """Which share of its worst case an answer of a tenant makes: the mean, the newest one counting 1/8.

    Of a tenant that is not known, or was not heard of for 10,000 others, the mean of all; 0 before the first
    answer, since who was charged too little waits for it later, and who was charged too much makes others wait.
    """

    def __init__(self) -> None:
        self._of_all = 0.0
        self._answers = 0
        self._of_tenant: OrderedDict[str, float] = OrderedDict()

    def expected(self, tenant: str) -> float:
        """0 to 1."""
        return self._of_tenant.get(tenant, self._of_all)

    def learn(self, tenant: str, share: float) -> None:
        """An answer has made this share of its worst case."""
        known = self.expected(tenant)
        self._of_tenant[tenant] = known + (share - known) * _NEW
        self._of_tenant.move_to_end(tenant)
        if len(self._of_tenant) > _TENANTS:
            self._of_tenant.popitem(last=False)
        self._answers += 1
        self._of_all += (share - self._of_all) * max(_NEW_OF_ALL, 1 / self._answers)


class DrainRate:
    """How many turns become free in a second, measured only while somebody waits for one.

    What happened t seconds of waiting ago counts e^(-t/30): the rate is the turns given back, so weighted,
    divided by the time, so weighted.
    """

    def __init__(self) -> None:
        self._turns = 0.0
        self._seconds = 0.0
        self._at = 0.0
        self._waited = False

    def observe(self, now: float, *, waiting: bool, returned: int = 0) -> None:
        """To be told whenever turns are given back, and whenever somebody begins, or nobody continues, to wait.

        Args:
            now: seconds on any clock that never goes back.
            waiting: whether anybody waits from now on.
            returned: turns that have just been given back.
        """
        if self._waited:
            kept = exp((self._at - now) / _FORGETTING)
            self._turns = self._turns * kept + returned
            self._seconds = self._seconds * kept + _FORGETTING * (1 - kept)
        self._at, self._waited = now, waiting

    @property
    def per_second(self) -> float | None:
        """Turns a second; None until it was measured for a second, or a turn was given back."""
        if not self._turns and self._seconds < _SHORTEST:
            return None
        return self._turns / max(self._seconds, _SHORTEST)
