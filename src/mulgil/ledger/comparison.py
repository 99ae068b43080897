"""Compares the variants of a model by what the ledger has of each: times, lengths, ends.

Left out of the figures, and counted, are answers that were cached and those that a fallback gave: they tell nothing of
the variant that was to answer.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from mulgil.errors import UsageUnavailableError
from mulgil.ledger.base import UsageRow
from mulgil.ledger.database import DatabaseError, Span, UsageDatabase
from mulgil.ledger.intervals import Estimate, Mean, Median, Sample, Share

_PAGE = 2_000
_CACHED = "cached"
_ABORTED = "aborted"
_REASONS = ("stop", "length", "tool_calls", "content_filter")

S = TypeVar("S", bound=Sample)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a variant.

    Attributes:
        name: `ttft` and `time_per_token` in seconds, medians; `completion_tokens`, a mean; and shares:
            `finish_…` for each finish reason that was seen, `errors`, `hang_ups`.
        count: of how many requests it is made.
        estimate: what it is; None if of none.
        difference: how much more that is than the control's; None for the control itself, and if either has none.
    """

    name: str
    count: int
    estimate: Estimate | None
    difference: Estimate | None


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of the requests that a variant was to answer.

    Attributes:
        variant: its name.
        requests: those that the figures are made of.
        cached: those whose answer was there already, or was made for another request.
        fallbacks: those that a fallback answered.
        keys: how many keys asked.
        first, last: when the first one and the last one ended.
        figures: in the order in which they are told; of all variants of a model the same ones.
    """

    variant: str
    requests: int
    cached: int
    fallbacks: int
    keys: int
    first: datetime
    last: datetime
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """The variants of a model, the control first."""

    model: str
    control: str
    variants: tuple[Tried, ...]


@dataclass(slots=True)
class _Gathered:
    """What is known of a variant while rows come."""

    first: datetime
    last: datetime
    cached: int = 0
    fallbacks: int = 0
    keys: set[tuple[str, str]] = field(default_factory=set)
    ends: Counter[str] = field(default_factory=Counter)
    ttft: Median = field(default_factory=Median)
    time_per_token: Median = field(default_factory=Median)
    completion_tokens: Mean = field(default_factory=Mean)

    def take(self, row: UsageRow) -> None:
        self.first, self.last = min(self.first, row.at), max(self.last, row.at)
        self.keys.add((row.tenant, row.key_id))
        if row.fallback is not None:
            self.fallbacks += 1
        elif row.status == _CACHED:
            self.cached += 1
        else:
            self._measure(row)

    def _measure(self, row: UsageRow) -> None:
        self.ends[row.status] += 1
        if row.ttft is not None:
            self.ttft.add(row.ttft)
        if _is_finish(row.status):
            # One that was cut short by its client or by an error does not tell how long it would have been.
            self.completion_tokens.add(row.completion_tokens)
        elif row.status != _ABORTED:
            return  # the time until an engine is known to be dead is no time of a token
        if row.ttft is not None and row.completion_tokens > 1:
            self.time_per_token.add(max(row.duration - row.ttft, 0.0) / (row.completion_tokens - 1))

    @property
    def requests(self) -> int:
        return self.ends.total()

    def share(self, *statuses: str) -> Share:
        return Share(self.requests, sum(self.ends[status] for status in statuses))

    @property
    def errors(self) -> Share:
        return self.share(*(status for status in self.ends if status != _ABORTED and not _is_finish(status)))


class Comparison:
    """Takes rows, one at a time, and keeps of them what is needed: of each variant at most some megabytes."""

    def __init__(self) -> None:
        self._models: dict[str, dict[str, _Gathered]] = {}

    def take(self, row: UsageRow) -> None:
        """One more row. One without a variant is passed over."""
        if row.variant is None:
            return
        variants = self._models.setdefault(row.model, {})
        if row.variant not in variants:
            variants[row.variant] = _Gathered(row.at, row.at)
        variants[row.variant].take(row)

    def told(self, control: str | None = None, order: Mapping[str, Sequence[str]] | None = None) -> list[Compared]:
        """The variants of each model, compared; models by name.

        Args:
            control: with which the others are compared; in a model that has no such variant, and if None, the first.
            order: of the variants of each model; any others follow, by name.
        """
        found = []
        for model, variants in sorted(self._models.items()):
            known = list((order or {}).get(model, ()))
            names = [name for name in known if name in variants] + sorted(variants.keys() - set(known))
            if control in variants:
                names = [control, *(name for name in names if name != control)]
            reasons = _seen(variants.values())
            tried = tuple(_tried(name, variants[name], variants[names[0]], reasons) for name in names)
            found.append(Compared(model, names[0], tried))
        return found


async def gather(database: UsageDatabase, span: Span) -> Comparison:
    """The rows of *span* that are of variants, read page by page.

    Raises:
        UsageUnavailableError: the database does not answer.
    """
    comparison, last = Comparison(), None
    while True:
        try:
            page = await database.of_variants(span, after=last, most=_PAGE)
        except DatabaseError as error:
            raise UsageUnavailableError("The usage cannot be read at the moment.") from error
        for row in page:
            comparison.take(row)
        if len(page) < _PAGE:
            return comparison
        last = page[-1]


def _seen(variants: Iterable[_Gathered]) -> list[str]:
    """The finish reasons that any of them has, in their usual order."""
    seen = {status for one in variants for status in one.ends if _is_finish(status)}
    return [reason for reason in _REASONS if reason in seen] + sorted(seen - set(_REASONS))


def _is_finish(status: str) -> bool:
    return all(part in _REASONS for part in status.split("+"))


def _tried(name: str, own: _Gathered, control: _Gathered, reasons: Sequence[str]) -> Tried:
    def figure(figure_name: str, ours: S, theirs: S) -> Figure:
        difference = None if own is control else ours.minus(theirs)
        return Figure(figure_name, ours.count, ours.estimate(), difference)

    figures = (
        figure("ttft", own.ttft, control.ttft),
        figure("time_per_token", own.time_per_token, control.time_per_token),
        figure("completion_tokens", own.completion_tokens, control.completion_tokens),
        *(figure(f"finish_{reason}", own.share(reason), control.share(reason)) for reason in reasons),
        figure("errors", own.errors, control.errors),
        figure("hang_ups", own.share(_ABORTED), control.share(_ABORTED)),
    )
    return Tried(name, own.requests, own.cached, own.fallbacks, len(own.keys), own.first, own.last, figures)
