"""Tiers: named limits and rights."""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from mulgil.errors import InvalidFieldError, PermissionDeniedError
from mulgil.prices import Amount

DEFAULT = "default"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
TierName = Annotated[str, Field(pattern=NAME_PATTERN)]
Priority = Literal["interactive", "normal", "batch"]
_UNLIMITED = "unlimited"


def _none_when_unlimited(value: Any) -> Any:
    return None if value == _UNLIMITED else value


Limit = Annotated[Annotated[int, Field(ge=1, le=2**53, strict=True)] | None, BeforeValidator(_none_when_unlimited)]
Money = Annotated[Annotated[Amount, Field(gt=0)] | None, BeforeValidator(_none_when_unlimited)]


class TierLimits(BaseModel):
    """The limits of one scope, and its quotas of a day and a month; None is none, written `"unlimited"`.

    Attributes:
        tokens_per_day, tokens_per_month: of prompts and answers together.
        cost_per_day, cost_per_month: by the prices of the models.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    requests_per_minute: Limit = 60
    input_tokens_per_minute: Limit = 100_000
    output_tokens_per_minute: Limit = 50_000
    concurrent_requests: Limit = 10
    tokens_per_day: Limit = None
    tokens_per_month: Limit = None
    cost_per_day: Money = None
    cost_per_month: Money = None

    @property
    def has_quota(self) -> bool:
        """Whether what may be spent in a day or a month is bounded."""
        quotas = (self.tokens_per_day, self.tokens_per_month, self.cost_per_day, self.cost_per_month)
        return quotas != (None, None, None, None)


class Tier(TierLimits):
    """What the keys of a tier may do.

    Attributes:
        tenant: limits of all keys of a tenant together; the same numbers as a key's unless they are given.
        models: names that may be used; empty for all.
        priority: whose turn comes first.
        weight: share of a tenant's turns, counted in tokens, beside other tenants of the same priority.
        chunking: how much of a stream is sent at a time where a request does not say.
        max_tokens: longest answer that may be asked for, and the length where a request sets none.
        choose_variant: whether a request may say which variant of a model answers it.
    """

    tenant: TierLimits | None = None
    # Whoever writes `models = []` means none, and would get all.
    models: tuple[str, ...] = Field(default=(), min_length=1)
    priority: Priority = "normal"
    weight: int = Field(default=1, ge=1, le=1_000, strict=True)
    chunking: Literal["token", "word", "sentence"] = "token"
    max_tokens: int | None = Field(default=None, ge=1, strict=True)
    choose_variant: bool = Field(default=False, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _tenant_begins_with_the_keys_own(cls, table: Any) -> Any:
        if isinstance(table, dict) and isinstance(table.get("tenant"), dict):
            own = {name: value for name, value in table.items() if name in TierLimits.model_fields}
            return table | {"tenant": own | table["tenant"]}
        return table


def shown(tier: TierLimits) -> dict[str, Any]:
    """*tier* as it would be written in the file; a limit that is none is `unlimited`."""
    table = tier.model_dump(mode="json")
    table |= {name: _UNLIMITED for name in TierLimits.model_fields if table[name] is None}
    if isinstance(tier, Tier):
        table["tenant"] = shown(
            tier.tenant or TierLimits(**{name: getattr(tier, name) for name in TierLimits.model_fields})
        )
    return table


def check_model_allowed(model: str, of_key: tuple[str, ...] | None, tier: Tier) -> None:
    """Refuse a model that the key or its tier may not use.

    Raises:
        PermissionDeniedError: it may not.
    """
    for allowed in (of_key, tier.models):
        if allowed and model not in allowed:
            raise PermissionDeniedError(f"This key may not use the model `{model}`.", param="model")


def check_length_allowed(asked: int | None, tier: Tier, *, param: str) -> None:
    """Refuse an answer that is longer than a tier allows.

    Raises:
        InvalidFieldError: it is; *param* asked for it.
    """
    if tier.max_tokens is not None and (asked or 0) > tier.max_tokens:
        raise InvalidFieldError(
            f"Invalid '{param}': integer above maximum value. Expected a value <= {tier.max_tokens}, "
            f"but got {asked} instead.",
            param=param,
            code="integer_above_max_value",
        )
