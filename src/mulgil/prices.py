"""What tokens cost: exact, in decimal numbers."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_PER_MILLION = -6

Amount = Annotated[Decimal, Field(ge=0, max_digits=12, decimal_places=6)]


class Price(BaseModel):
    """Of a million tokens of one model, in whatever currency.

    Attributes:
        input: prompt tokens.
        cached_input: prompt tokens that came out of the prefix cache; as other prompt tokens unless it is given.
        output: tokens of answers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: Amount = Decimal(0)
    cached_input: Amount | None = None
    output: Amount = Decimal(0)

    def of(self, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> Decimal:
        """What so many tokens cost; *cached_tokens* are among *prompt_tokens*."""
        cached = self.input if self.cached_input is None else self.cached_input
        sums = (prompt_tokens - cached_tokens) * self.input + cached_tokens * cached + completion_tokens * self.output
        return sums.scaleb(_PER_MILLION)


Prices = Mapping[str, Price]
"""By the name of the model; one that has none costs nothing."""


def written(amount: Decimal) -> str:
    """*amount* without an exponent and without zeros at its end."""
    return f"{amount.normalize():f}" if amount else "0"
