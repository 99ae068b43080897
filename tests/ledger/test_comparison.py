"""What is told of variants: the right rows in the right figures, and differences where there are some."""

import random
from dataclasses import replace
from datetime import timedelta

import pytest
from usagerows import ROW, row

from mulgil.ledger.base import UsageRow
from mulgil.ledger.comparison import Compared, Comparison, Figure, Tried


def compared(*rows: UsageRow, control: str | None = None) -> Compared:
    comparison = Comparison()
    for one in rows:
        comparison.take(one)
    (found,) = comparison.told(control)
    return found


def figures(tried: Tried) -> dict[str, Figure]:
    return {figure.name: figure for figure in tried.figures}


def values(tried: Tried) -> dict[str, float | None]:
    return {figure.name: figure.estimate.value if figure.estimate else None for figure in tried.figures}


def counts(tried: Tried) -> dict[str, int]:
    return {figure.name: figure.count for figure in tried.figures}


def test_each_row_is_in_the_figures_that_it_tells_something_of() -> None:
    (tried,) = compared(
        row(variant="a", ttft=0.1, duration=0.5, completion_tokens=5),
        row(variant="a", ttft=0.3, duration=0.3, completion_tokens=1, status="length", key_id="key_b"),
        row(variant="a", ttft=0.2, duration=1.2, completion_tokens=3, status="aborted"),
        row(variant="a", ttft=None, duration=9, completion_tokens=0, status="aborted"),
        row(variant="a", ttft=0.4, duration=60, completion_tokens=2, status="engine_error"),
        row(variant="a", ttft=None, completion_tokens=0, status="overloaded"),
        row(variant="a", status="cached", ttft=0.001),
        row(variant="a", fallback="b", ttft=5),
        row(variant="a", fallback="b", status="engine_error"),
        row(variant=None, ttft=7),
    ).variants
    assert (tried.requests, tried.cached, tried.fallbacks, tried.keys) == (6, 1, 2, 2)
    # Of those cut short nobody knows the length; of an engine that died the time says nothing.
    assert counts(tried) == {
        "ttft": 4, "time_per_token": 2, "completion_tokens": 2,
        "finish_stop": 6, "finish_length": 6, "errors": 6, "hang_ups": 6,
    }  # fmt: skip
    told = {name: pytest.approx(value) for name, value in values(tried).items()}
    assert told == {
        "ttft": 0.25, "time_per_token": 0.3, "completion_tokens": 3,
        "finish_stop": 1 / 6, "finish_length": 1 / 6, "errors": 2 / 6, "hang_ups": 2 / 6,
    }  # fmt: skip


def test_choices_that_end_differently_are_an_end_of_their_own() -> None:
    (tried,) = compared(row(variant="a", status="length+stop"), row(variant="a", status="tool_calls")).variants
    assert [name for name in values(tried) if name.startswith("finish_")] == ["finish_tool_calls", "finish_length+stop"]
    assert values(tried)["errors"] == 0


def test_one_row_has_values_and_no_intervals_but_of_shares() -> None:
    (tried,) = compared(row(variant="a")).variants
    told = figures(tried)
    for name in ("ttft", "time_per_token", "completion_tokens"):
        estimate = told[name].estimate
        assert estimate is not None
        assert (estimate.low, estimate.high, told[name].difference) == (None, None, None)
    stop = told["finish_stop"].estimate
    assert stop is not None
    assert [stop.value, stop.low, stop.high] == pytest.approx([1, 0.2065, 1], abs=1e-4)


def test_a_variant_of_which_nothing_can_be_told_hides_no_other() -> None:
    found = compared(*(row(variant="a") for _ in range(9)), row(variant="b", status="cached"))
    a, b = found.variants
    assert (b.requests, b.cached) == (0, 1)
    assert set(values(b).values()) == {None}
    assert all(figure.difference is None for figure in b.figures)
    assert a.requests == 9


def test_the_control_is_the_first_of_the_configuration_or_the_one_that_is_asked_for() -> None:
    comparison = Comparison()
    for variant, model in (("c", "m"), ("a", "m"), ("b", "m"), ("z", "n"), ("a", "n")):
        comparison.take(row(variant=variant, model=model))

    def told(control: str | None, order: dict[str, list[str]] | None = None) -> list[list[str]]:
        found = comparison.told(control, order)
        assert [one.control for one in found] == [one.variants[0].variant for one in found]
        assert [one.model for one in found] == ["m", "n"]
        return [[tried.variant for tried in one.variants] for one in found]

    assert told(None) == [["a", "b", "c"], ["a", "z"]]
    assert told("c") == [["c", "a", "b"], ["a", "z"]]
    assert told(None, {"m": ["gone", "b"], "n": ["z"]}) == [["b", "a", "c"], ["z", "a"]]
    assert told("c", {"m": ["b", "a", "c"]}) == [["c", "b", "a"], ["a", "z"]]


def test_a_variant_that_was_there_for_a_part_of_the_time_says_when() -> None:
    noon = ROW.at
    found = compared(
        *(row(variant="a", at=noon + timedelta(hours=hour)) for hour in range(5)),
        *(row(variant="b", at=noon + timedelta(hours=hour)) for hour in (3, 2)),
    )
    assert [(one.variant, one.first, one.last) for one in found.variants] == [
        ("a", noon, noon + timedelta(hours=4)),
        ("b", noon + timedelta(hours=2), noon + timedelta(hours=3)),
    ]


def drawn(
    chance: random.Random, variant: str, *, slower: float = 1.0, cut: float = 0.1, length: float = 200
) -> UsageRow:
    """A row of known distributions: the first token's median is 0.2 s, each other's 20 ms, both times *slower*."""
    ttft = 0.2 * slower * chance.lognormvariate(0, 0.5)
    tokens = max(2, round(chance.gauss(length, 40)))
    gap = 0.02 * slower * chance.lognormvariate(0, 0.2)
    status = "length" if chance.random() < cut else "stop"
    made = replace(ROW, variant=variant, ttft=ttft, completion_tokens=tokens, status=status)
    return replace(made, duration=ttft + gap * (tokens - 1))


def test_known_differences_are_found_and_are_in_their_intervals() -> None:
    chance = random.Random(8)
    rows = [drawn(chance, "base") for _ in range(3_000)]
    rows += [drawn(chance, "slow", slower=1.2, cut=0.2, length=150) for _ in range(2_000)]
    chance.shuffle(rows)
    told = figures(compared(*rows, control="base").variants[1])
    truth = {
        "ttft": 0.04, "time_per_token": 0.004, "completion_tokens": -50, "finish_stop": -0.1, "finish_length": 0.1,
    }  # fmt: skip
    for name, difference in truth.items():
        found = told[name].difference
        assert found is not None
        assert found.excludes_zero
        assert found.low is not None
        assert found.high is not None
        assert found.low <= difference <= found.high, name
        assert found.value == pytest.approx(difference, rel=0.3)
    assert told["errors"].difference is not None
    assert not told["errors"].difference.excludes_zero


def test_where_there_is_no_difference_one_is_seen_as_rarely_as_is_said() -> None:
    chance, seen, looked = random.Random(9), dict[str, int](), 200
    for _ in range(looked):
        rows = [drawn(chance, variant) for variant in "ab" for _ in range(40)]
        for figure in compared(*rows).variants[1].figures:
            assert figure.difference is not None
            seen[figure.name] = seen.get(figure.name, 0) + figure.difference.excludes_zero
    assert all(number / looked < 0.09 for number in seen.values()), seen
    assert seen["ttft"] > 0
