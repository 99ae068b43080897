"""Which variant answers whom: in proportion to the weights, and always the same one."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from mulgil.config_file import ModelOptions
from mulgil.schemas.sampling import SamplingFields
from mulgil.variants import Sampling, Variant, chosen

names = st.text("abcdefgh", min_size=1, max_size=3)
weights = st.dictionaries(names, st.integers(0, 1_000), min_size=1, max_size=5).filter(lambda w: any(w.values()))
subjects = st.tuples(st.text(max_size=5), st.text(max_size=5))


def variants(**weights: int) -> dict[str, Variant]:
    return {name: Variant(weight=weight) for name, weight in weights.items()}


@pytest.mark.parametrize("shares", [{"base": 50, "new": 50}, {"base": 90, "new": 10}, {"a": 1, "b": 2, "c": 1}])
def test_of_ten_thousand_who_ask_each_variant_has_its_share(shares: dict[str, int]) -> None:
    found = Counter(chosen(variants(**shares), "demo", ("tenant", "key", f"key-{number}")) for number in range(10_000))
    for name, weight in shares.items():
        assert abs(found[name] / 10_000 - weight / sum(shares.values())) < 0.01


def test_two_models_do_not_sort_the_same_people_in_the_same_way() -> None:
    both = variants(base=1, new=1)
    same = sum(chosen(both, "one", (f"{n}",)) == chosen(both, "two", (f"{n}",)) for n in range(4_000))
    assert 0.45 < same / 4_000 < 0.55


@given(weights, subjects)
def test_the_same_subject_meets_the_same_variant_in_whatever_order_they_are_written(
    weights: dict[str, int], subject: tuple[str, str]
) -> None:
    first = chosen(variants(**weights), "demo", subject)
    assert weights[first] > 0
    assert chosen(variants(**dict(reversed(weights.items()))), "demo", subject) == first


@given(weights, subjects, st.integers(0, 4), st.integers(1, 1_000))
def test_who_moves_when_a_weight_grows_moves_to_that_variant_alone(
    weights: dict[str, int], subject: tuple[str, str], which: int, more: int
) -> None:
    grown = sorted(weights)[which % len(weights)]
    before = chosen(variants(**weights), "demo", subject)
    after = chosen(variants(**weights | {grown: weights[grown] + more}), "demo", subject)
    assert after in (before, grown)


@given(weights, subjects)
@settings(max_examples=50)
def test_who_met_a_variant_that_is_left_moves_nowhere_when_another_goes(
    weights: dict[str, int], subject: tuple[str, str]
) -> None:
    kept = chosen(variants(**weights), "demo", subject)
    for gone in weights.keys() - {kept}:
        assert chosen(variants(**{k: v for k, v in weights.items() if k != gone}), "demo", subject) == kept


def test_a_part_of_a_subject_is_not_taken_for_a_part_of_the_next() -> None:
    many = variants(**{f"v{number}": 1 for number in range(1_000)})
    assert chosen(many, "m", ("ab", "c")) != chosen(many, "m", ("a", "bc"))


def test_what_a_variant_may_set_has_the_bounds_that_a_request_has() -> None:
    for name, here in Sampling.model_fields.items():
        there = SamplingFields.model_fields[name]
        bounds = [one for one in here.metadata if type(one).__name__ in ("Ge", "Gt", "Le", "Lt")]
        assert bounds
        assert all(bound in there.metadata for bound in bounds)


def test_a_model_needs_one_variant_that_somebody_meets() -> None:
    with pytest.raises(ValidationError, match="weight above 0"):
        ModelOptions(variants=variants(base=0, new=0))
    assert ModelOptions(variants=variants(base=1, new=0)).variants.keys() == {"base", "new"}
