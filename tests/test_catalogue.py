"""What may be asked for, and what is filled in where a request leaves it open."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from harness import MODEL, chat_body

from mulgil.auth.keys import Caller
from mulgil.catalogue import Catalogue, Settled
from mulgil.config_file import ModelOptions
from mulgil.errors import InvalidFieldError, ModelNotFoundError, PermissionDeniedError
from mulgil.pacing import Pacing
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.schemas.completions import CompletionRequest
from mulgil.tiers import Tier
from mulgil.variants import Sampling, Variant

CALLER = Caller("key-1", "acme")


@dataclass(frozen=True)
class Weights:
    """An adapter."""

    version: str


class Shelf:
    """Adapters that are loaded."""

    def __init__(self, **versions: str) -> None:
        self.versions = versions

    @property
    def names(self) -> list[str]:
        return list(self.versions)

    def find(self, name: str) -> Weights | None:
        return Weights(self.versions[name]) if name in self.versions else None


def catalogue(*, adapters: Shelf | None = None, **options: ModelOptions) -> Catalogue:
    return Catalogue((MODEL, "second"), "fp_base", options, adapters or Shelf())


def settle(subject: Catalogue, model: str = MODEL, tier: Tier | None = None, **fields: Any) -> Settled:
    variant = fields.pop("variant", None)
    request = ChatCompletionRequest.model_validate(chat_body(**fields, model=model))
    return subject.settle(request, fields.pop("caller", CALLER), tier or Tier(), variant)


def test_its_names_are_those_of_the_model_its_aliases_and_its_adapters() -> None:
    both = ModelOptions(variants={"base": Variant(), "pirate": Variant(adapter="pirate")})
    subject = catalogue(
        adapters=Shelf(pirate="1"), mix=both, short=ModelOptions(alias=True), unserved=ModelOptions(cache=True)
    )
    assert subject.main == MODEL
    assert subject.names == (MODEL, "second", "mix", "short", "pirate")
    assert all(name in subject for name in subject.names)
    assert "unserved" not in subject
    with pytest.raises(ModelNotFoundError, match="unserved"):
        settle(subject, "unserved")


def test_of_a_model_of_which_nothing_is_said_only_what_always_holds_is_filled_in() -> None:
    settled = settle(catalogue(), temperature=0.5)
    assert settled == Settled(settled.request, "fp_base", Pacing("token"))
    assert settled.request.temperature == 0.5
    assert settled.request.top_p is None
    text = CompletionRequest(model=MODEL, prompt="x")
    assert catalogue().settle(text, CALLER, Tier()).request is text


def test_what_a_request_says_counts_more_than_what_its_variant_and_its_model_say() -> None:
    cold = Variant(sampling=Sampling(temperature=0, top_k=5), chunking="sentence")
    subject = catalogue(mix=ModelOptions(truncation="auto", variants={"cold": cold}))
    open_, said = settle(subject, "mix"), settle(subject, "mix", temperature=1.5, truncation="disabled")
    assert (open_.request.temperature, open_.request.top_k, open_.pacing) == (0, 5, Pacing("sentence"))
    assert (said.request.temperature, said.request.top_k) == (1.5, 5)
    assert (getattr(open_.request, "truncation", None), getattr(said.request, "truncation", None)) == (
        "auto",
        "disabled",
    )
    chunked = settle(subject, "mix", stream=True, stream_options={"chunking": "word"})
    assert chunked.pacing == Pacing("word")
    assert settle(catalogue(), tier=Tier(chunking="word")).pacing == Pacing("word")


def test_a_key_always_meets_the_same_variant_and_a_user_theirs_whatever_key_they_come_with() -> None:
    variants = {f"v{number}": Variant() for number in range(50)}
    subject = catalogue(mix=ModelOptions(variants=variants))
    request = ChatCompletionRequest.model_validate(chat_body(model="mix"))
    of_user = request.model_copy(update={"user": "ada"})
    keys = [Caller(f"key-{number}", "acme") for number in range(20)]
    by_key = [subject.settle(request, key, Tier()).variant for key in keys]
    assert by_key == [subject.settle(request, key, Tier()).variant for key in keys]
    assert len(set(by_key)) > 10
    assert len({subject.settle(of_user, key, Tier()).variant for key in keys}) == 1
    tenants = {subject.settle(of_user, Caller("key-1", f"tenant-{n}"), Tier()).variant for n in range(20)}
    assert len(tenants) > 10, "two tenants' users of one name are two people"


def test_the_fingerprint_changes_with_the_variant_and_with_the_weights_of_its_adapter() -> None:
    said = ModelOptions(
        variants={"base": Variant(), "warm": Variant(sampling=Sampling(top_p=0.5)), "pirate": Variant(adapter="pirate")}
    )
    tester = Tier(choose_variant=True)

    def fingerprints(version: str) -> list[str]:
        subject = catalogue(adapters=Shelf(pirate=version), mix=said)
        found = [settle(subject, "mix", tester, variant=name).fingerprint for name in said.variants]
        return [*found, settle(subject, "pirate").fingerprint, settle(subject).fingerprint]

    first, second = fingerprints("1"), fingerprints("2")
    assert len(set(first)) == 5
    assert [one == two for one, two in zip(first, second, strict=True)] == [True, True, False, False, True]


def test_an_adapter_answers_under_its_own_name_and_for_a_variant() -> None:
    subject = catalogue(adapters=Shelf(pirate="1"), mix=ModelOptions(variants={"p": Variant(adapter="pirate")}))
    assert (settle(subject, "pirate").adapter, settle(subject, "pirate").variant) == ("pirate", None)
    assert (settle(subject, "mix").adapter, settle(subject, "mix").variant) == ("pirate", "p")
    assert settle(subject).adapter is None


def test_only_a_tier_that_may_chooses_its_variant_and_only_one_that_there_is() -> None:
    subject = catalogue(mix=ModelOptions(variants={"base": Variant(), "new": Variant(weight=0)}))
    tester = Tier(choose_variant=True)
    assert settle(subject, "mix", tester, variant="new").variant == "new"
    with pytest.raises(PermissionDeniedError, match="may not choose") as refused:
        settle(subject, "mix", variant="new")
    assert refused.value.param == "x-mulgil-variant"
    with pytest.raises(InvalidFieldError, match="no variant of that name; it has base, new"):
        settle(subject, "mix", tester, variant="old")
    with pytest.raises(InvalidFieldError, match="it has none"):
        settle(subject, MODEL, tester, variant="base")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"mix": ModelOptions(variants={"p": Variant(adapter="parrot")})},
            "models.mix.variants.p.adapter: there is no",
        ),
        ({"embedder": ModelOptions(alias=True)}, "models.embedder: something else"),
        ({MODEL: ModelOptions(fallbacks=("nobody",))}, "models.demo.fallbacks: no model and no upstream"),
        ({MODEL: ModelOptions(fallbacks=("there", "pirate", "second"))}, ""),
        ({MODEL: ModelOptions(fallbacks=("both",)), "both": ModelOptions(alias=True)}, "both a model and an upstream"),
        ({MODEL: ModelOptions(fallbacks=(MODEL,))}, "cannot answer instead of itself"),
        ({"unserved": ModelOptions(fallbacks=("there",))}, "models.unserved.fallbacks: nothing is served"),
    ],
)
def test_options_that_lead_nowhere_are_refused_before_anything_starts(
    options: dict[str, ModelOptions], reason: str
) -> None:
    subject = catalogue(adapters=Shelf(pirate="1"), **options)
    if not reason:
        subject.check({"there"}, {"embedder"})
        return
    with pytest.raises(ValueError, match=reason):
        subject.check({"there", "both"}, {"embedder"})


def test_an_answer_of_an_adapter_that_was_replaced_meanwhile_has_the_fingerprint_of_the_one_that_made_it() -> None:
    shelf = Shelf(pirate="1")
    subject = catalogue(adapters=shelf, mix=ModelOptions(variants={"p": Variant(adapter="pirate")}))
    before = settle(subject, "mix")
    shelf.versions["pirate"] = "2"
    assert subject.answered_by(before, Weights("1")) == before
    assert subject.answered_by(before, Weights("2")) == replace(before, fingerprint=settle(subject, "mix").fingerprint)
