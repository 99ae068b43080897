"""What tokens cost: exact, to the last digit."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as some

from mulgil.prices import Price, written

AMOUNTS = some.decimals(0, 999_999, places=6)
COUNTS = some.integers(0, 10**12)


@given(some.tuples(AMOUNTS, AMOUNTS, AMOUNTS), some.tuples(COUNTS, COUNTS, COUNTS))
def test_a_cost_is_exact(prices: tuple[Decimal, Decimal, Decimal], counts: tuple[int, int, int]) -> None:
    fresh, cached, completion = counts
    price = Price(input=prices[0], cached_input=prices[1], output=prices[2])
    cost = price.of(fresh + cached, cached, completion)
    exact = sum(count * Fraction(amount) for count, amount in zip(counts, prices, strict=True))
    assert Fraction(cost) == exact / 10**6


def test_cached_tokens_cost_as_others_unless_they_have_a_price() -> None:
    assert Price(input=Decimal(3)).of(10**6, 4 * 10**5, 0) == 3
    assert Price(input=Decimal(3), cached_input=Decimal(0)).of(10**6, 4 * 10**5, 0) == Decimal("1.8")


@pytest.mark.parametrize(
    ("amount", "text"),
    [("0", "0"), ("0.000000", "0"), ("1E+3", "1000"), ("12.50", "12.5"), ("0.0000001", "0.0000001"), ("100", "100")],
)
def test_an_amount_is_written_without_an_exponent(amount: str, text: str) -> None:
    assert written(Decimal(amount)) == text
