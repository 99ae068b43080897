"""`mulgil.toml`: tiers, which are named limits and rights, and what is said of models and of upstreams."""

import tomllib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from mulgil.errors import InvalidFieldError, PermissionDeniedError
from mulgil.prices import Amount, Price, Prices
from mulgil.upstreams import UpstreamOptions, with_its_key

DEFAULT = "default"
TierName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
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
    """

    tenant: TierLimits | None = None
    # Whoever writes `models = []` means none, and would get all.
    models: tuple[str, ...] = Field(default=(), min_length=1)
    priority: Priority = "normal"
    weight: int = Field(default=1, ge=1, le=1_000, strict=True)
    chunking: Literal["token", "word", "sentence"] = "token"
    max_tokens: int | None = Field(default=None, ge=1, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _tenant_begins_with_the_keys_own(cls, table: Any) -> Any:
        if isinstance(table, dict) and isinstance(table.get("tenant"), dict):
            own = {name: value for name, value in table.items() if name in TierLimits.model_fields}
            return table | {"tenant": own | table["tenant"]}
        return table


class ModelOptions(BaseModel):
    """What is said of a model, by the name that clients ask for.

    Attributes:
        price: of its tokens.
        truncation: what becomes of a conversation that does not fit, where a request does not say.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    price: Price = Price()
    cache: bool = Field(default=False, strict=True)
    truncation: Literal["auto", "disabled"] = "disabled"


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tiers: dict[TierName, Tier] = Field(default_factory=dict)
    models: dict[str, ModelOptions] = Field(default_factory=dict)
    upstreams: dict[TierName, UpstreamOptions] = Field(default_factory=dict)


def load_tiers(path: Path | None) -> Mapping[str, Tier]:
    """The tiers of *path*, `default` among them whether the file has it or not.

    Raises:
        ValueError: the file cannot be read, or is wrong; names the file, the table and the field.
    """
    return {DEFAULT: Tier(), **_read(path).tiers}


def load_models(path: Path | None) -> Mapping[str, ModelOptions]:
    """What *path* says of models, by name.

    Raises:
        ValueError: as `load_tiers`.
    """
    return _read(path).models


def load_prices(path: Path | None) -> Prices:
    """The prices of the models that *path* names.

    Raises:
        ValueError: as `load_tiers`.
    """
    return {name: model.price for name, model in load_models(path).items()}


def load_cached_models(path: Path | None) -> frozenset[str]:
    """The names of the models whose answers *path* has kept (`cache = true`).

    Raises:
        ValueError: as `load_tiers`.
    """
    return frozenset(name for name, model in _read(path).models.items() if model.cache)


def load_upstreams(path: Path | None) -> Mapping[str, UpstreamOptions]:
    """The servers elsewhere that *path* names, each with its key, which may come from the environment.

    Raises:
        ValueError: as `load_tiers`; or a variable that is to hold a key does not.
    """
    found = {}
    for name, options in _read(path).upstreams.items():
        try:
            found[name] = with_its_key(options)
        except ValueError as error:
            raise ValueError(f"{path}: upstreams.{name}.key_env: {error}") from None
    return found


def _read(path: Path | None) -> _File:
    if path is None:
        return _File()
    try:
        # Not floats: 0.1 is to be a tenth.
        return _File.model_validate(tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


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
