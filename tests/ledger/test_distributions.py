"""The distributions, held against tables and against arithmetic that is exact."""

import math
from fractions import Fraction

import pytest

from mulgil.ledger.distributions import at_most, incomplete_beta, t_quantile


@pytest.mark.parametrize(
    ("tail", "freedom", "value"),
    # NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2; the last is the normal distribution's.
    [
        (0.025, 1, 12.706), (0.025, 2, 4.303), (0.025, 5, 2.571), (0.025, 10, 2.228), (0.025, 30, 2.042),
        (0.025, 100, 1.984), (0.05, 7, 1.895), (0.005, 1, 63.657), (0.005, 12, 3.055), (0.025, 1e9, 1.960),
    ],
)  # fmt: skip
def test_students_t_is_that_of_the_tables(tail: float, freedom: float, value: float) -> None:
    assert t_quantile(tail, freedom) == pytest.approx(value, abs=0.0006)


def test_students_t_has_closed_forms_for_one_and_two_degrees_of_freedom() -> None:
    for tail in (0.4, 0.1, 0.025, 0.01):
        assert t_quantile(tail, 1) == pytest.approx(1 / math.tan(math.pi * tail), rel=1e-12)
        shift = 1 - 2 * tail
        assert t_quantile(tail, 2) == pytest.approx(shift * math.sqrt(2 / (1 - shift**2)), rel=1e-12)


@pytest.mark.parametrize("throws", [1, 2, 7, 40, 301])
def test_heads_are_as_many_as_counting_says(throws: int) -> None:
    for heads in range(-1, throws + 2):
        exact = Fraction(sum(math.comb(throws, k) for k in range(min(heads, throws) + 1)), 2**throws)
        assert at_most(heads, throws) == pytest.approx(float(exact), rel=1e-12)


def test_many_throws_are_nearly_normal() -> None:
    for many in (10_000, 1_000_000):
        assert at_most(many // 2 - round(0.98 * math.sqrt(many)) - 1, many) == pytest.approx(0.025, abs=0.001)
        assert at_most(many // 2 - 1, many) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("a", "b", "x"), [(0.5, 0.5, 0.3), (2, 3, 0.9), (1, 1, 0.25), (400, 0.5, 0.999), (3, 90, 0.02)]
)
def test_the_incomplete_beta_function_is_one_with_its_mirror_image(a: float, b: float, x: float) -> None:
    assert incomplete_beta(a, b, x) + incomplete_beta(b, a, 1 - x) == pytest.approx(1, abs=1e-12)


def test_the_incomplete_beta_function_has_closed_forms_and_ends() -> None:
    for x in (0.01, 0.3, 0.77, 0.99):
        assert incomplete_beta(0.5, 0.5, x) == pytest.approx(2 / math.pi * math.asin(math.sqrt(x)), rel=1e-12)
        assert incomplete_beta(4, 1, x) == pytest.approx(x**4, rel=1e-12)
    assert (incomplete_beta(2, 3, 0), incomplete_beta(2, 3, 1)) == (0, 1)
