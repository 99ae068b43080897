"""What intervals need to know of Student's t and of the binomial distribution, without a large library."""

import math

_TINY = 1e-300
_EXACT = 1e-15
_MOST_STEPS = 100_000
_HALVINGS = 60


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), for positive *a* and *b* and *x* from 0 to 1.

    By its continued fraction, DLMF 8.17.22, evaluated by Lentz's method as modified by Thompson and Barnett (Press et
    al., Numerical Recipes, 3rd ed., 5.2 and 6.4). Takes some √max(a, b) steps.

    Raises:
        ArithmeticError: it did not converge.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly; DLMF 8.17.4
        return 1 - incomplete_beta(b, a, 1 - x)
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(logarithm) / a / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """1 + d₁/(1 + d₂/(1 + …)) of DLMF 8.17.22."""
    value = numerator = 1.0
    denominator = 0.0
    for step in range(1, _MOST_STEPS):
        half = step // 2
        if step % 2:
            coefficient = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            coefficient = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        denominator = 1 / ((1 + coefficient * denominator) or _TINY)
        numerator = (1 + coefficient / numerator) or _TINY
        change = numerator * denominator
        value *= change
        if abs(change - 1) < _EXACT:
            return value
    raise ArithmeticError("the incomplete beta function did not converge")


def t_quantile(tail: float, freedom: float) -> float:
    """What Student's t with *freedom* degrees of freedom exceeds with the probability *tail*, from 0.005 to 0.5.

    By halving, from P(|T| > t) = I_x(freedom/2, 1/2) with x = freedom / (freedom + t²) (Abramowitz and Stegun, 26.7.1).

    Args:
        tail: the probability.
        freedom: at least 1; need not be whole.
    """
    low, high = 0.0, 64.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if incomplete_beta(freedom / 2, 0.5, freedom / (freedom + middle**2)) > 2 * tail:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def at_most(heads: int, throws: int) -> float:
    """The probability of at most so many *heads* in so many *throws* of a fair coin (DLMF 8.17.5)."""
    if heads < 0 or heads >= throws:
        return float(heads >= throws)
    return incomplete_beta(throws - heads, heads + 1, 0.5)
