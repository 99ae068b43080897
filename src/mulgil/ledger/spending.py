"""What keys and tenants have spent today and this month, as far as one process knows; and whether that is too much."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from mulgil.errors import InsufficientQuotaError
from mulgil.ledger.base import UsageRow
from mulgil.ledger.database import Sums
from mulgil.prices import Price, Prices, written
from mulgil.tiers import TierLimits

Scope = tuple[str, str]
"""A tenant and a key of its; the key is `""` for all of them together."""

_FREE = Price()


@dataclass(slots=True)
class Spent:
    """Tokens of prompts and answers, and what they cost."""

    tokens: int = 0
    cost: Decimal = Decimal(0)

    def add(self, tokens: int, cost: Decimal) -> None:
        """So much more."""
        self.tokens += tokens
        self.cost += cost


class Spending:
    """Sums in memory: what the database has told, and the rows of this process that it does not have yet.

    Args:
        prices: what tokens cost.
        counts: whether anybody has a quota; if not, nothing is added up.
    """

    def __init__(self, prices: Prices, *, counts: bool = True) -> None:
        self._prices = prices
        self._counts = counts
        self._told: dict[Scope, dict[str, Spent]] = {}
        self._unwritten: dict[tuple[Scope, str], Spent] = {}

    def note(self, rows: Iterable[UsageRow]) -> None:
        """*rows* are on their way to the database."""
        for row in rows if self._counts else ():
            self._add(row, 1)

    def written(self, rows: Iterable[UsageRow]) -> None:
        """*rows*, noted before, are in the database."""
        for row in rows if self._counts else ():
            self._add(row, -1)
            for scope in _scopes(row):
                if (told := self._told.get(scope)) is not None:
                    for period in _periods(row.at):
                        told.setdefault(period, Spent()).add(row.total_tokens, self._cost(row))

    def tell(self, scopes: Iterable[Scope], sums: Sequence[Sums]) -> None:
        """What the database says of *scopes*, of which *sums* is all, by tenant, key, model and day."""
        now = datetime.now(UTC)
        for scope in scopes:
            self._told[scope] = {period: Spent() for period in _periods(now)}
        for one in sums:
            tenant, model, day, *key = one.labels
            told = self._told[tenant, key[0] if key else ""]
            cost = self._prices.get(model, _FREE).of(one.prompt_tokens, one.cached_tokens, one.completion_tokens)
            for period in _periods(day):
                told.setdefault(period, Spent()).add(one.prompt_tokens + one.completion_tokens, cost)

    def knows(self, scope: Scope) -> bool:
        """Whether the database has told of *scope* today."""
        return _today() in self._told.get(scope, ())

    def forget_yesterday(self) -> None:
        """Forget those of whom the database has not told today."""
        self._told = {scope: told for scope, told in self._told.items() if _today() in told}

    def of(self, scope: Scope, period: str) -> Spent:
        """What *scope* has spent in *period*, a day (`2026-11-30`) or a month (`2026-11`)."""
        sums = Spent()
        for part in (self._told.get(scope, {}).get(period), self._unwritten.get((scope, period))):
            if part is not None:
                sums.add(part.tokens, part.cost)
        return sums

    def check(self, scope: Scope, limits: TierLimits) -> None:
        """Let pass.

        Raises:
            InsufficientQuotaError: *scope* has spent what its *limits* let it.
        """
        now = datetime.now(UTC)
        for period, unit, tokens, cost in (
            (_periods(now)[0], "day", limits.tokens_per_day, limits.cost_per_day),
            (_periods(now)[1], "month", limits.tokens_per_month, limits.cost_per_month),
        ):
            if tokens is None and cost is None:
                continue
            spent = self.of(scope, period)
            if tokens is not None and spent.tokens >= tokens:
                raise _exceeded(scope, f"{tokens} tokens", str(spent.tokens), unit, now)
            if cost is not None and spent.cost >= cost:
                raise _exceeded(scope, f"a cost of {written(cost)}", written(spent.cost), unit, now)

    def _add(self, row: UsageRow, sign: int) -> None:
        tokens, cost = sign * row.total_tokens, sign * self._cost(row)
        for scope in _scopes(row):
            for period in _periods(row.at):
                spent = self._unwritten.setdefault((scope, period), Spent())
                spent.add(tokens, cost)
                if not spent.tokens:
                    del self._unwritten[scope, period]

    def _cost(self, row: UsageRow) -> Decimal:
        price = self._prices.get(row.model)
        return price.of(row.prompt_tokens, row.cached_tokens, row.completion_tokens) if price else Decimal(0)


def _scopes(row: UsageRow) -> tuple[Scope, Scope]:
    return (row.tenant, row.key_id), (row.tenant, "")


def _periods(moment: date) -> tuple[str, str]:
    """The day and the month of it, in UTC."""
    day = (moment.astimezone(UTC) if isinstance(moment, datetime) else moment).isoformat()[:10]
    return day, day[:7]


def _today() -> str:
    return _periods(datetime.now(UTC))[0]


def first_of_month() -> date:
    """Of the one that it is now, in UTC."""
    return datetime.now(UTC).date().replace(day=1)


def _exceeded(scope: Scope, limit: str, spent: str, unit: str, now: datetime) -> InsufficientQuotaError:
    first = now.date().replace(day=1)
    anew = now.date() + timedelta(days=1) if unit == "day" else (first + timedelta(days=32)).replace(day=1)
    whose = "this key" if scope[1] else "this key's tenant"
    return InsufficientQuotaError(
        f"You exceeded your current quota: {whose} may use {limit} per {unit} and has used {spent}. "
        f"It begins anew on {anew.isoformat()} at 00:00 UTC."
    )
