"""What was used and what it costs, by tenant, key, model, day, month or status."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from mulgil.errors import InvalidFieldError, UsageUnavailableError
from mulgil.ledger.database import DatabaseError, Span, Sums, UsageDatabase
from mulgil.prices import Price, Prices

DIMENSIONS = ("tenant", "key", "model", "status", "day", "month")
"""What a report can be told apart by."""

_COLUMNS = {"key": "key_id", "month": "day"}
_SPANS = {"m": "minutes", "h": "hours", "d": "days"}
_FREE = Price()


@dataclass(frozen=True, slots=True)
class Line:
    """One group of a report.

    Attributes:
        labels: the value of each dimension.
        requests: that came to an end.
        prompt_tokens, cached_tokens, completion_tokens: added up.
        cost: at the prices of today's configuration.
    """

    labels: dict[str, str]
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: Decimal = Decimal(0)

    def plus(self, sums: Sums, price: Price) -> "Line":
        """With *sums* of a model of this *price*."""
        tokens = sums.prompt_tokens, sums.cached_tokens, sums.completion_tokens
        return Line(
            self.labels,
            self.requests + sums.requests,
            self.prompt_tokens + sums.prompt_tokens,
            self.cached_tokens + sums.cached_tokens,
            self.completion_tokens + sums.completion_tokens,
            self.cost + price.of(*tokens),
        )


@dataclass(frozen=True, slots=True)
class Query:
    """What a report is to tell.

    Attributes:
        by: of `DIMENSIONS`, in the order in which groups are sorted.
        since, until: rows that ended from the one on and before the other; aware.
        having: values that dimensions must have.
    """

    by: tuple[str, ...]
    since: datetime
    until: datetime
    having: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """The groups of a query, sorted, and all of them together."""

    query: Query
    lines: list[Line]
    total: Line


class UsageReports:
    """Answers queries from the database.

    Args:
        database: has the rows.
        prices: what tokens cost.
    """

    def __init__(self, database: UsageDatabase, prices: Prices) -> None:
        self._database = database
        self._prices = prices

    async def answer(self, query: Query) -> Report:
        """The report.

        Raises:
            UsageUnavailableError: the database does not answer.
        """
        columns = list(dict.fromkeys([*(_COLUMNS.get(name, name) for name in query.by), "model"]))
        having = tuple((_COLUMNS.get(name, name), value) for name, value in query.having.items())
        try:
            found = await self._database.sums(columns, Span(query.since, query.until, having))
        except DatabaseError as error:
            raise UsageUnavailableError("The usage cannot be read at the moment.") from error
        groups: dict[tuple[str, ...], Line] = {}
        total = Line({})
        for sums in found:
            values = dict(zip(columns, sums.labels, strict=True))
            price = self._prices.get(values["model"], _FREE)
            labels = {name: _label(name, values) for name in query.by}
            group = tuple(labels.values())
            groups[group] = groups.get(group, Line(labels)).plus(sums, price)
            total = total.plus(sums, price)
        return Report(query, [groups[group] for group in sorted(groups)], total)


def query(
    by: str, since: str | None, until: str | None, having: dict[str, str | None], *, among: Sequence[str] = DIMENSIONS
) -> Query:
    """The query that is written so.

    Args:
        by: dimensions, comma-separated; none at all is one group.
        since: a date, a time, or how long ago (`30d`, `12h`, `45m`); None: the first day of this month. Without an
            offset it is in UTC.
        until: the same; None: now.
        having: values of dimensions; None for any.
        among: the dimensions that may be asked for.

    Raises:
        InvalidFieldError: one of them is wrong.
    """
    names = tuple(dict.fromkeys(name.strip() for name in by.split(",") if name.strip()))
    if unknown := [name for name in names if name not in among]:
        raise _invalid("by", f"there is no '{unknown[0][:32]}'. Expected some of: {', '.join(among)}")
    now = datetime.now(UTC)
    found = Query(
        names,
        _moment("since", since, now, lambda: now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)),
        _moment("until", until, now, lambda: now),
        {name: value for name, value in having.items() if value is not None},
    )
    if found.since > found.until:
        raise _invalid("until", "it is before 'since'")
    return found


def _label(name: str, values: dict[str, Any]) -> str:
    value = values[_COLUMNS.get(name, name)]
    if isinstance(value, date):
        return value.isoformat()[:7] if name == "month" else value.isoformat()
    return str(value)


def _moment(name: str, text: str | None, now: datetime, default: Callable[[], datetime]) -> datetime:
    if text is None:
        return default()
    try:
        if text[-1:] in _SPANS and text[:-1].isdecimal():
            return now - timedelta(**{_SPANS[text[-1]]: int(text[:-1])})
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise _invalid(
            name, "expected a date (2030-01-31), a time (2030-01-31T12:00:00Z), or how long ago (30d, 12h)"
        ) from None


def _invalid(name: str, reason: str) -> InvalidFieldError:
    return InvalidFieldError(f"Invalid '{name}': {reason}.", param=name, code="invalid_value")
