"""Intervals: those of the textbooks, and the truth in as many of them as they say."""

import math
import random
from collections.abc import Callable, Iterable
from statistics import NormalDist, median

import pytest
from hypothesis import given
from hypothesis import strategies as some

from mulgil.ledger.distributions import at_most
from mulgil.ledger.intervals import CONFIDENCE, Estimate, Mean, Median, Share

Draw = Callable[[random.Random], float]
DRAWS = 1_000


def median_of(values: Iterable[float], kept: int = 100_000) -> Median:
    sample = Median(kept=kept)
    for value in values:
        sample.add(value)
    return sample


def mean_of(values: Iterable[float]) -> Mean:
    sample = Mean()
    for value in values:
        sample.add(value)
    return sample


def numbers(estimate: Estimate | None) -> tuple[float, float | None, float | None]:
    assert estimate is not None
    return estimate.value, estimate.low, estimate.high


def covers(estimate: Estimate | None, truth: float) -> bool:
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is not None
    return estimate.low <= truth <= estimate.high


# Newcombe's two papers in Statistics in Medicine 17 (1998): method 3 for a share, method 10 for a difference.
@pytest.mark.parametrize(
    ("hits", "of", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_a_share_has_the_interval_of_the_textbook(hits: int, of: int, low: float, high: float) -> None:
    assert numbers(Share(of, hits).estimate()) == pytest.approx((hits / of, low, high), abs=5e-5)


@pytest.mark.parametrize(
    ("ours", "theirs", "low", "high"),
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((5, 56), (0, 29), -0.0381, 0.1926),
        ((10, 10), (0, 20), 0.6791, 1),
    ],
)
def test_a_difference_of_shares_has_the_interval_of_the_textbook(
    ours: tuple[int, int], theirs: tuple[int, int], low: float, high: float
) -> None:
    value = ours[0] / ours[1] - theirs[0] / theirs[1]
    one, other = Share(ours[1], ours[0]), Share(theirs[1], theirs[0])
    assert numbers(one.minus(other)) == pytest.approx((value, low, high), abs=5e-5)
    assert numbers(other.minus(one)) == pytest.approx((-value, -high, -low), abs=5e-5)


def test_means_and_their_difference_are_those_of_student_and_welch() -> None:
    # Student's own data, Biometrika 6 (1908): hours of sleep gained with two drugs; as R's `t.test` has them.
    one = mean_of([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
    other = mean_of([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])
    assert numbers(one.minus(other)) == pytest.approx((-1.58, -3.3654832, 0.2054832), abs=1e-6)
    assert numbers(one.estimate()) == pytest.approx((0.75, -0.5297804, 2.0297804), abs=1e-6)


@pytest.mark.parametrize(("size", "rank"), [(6, 1), (9, 2), (10, 2), (20, 6), (100, 40)])
def test_a_median_lies_between_the_order_statistics_of_the_textbook(size: int, rank: int) -> None:
    values = list(range(1, size + 1))
    random.Random(1).shuffle(values)
    assert numbers(median_of(values).estimate()) == ((size + 1) / 2, rank, size + 1 - rank)


def test_a_difference_of_medians_is_reckoned_as_price_and_bonett_do() -> None:
    # Of nine values the second and the eighth: c = 5 - √9 = 2.
    one, other = median_of(range(1, 10)), median_of(range(11, 28, 2))
    z = NormalDist().inv_cdf(1 - 10 / 512)
    half = NormalDist().inv_cdf(0.975) * math.hypot(6 / (2 * z), 12 / (2 * z))
    assert at_most(1, 9) == pytest.approx(10 / 512)
    assert numbers(one.minus(other)) == pytest.approx((-14, -14 - half, -14 + half))


def lognormal(shift: float = 0.0, spread: float = 1.0) -> Draw:
    """Of which the median is e^shift."""
    return lambda chance: chance.lognormvariate(shift, spread)


def uniform(chance: random.Random) -> float:
    return chance.uniform(10, 300)


def exponential(chance: random.Random) -> float:
    return chance.expovariate(2)


def share_of(chance: random.Random, size: int, probability: float) -> Share:
    return Share(size, sum(chance.random() < probability for _ in range(size)))


@pytest.mark.parametrize("size", [12, 75])
@pytest.mark.parametrize(("draw", "truth"), [(lognormal(), 1.0), (exponential, math.log(2) / 2), (uniform, 155.0)])
def test_medians_of_whatever_distribution_are_covered_as_often_as_is_said(draw: Draw, truth: float, size: int) -> None:
    chance = random.Random(size)
    covered = sum(covers(median_of(draw(chance) for _ in range(size)).estimate(), truth) for _ in range(DRAWS))
    rank = next(k for k in range(1, size) if at_most(k, size) > 0.025)
    exact = 1 - 2 * at_most(rank - 1, size)
    assert exact >= CONFIDENCE
    assert covered / DRAWS == pytest.approx(exact, abs=0.02)


@pytest.mark.parametrize(("size", "other_size"), [(12, 12), (25, 60), (80, 200)])
def test_differences_of_medians_are_covered_as_often_as_is_said(size: int, other_size: int) -> None:
    chance, covered = random.Random(size), 0
    truth = 1.0 - math.exp(0.5)
    for _ in range(DRAWS):
        one = median_of(lognormal(0)(chance) for _ in range(size))
        other = median_of(lognormal(0.5, 1.5)(chance) for _ in range(other_size))
        covered += covers(one.minus(other), truth)
    assert covered / DRAWS == pytest.approx(CONFIDENCE, abs=0.025)


@pytest.mark.parametrize(("size", "other_size"), [(5, 9), (40, 15), (120, 120)])
def test_means_and_their_differences_are_covered_as_often_as_is_said(size: int, other_size: int) -> None:
    chance, of_one, of_both = random.Random(size), 0, 0
    for _ in range(DRAWS):
        one = mean_of(uniform(chance) for _ in range(size))
        other = mean_of(chance.gauss(100, 9) for _ in range(other_size))
        of_one += covers(one.estimate(), 155)
        of_both += covers(one.minus(other), 55)
    assert of_one / DRAWS == pytest.approx(CONFIDENCE, abs=0.025)
    assert of_both / DRAWS == pytest.approx(CONFIDENCE, abs=0.025)


@pytest.mark.parametrize(("probability", "other"), [(0.5, 0.4), (0.02, 0.03), (0.9, 0.9)])
def test_shares_and_their_differences_are_covered_as_often_as_is_said(probability: float, other: float) -> None:
    chance, of_one, of_both = random.Random(3), 0, 0
    for _ in range(DRAWS):
        ours, theirs = share_of(chance, 150, probability), share_of(chance, 100, other)
        of_one += covers(ours.estimate(), probability)
        of_both += covers(ours.minus(theirs), probability - other)
    assert of_one / DRAWS == pytest.approx(CONFIDENCE, abs=0.03)
    assert of_both / DRAWS == pytest.approx(CONFIDENCE, abs=0.03)


@given(some.lists(some.floats(0, 1e6), min_size=1, max_size=40), some.lists(some.floats(0, 1e6), max_size=40))
def test_a_value_is_inside_its_interval_and_a_difference_the_other_way_round_is_its_negative(
    ours: list[float], theirs: list[float]
) -> None:
    for one, other in ((median_of(ours), median_of(theirs)), (mean_of(ours), mean_of(theirs))):
        value, low, high = numbers(one.estimate())
        assert (low is None) == (high is None)
        assert low is None or high is None or low <= value <= high
        there, back = one.minus(other), other.minus(one)  # type: ignore[arg-type]  # both of a pair are of one kind
        assert (there is None) == (back is None) == (not theirs)
        if there and back:
            assert there.value == -back.value
            assert there.excludes_zero == back.excludes_zero
    assert median_of(ours).estimate() == Estimate(median(ours), *numbers(median_of(ours).estimate())[1:])


@given(some.integers(0, 60), some.integers(0, 60))
def test_a_share_is_inside_its_interval_which_is_of_what_is_possible(hits: int, misses: int) -> None:
    estimate = Share(hits + misses, hits).estimate()
    assert (estimate is None) == (hits + misses == 0)
    if estimate is not None:
        value, low, high = numbers(estimate)
        assert low is not None
        assert high is not None
        assert 0 <= low <= value <= high <= 1
        assert low < high


def test_of_too_few_there_is_a_value_and_no_interval_and_of_none_nothing() -> None:
    assert (Median().estimate(), Mean().estimate(), Share(0, 0).estimate()) == (None, None, None)
    assert (Median().minus(median_of([1])), mean_of([1]).minus(Mean()), Share(0, 0).minus(Share(1, 1))) == (None,) * 3
    assert median_of(range(5)).estimate() == Estimate(2)
    assert median_of(range(9)).minus(median_of(range(5))) == Estimate(2)
    assert mean_of([3.0]).estimate() == Estimate(3)
    assert mean_of([3.0, 5.0]).minus(mean_of([3.0])) == Estimate(1)
    assert not Estimate(2).excludes_zero


def test_numbers_that_do_not_vary_are_known_exactly() -> None:
    assert mean_of([2.0] * 9).minus(mean_of([1.5] * 9)) == Estimate(0.5, 0.5, 0.5)
    assert median_of([2.0] * 9).minus(median_of([1.5] * 9)) == Estimate(0.5, 0.5, 0.5)


def test_a_median_of_very_many_is_of_those_that_were_kept_whenever_they_came() -> None:
    # They grow all the time, so those that came first would tell a tenth of the truth.
    sample = median_of((float(number) for number in range(50_000)), kept=2_000)
    assert sample.count == 50_000
    assert covers(sample.estimate(), 25_000)
    value, low, high = numbers(sample.estimate())
    assert low is not None
    assert high is not None
    assert 500 < high - low < 5_000
    assert value == numbers(median_of((float(number) for number in range(50_000)), kept=2_000).estimate())[0]


def test_a_mean_of_numbers_that_differ_in_their_last_digits_keeps_its_spread() -> None:
    values = [1e9 + number % 3 for number in range(300)]
    value, low, high = numbers(mean_of(values).estimate())
    assert value == pytest.approx(1e9 + 1)
    assert low is not None
    assert high is not None
    assert high - low == pytest.approx(2 * 1.9679 * math.sqrt(200 / 299 / 300), rel=1e-3)
