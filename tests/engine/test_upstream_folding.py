"""How tokens of which only the sum is known are shared out among choices."""

from hypothesis import given
from hypothesis import strategies as st

from mulgil.engine.upstream.folding import spread

COUNTS = st.integers(0, 50)


@given(st.integers(0, 400), st.lists(st.tuples(COUNTS, COUNTS, st.integers(0, 10**6)), min_size=1, max_size=6))
def test_the_sum_is_kept_and_each_share_is_within_its_bounds(total: int, choices: list[tuple[int, int, int]]) -> None:
    least, most = [one for one, _, _ in choices], [one + more for one, more, _ in choices]
    shares = spread(total, least, [weight for _, _, weight in choices], most)
    assert all(low <= share <= high for low, share, high in zip(least, shares, most, strict=True))
    assert sum(shares) == min(max(total, sum(least)), sum(most))


@given(st.integers(1, 1_000))
def test_longer_choices_have_more_of_it(total: int) -> None:
    short, long = spread(total, [0, 0], [10, 30], [1_000, 1_000])
    assert short + long == total
    assert abs(3 * short - long) <= 4
