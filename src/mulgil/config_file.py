"""`mulgil.toml`: tiers, what is said of models, LoRA adapters, and upstreams."""

import tomllib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from mulgil.prices import Price, Prices
from mulgil.tiers import DEFAULT, Tier, TierName
from mulgil.upstreams import UpstreamOptions, with_its_key
from mulgil.variants import Variant, VariantName


class ModelOptions(BaseModel):
    """What is said of a model, by the name that clients ask for.

    Attributes:
        price: of its tokens.
        cache: whether its answers are kept.
        truncation: what becomes of a conversation that does not fit, where a request does not say.
        alias: it is another name of the model that is served; so is one that has variants.
        variants: ways to answer, by name, of which each has a share of those who ask.
        fallbacks: what answers instead when it cannot, in this order: names of models or of upstreams.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    price: Price = Price()
    cache: bool = Field(default=False, strict=True)
    truncation: Literal["auto", "disabled"] = "disabled"
    alias: bool = Field(default=False, strict=True)
    variants: dict[VariantName, Variant] = Field(default_factory=dict)
    fallbacks: tuple[str, ...] = ()

    @property
    def served(self) -> bool:
        """Whether its name is one of the model for no other reason than this."""
        return self.alias or bool(self.variants)

    @field_validator("variants")
    @classmethod
    def _somebody_answers(cls, variants: dict[str, Variant]) -> dict[str, Variant]:
        if variants and not any(variant.weight for variant in variants.values()):
            raise ValueError("at least one variant needs a weight above 0")
        return variants

    @field_validator("fallbacks")
    @classmethod
    def _each_once(cls, fallbacks: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(fallbacks)) < len(fallbacks):
            raise ValueError("each fallback is tried once, so it is named once")
        return fallbacks


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    return path


class AdapterOptions(BaseModel):
    """A LoRA adapter that is loaded at the start.

    Attributes:
        path: its folder, in peft's format.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Annotated[Path, AfterValidator(_absolute)]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tiers: dict[TierName, Tier] = Field(default_factory=dict)
    models: dict[str, ModelOptions] = Field(default_factory=dict)
    adapters: dict[TierName, AdapterOptions] = Field(default_factory=dict)
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


def load_adapters(path: Path | None) -> Mapping[str, Path]:
    """The folders of the LoRA adapters that *path* names, by name.

    Raises:
        ValueError: as `load_tiers`.
    """
    return {name: adapter.path for name, adapter in _read(path).adapters.items()}


def load_prices(path: Path | None) -> Prices:
    """The prices of the models that *path* names.

    Raises:
        ValueError: as `load_tiers`.
    """
    return {name: model.price for name, model in load_models(path).items()}


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
