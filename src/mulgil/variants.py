"""Variants of a model: ways to answer under one name, each of which has a share of those who ask."""

import hashlib
import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from mulgil.pacing import Unit

VariantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Sampling(BaseModel):
    """Sampling parameters where a request sets none; the bounds are those of a request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=-1, le=2**31 - 1, strict=True)
    min_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    repetition_penalty: float | None = Field(default=None, gt=0, le=2, allow_inf_nan=False)


class Variant(BaseModel):
    """One way to answer.

    Attributes:
        weight: share of those who ask, beside the weights of the other variants; 0 for who chooses it by name only.
        adapter: name of the LoRA adapter that answers; None is the model itself.
        sampling: what holds where a request says nothing.
        chunking: how much of a stream is sent at a time where a request does not say; None is the tier's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    weight: int = Field(default=1, ge=0, le=1_000_000, strict=True)
    adapter: str | None = None
    sampling: Sampling = Sampling()
    chunking: Unit | None = None


def chosen(variants: Mapping[str, Variant], model: str, subject: tuple[str, ...]) -> str:
    """The variant of *model* that answers *subject*: always the same one while the weights are the same.

    Weighted rendezvous hashing: each variant draws a number from what it is for whom, and the one with the smallest
    wins, where the draws are exponential with its weight for a rate, so that each wins in proportion to its weight
    (Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", 2005: the logarithmic method). When weights
    change, subjects move to variants whose share has grown and from those whose share has shrunk, and no others do.

    Args:
        variants: at least one of them has a weight.
        model: by its name, so that two models do not sort the same people in the same way.
        subject: who asks.
    """
    weighted = [name for name, variant in variants.items() if variant.weight]
    return min(weighted, key=lambda name: -math.log(_chance((model, name, *subject))) / variants[name].weight)


def _chance(parts: tuple[str, ...]) -> float:
    """A number above 0 and at most 1, always the same for the same *parts*, and even over different ones."""
    state = hashlib.blake2b(digest_size=8)
    for part in parts:
        encoded = part.encode()
        state.update(len(encoded).to_bytes(4))
        state.update(encoded)
    return (int.from_bytes(state.digest()) + 1) / 2**64
