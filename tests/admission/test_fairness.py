"""Shares by weight, and what is remembered of those who have nothing."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulgil.admission.expectations import AnswerLengths, DrainRate
from mulgil.admission.fairness import StartTimeOrder
from mulgil.admission.keyed_heap import KeyedHeap

steps = st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(-3, 3)), max_size=300)


@given(steps)
def test_the_heap_gives_what_a_sorted_list_gives(changes: list[tuple[int, int | None]]) -> None:
    heap: KeyedHeap[int, float] = KeyedHeap()
    plain: dict[int, tuple[int, int]] = {}
    for age, (key, value) in enumerate(changes):
        if value is None:
            heap.discard(key)
            plain.pop(key, None)
        else:
            heap.set(key, value)
            plain[key] = value, age
        assert heap.first() == min(((one, plain[one][0]) for one in plain), key=lambda one: plain[one[0]], default=None)
        assert len(heap) == len(plain)
        assert len(heap._heap) <= 2 * len(plain) + 64


flows = st.lists(st.tuples(st.integers(1, 10), st.integers(1, 200)), min_size=2, max_size=8)


@given(flows, st.integers(1, 20), st.randoms(use_true_random=False))
def test_those_who_always_wait_are_served_by_weight_to_within_what_is_under_way(
    asked: list[tuple[int, int]], turns: int, chance: random.Random
) -> None:
    order: StartTimeOrder[int] = StartTimeOrder()
    for flow, (weight, _) in enumerate(asked):
        order.join(flow, weight)
    served = [0.0] * len(asked)
    under_way: list[tuple[int, int, float]] = []
    for _ in range(600):
        key = order.first()
        assert key is not None
        weight, longest = asked[key]
        real, expected = chance.randint(1, longest), (1 + longest) / 2
        order.serve(key, expected)
        order.join(key, weight)
        under_way.append((key, real, expected))
        if len(under_way) >= turns:
            ended, real, expected = under_way.pop(chance.randrange(len(under_way)))
            order.end(ended, real - expected)
            served[ended] += real / asked[ended][0]
    longest_by_weight = [longest / weight for weight, longest in asked]
    # Theorem 1 of the paper, and what is under way and so not yet counted as served.
    bound = 2 * (turns + 1) * max(longest_by_weight)
    assert max(served) - min(served) <= bound


def test_a_flow_that_comes_late_gets_its_share_and_not_what_it_has_missed() -> None:
    order: StartTimeOrder[str] = StartTimeOrder()
    order.join("early", 1)
    for _ in range(1_000):
        order.serve("early", 10)
        order.join("early", 1)
    order.join("late", 1)
    given_to = []
    for _ in range(20):
        key = order.first()
        assert key is not None
        given_to.append(key)
        order.serve(key, 10)
        order.join(key, 1)
    assert 9 <= given_to.count("late") <= 11


def test_a_flow_that_pauses_gets_nothing_for_the_pause() -> None:
    order: StartTimeOrder[str] = StartTimeOrder()
    for key in ("steady", "pausing"):
        order.join(key, 1)
        order.serve(key, 10)  # and neither has ended: both are remembered
    order.join("steady", 1)
    for _ in range(1_000):
        order.serve("steady", 10)
        order.join("steady", 1)
    given_to = []
    for _ in range(20):
        order.join("pausing", 1)
        key_or_none = order.first()
        assert key_or_none is not None
        given_to.append(key_or_none)
        order.serve(key_or_none, 10)
        order.join("steady", 1)
    assert 9 <= given_to.count("pausing") <= 11


def test_who_was_charged_too_much_comes_earlier_afterwards() -> None:
    order: StartTimeOrder[str] = StartTimeOrder()
    for key in "ab":
        order.join(key, 1)
        order.join(key, 1)
    order.serve("a", 1_000)
    order.serve("b", 10)
    assert order.first() == "b"
    order.end("a", -995)
    assert order.first() == "a"


def test_no_flow_is_remembered_once_nobody_waits() -> None:
    order: StartTimeOrder[int] = StartTimeOrder()
    for key in range(1_000):
        order.join(key, 1)
    for key in range(500):
        order.leave(key)
    while (key_or_none := order.first()) is not None:
        order.serve(key_or_none, 7)
        order.end(key_or_none, 0)
    assert len(order) == 0


def test_flows_that_are_gone_are_forgotten_while_others_wait_on_and_on() -> None:
    order: StartTimeOrder[int] = StartTimeOrder()
    order.join(-1, 1)
    for key in range(2_000):
        order.join(key, 1)
        for _ in range(2):
            first = order.first()
            assert first is not None
            order.serve(first, 10)
            order.end(first, 0)
            if first == -1:
                order.join(-1, 1)
    assert len(order) < 10


def test_answers_are_expected_to_be_as_long_as_they_were() -> None:
    lengths = AnswerLengths()
    assert lengths.expected("a") == 0
    for _ in range(50):
        lengths.learn("a", 0.25)
    assert lengths.expected("a") == pytest.approx(0.25, rel=0.01)
    assert lengths.expected("unknown") == pytest.approx(0.25, rel=0.01)
    for number in range(10_001):
        lengths.learn(f"t{number}", 0.5)
    assert len(lengths._of_tenant) == 10_000
    assert lengths.expected("a") == pytest.approx(0.5, rel=0.01)


def test_the_rate_counts_only_the_time_in_which_somebody_waits() -> None:
    rate = DrainRate()
    rate.observe(0, waiting=True)
    assert rate.per_second is None
    for second in range(1, 61):
        rate.observe(second, waiting=True, returned=4)
    assert rate.per_second == pytest.approx(4, rel=0.05)
    rate.observe(60, waiting=False)
    rate.observe(10_000, waiting=False, returned=100)
    rate.observe(10_001, waiting=True)
    assert rate.per_second == pytest.approx(4, rel=0.05)
    rate.observe(10_301, waiting=True)
    assert rate.per_second == pytest.approx(0, abs=0.01)
