"""What clients may ask for: the model, its other names, its variants and its adapters, and what holds for each."""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from mulgil.auth.keys import Caller
from mulgil.config_file import ModelOptions
from mulgil.engine.base import TextRequest
from mulgil.engine.truncation import decided
from mulgil.errors import InvalidFieldError, ModelNotFoundError, PermissionDeniedError
from mulgil.pacing import Pacing
from mulgil.tiers import Tier
from mulgil.variants import Sampling, Variant, chosen

VARIANT_HEADER = "x-mulgil-variant"
"""Of a request: the variant that is to answer it; of an answer: the one that does."""
FALLBACK_HEADER = "x-mulgil-fallback"
"""Of a request: it was passed on once; of an answer: what answers instead of the model."""


class Versioned(Protocol):
    """An adapter, as far as it concerns who asks for one."""

    @property
    def version(self) -> str:
        """Changes with its weights."""
        ...


class Shelf(Protocol):
    """The adapters that are loaded; each is a model under its own name."""

    @property
    def names(self) -> Iterable[str]:
        """Of all of them."""
        ...

    def find(self, name: str) -> Versioned | None:
        """The one of that name."""
        ...


class NoAdapters:
    """An empty shelf."""

    names: tuple[str, ...] = ()

    def find(self, name: str) -> Versioned | None:
        return None


@dataclass(frozen=True, slots=True)
class Settled:
    """A request in which nothing is open: what it leaves to its model is filled in.

    Attributes:
        request: what an engine is given.
        fingerprint: names the model, the variant and the way they are served.
        pacing: how much of its answer is told at a time.
        variant: which one answers; None where the model has none.
        adapter: the LoRA adapter that answers; None is the model itself.
        fallbacks: what answers instead, in this order, when it cannot be answered so.
    """

    request: TextRequest
    fingerprint: str
    pacing: Pacing
    variant: str | None = None
    adapter: str | None = None
    fallbacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What is served, and under which names.

    Attributes:
        served: names of the model itself, the main one first.
        fingerprint: names the model and the way it is served.
        options: what is said of models, by name, and holds where a request says nothing.
        adapters: those that are loaded.
    """

    served: tuple[str, ...]
    fingerprint: str
    options: Mapping[str, ModelOptions] = field(default_factory=dict)
    adapters: Shelf = field(default_factory=NoAdapters)

    @property
    def main(self) -> str:
        """The model that answers where none is named."""
        return self.served[0]

    @property
    def names(self) -> tuple[str, ...]:
        """All that clients may ask for."""
        return tuple(dict.fromkeys((*self.served, *self.aliases, *self.adapters.names)))

    @property
    def aliases(self) -> tuple[str, ...]:
        """Names that only the options of models give it."""
        return tuple(name for name, said in self.options.items() if said.served)

    def check(self, upstreams: Collection[str] = (), others: Collection[str] = ()) -> None:
        """Refuse options that lead nowhere. That no adapter has the name of a model is seen to by who loads it.

        Args:
            upstreams: names of the servers that may answer as fallbacks.
            others: names under which something else is served.

        Raises:
            ValueError: a variant needs an adapter that there is not, a fallback is nobody, or a name is taken twice.
        """
        for name in self.aliases:
            if name in others:
                raise ValueError(f"models.{name}: something else is served under this name")
        for name, said in self.options.items():
            for variant, answers in said.variants.items():
                if answers.adapter is not None and self.adapters.find(answers.adapter) is None:
                    raise ValueError(
                        f"models.{name}.variants.{variant}.adapter: there is no [adapters.{answers.adapter}]"
                    )
            for fallback in said.fallbacks:
                if (fallback in self) == (fallback in upstreams):
                    found = "both a model and an upstream have" if fallback in self else "no model and no upstream has"
                    raise ValueError(f"models.{name}.fallbacks: {found} the name '{fallback}'")
                if fallback == name:
                    raise ValueError(f"models.{name}.fallbacks: a model cannot answer instead of itself")
            if said.fallbacks and name not in self:
                raise ValueError(f"models.{name}.fallbacks: nothing is served under this name (add `alias = true`)")

    def __contains__(self, name: str) -> bool:
        if name in self.served or self.adapters.find(name) is not None:
            return True
        said = self.options.get(name)
        return said is not None and said.served

    def settle(self, request: TextRequest, caller: Caller, tier: Tier, variant: str | None = None) -> Settled:
        """*request* as its model answers it to *caller*.

        Args:
            request: what was asked.
            caller: who asks.
            tier: of the caller.
            variant: the one that the request names in a header, if it does.

        Raises:
            ModelNotFoundError: there is no such model.
            PermissionDeniedError: the caller may not choose variants.
            InvalidFieldError: the model has no such variant.
        """
        if request.model not in self:
            raise ModelNotFoundError(request.model)
        said = self.options.get(request.model, _NOTHING_SAID)
        name = _variant(said.variants, request, caller, tier, variant)
        answers = said.variants[name] if name is not None else _NO_VARIANT
        adapter = answers.adapter or (request.model if self.adapters.find(request.model) else None)
        if name is not None:
            request = _sampled(request, answers.sampling)
        return Settled(
            decided(request, said.truncation),
            self._fingerprint(name, answers, self.adapters.find(adapter) if adapter else None),
            request.pacing or Pacing(answers.chunking or tier.chunking),
            name,
            adapter,
            said.fallbacks,
        )

    def answered_by(self, settled: Settled, adapter: Versioned | None) -> Settled:
        """*settled* as an engine has prepared it with *adapter*, which may have been replaced meanwhile."""
        said = self.options.get(settled.request.model, _NOTHING_SAID)
        variant = said.variants.get(settled.variant or "", _NO_VARIANT)
        return replace(settled, fingerprint=self._fingerprint(settled.variant, variant, adapter))

    def answered_elsewhere(self, settled: Settled, upstream: str) -> Settled:
        """*settled* as *upstream* answers it, of which nobody here knows how it is served."""
        return replace(settled, fingerprint=_digest(f"{settled.fingerprint} {upstream}"))

    def _fingerprint(self, name: str | None, variant: Variant, adapter: Versioned | None) -> str:
        if name is None and adapter is None:
            return self.fingerprint
        told = f"{self.fingerprint} {name} {variant.sampling} {adapter.version if adapter else None}"
        return _digest(told)


_NOTHING_SAID = ModelOptions()
_NO_VARIANT = Variant()


def _sampled(request: TextRequest, sampling: Sampling) -> TextRequest:
    """*request* with the *sampling* of its variant where it says nothing."""
    missing = {key: value for key, value in sampling if value is not None and getattr(request, key) is None}
    return request.model_copy(update=missing) if missing else request


def _digest(told: str) -> str:
    return f"fp_{hashlib.blake2b(told.encode(), digest_size=5).hexdigest()}"


def _variant(
    variants: Mapping[str, Variant], request: TextRequest, caller: Caller, tier: Tier, named: str | None
) -> str | None:
    if named is not None:
        if not tier.choose_variant:
            raise PermissionDeniedError("This key may not choose the variant of a model.", param=VARIANT_HEADER)
        if named not in variants:
            known = f"it has {', '.join(variants)}" if variants else "it has none"
            raise InvalidFieldError(
                f"Invalid '{VARIANT_HEADER}': the model `{request.model}` has no variant of that name; {known}.",
                param=VARIANT_HEADER,
                code="invalid_value",
            )
        return named
    if not variants:
        return None
    user = request.user or getattr(request, "safety_identifier", None)
    subject = ("user", user) if user else ("key", caller.key_id)
    return chosen(variants, request.model, (caller.tenant, *subject))
