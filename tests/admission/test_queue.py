"""Turns: never too many, fairly given, and none is lost."""

import asyncio
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from harness import eventually
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mulgil.admission.queue import FairQueue, QueueRules, Turn
from mulgil.admission.waiting_room import CLASS_WEIGHTS, Demand
from mulgil.errors import OverloadedError, ShuttingDownError
from mulgil.tiers import Priority

PRIORITIES: tuple[Priority, ...] = ("interactive", "normal", "batch")


def demand(tenant: str = "t", **fields: Any) -> Demand:
    return replace(Demand(tenant, prompt_tokens=10, most_output_tokens=100), **fields)


async def settle() -> None:
    """Let every task do what it can do now."""
    for _ in range(5):
        await asyncio.sleep(0)


def nothing_is_left_in(queue: FairQueue) -> bool:
    return (queue.waiting, queue.turns_in_use, queue._tokens, queue._futures, queue._waiting.turns) == (0, 0, 0, {}, 0)


entering = st.tuples(
    st.sampled_from("abc"), st.sampled_from(PRIORITIES), st.integers(1, 9), st.integers(1, 3), st.just("enter")
)
things = st.lists(
    st.one_of(
        entering,
        entering,
        st.tuples(st.integers(0, 99), st.integers(0, 200), st.sampled_from(["give back", "cancel", "both"])),
        st.just(("breathe",)),
    ),
    min_size=20,
    max_size=80,
)


class Crowd:
    """Requests before a queue, of which each does as it is told."""

    def __init__(self, turns: int, places: int) -> None:
        self.queue = FairQueue(QueueRules(turns=turns, places=places))
        self.tasks: list[asyncio.Task[Turn]] = []
        self.held: list[Turn] = []
        self.most = 0
        self._turns = turns

    async def do(self, step: tuple[Any, ...]) -> None:
        *details, kind = step
        if kind == "enter":
            tenant, priority, turns, weight = details
            one = demand(tenant, priority=priority, turns=turns, weight=weight)
            self.tasks.append(asyncio.create_task(self._enter(one)))
        elif kind == "breathe":
            await settle()
        else:
            which, used = details
            if kind != "cancel" and self.held:
                self.held.pop(which % len(self.held)).give_back(used)
            if kind != "give back" and self.tasks:
                self.tasks[which % len(self.tasks)].cancel()

    async def _enter(self, one: Demand) -> Turn:
        turn = await self.queue.enter(one)
        self.held.append(turn)
        self.most = max(self.most, sum(min(other.demand.turns, self._turns) for other in self.held))
        return turn

    async def end(self) -> Counter[str]:
        """Let all come to an end; how each ended."""
        await settle()
        while self.held or not all(task.done() for task in self.tasks):
            if self.held:
                self.held.pop(0).give_back(1)
            await settle()
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        return Counter(type(result).__name__ for result in results)


@given(things, st.integers(1, 5), st.integers(0, 6), st.booleans())
@hypothesis_settings(deadline=None)
def test_whatever_happens_turns_are_never_too_many_and_every_waiter_ends_once(
    what: list[tuple[Any, ...]], turns: int, places: int, closed_at_the_end: bool
) -> None:
    async def scenario() -> None:
        crowd = Crowd(turns, places)
        for step in what:
            await crowd.do(step)
            assert crowd.queue.turns_in_use <= turns
        await settle()
        assert crowd.queue.waiting <= places
        if closed_at_the_end:
            crowd.queue.close()
        ends = await asyncio.wait_for(crowd.end(), 10)
        assert ends.total() == len(crowd.tasks)
        assert set(ends) <= {"Turn", "OverloadedError", "ShuttingDownError", "CancelledError"}
        counters = crowd.queue.counters
        # A task that is cancelled before it has begun never comes to the queue.
        came = counters.granted + counters.refused + counters.expired + counters.left
        assert ends.total() - ends["CancelledError"] <= came <= ends.total()
        assert crowd.most <= turns
        assert nothing_is_left_in(crowd.queue)

    asyncio.run(scenario())


async def served(queue: FairQueue, lines: dict[str, dict[str, Any]], *, turns: int, requests: int) -> Counter[str]:
    """Tokens of each tenant after so many answers, while all tenants always have requests that wait.

    Args:
        queue: under test.
        lines: by tenant: fields of its demands, and `lengths`, a function that gives the length of an answer.
        turns: of the queue.
        requests: when to stop.
    """
    tokens: Counter[str] = Counter()
    held: list[Turn] = []
    chance = random.Random(1)
    tasks: set[asyncio.Task[None]] = set()

    async def one(tenant: str) -> None:
        fields = {name: value for name, value in lines[tenant].items() if name != "lengths"}
        held.append(await queue.enter(demand(tenant, **fields)))

    def ask(tenant: str) -> None:
        task = asyncio.create_task(one(tenant))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    for tenant in lines:
        for _ in range(2 * turns):
            ask(tenant)
    await settle()
    for _ in range(requests):
        turn = held.pop(chance.randrange(len(held)))
        tenant = turn.demand.tenant
        made = lines[tenant]["lengths"]()
        tokens[tenant] += turn.demand.prompt_tokens + made
        ask(tenant)
        turn.give_back(turn.demand.prompt_tokens + made)
        await settle()
    for task in list(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return tokens


tenants = st.lists(st.tuples(st.integers(1, 8), st.integers(5, 300), st.booleans()), min_size=2, max_size=5)


@given(tenants, st.integers(1, 6), st.integers(0, 2**32))
@hypothesis_settings(max_examples=15, deadline=None)
def test_under_saturation_tenants_are_served_by_weight_to_within_ten_percent(
    asked: list[tuple[int, int, bool]], turns: int, seed: int
) -> None:
    chance = random.Random(seed)

    def lengths(mean: int, capricious: bool) -> Any:
        # One in ten is nine times as long as the mean, or all are of about the same length.
        return lambda: (
            (9 * mean if chance.random() < 0.1 else max(1, mean // 9)) if capricious else chance.randint(1, 2 * mean)
        )

    lines = {
        f"t{number}": {
            "weight": weight,
            "prompt_tokens": 20,
            "most_output_tokens": 4_000,
            "lengths": lengths(mean, capricious),
        }
        for number, (weight, mean, capricious) in enumerate(asked)
    }

    async def scenario() -> None:
        queue = FairQueue(QueueRules(turns=turns, places=10_000))
        tokens = await served(queue, lines, turns=turns, requests=4_000)
        by_weight = [tokens[tenant] / line["weight"] for tenant, line in lines.items()]
        mean = sum(by_weight) / len(by_weight)
        # A few of the longest requests more or less, beside ten percent: at the end some are just under way.
        slack = 2 * turns * max(20 + 9 * mean_length for _, mean_length, _ in asked)
        assert all(abs(one - mean) <= 0.1 * mean + slack for one in by_weight), (by_weight, slack)

    asyncio.run(scenario())


async def test_a_class_goes_before_those_below_it_and_batch_still_progresses() -> None:
    lines: dict[str, dict[str, Any]] = {
        name: {"priority": name, "prompt_tokens": 10, "most_output_tokens": 90, "lengths": lambda: 90}
        for name in PRIORITIES
    }
    tokens = await served(FairQueue(QueueRules(turns=4, places=1_000)), lines, turns=4, requests=3_000)
    for name in PRIORITIES:
        share = CLASS_WEIGHTS[name] / sum(CLASS_WEIGHTS.values())
        assert tokens[name] / tokens.total() == pytest.approx(share, rel=0.15)


@pytest.mark.parametrize("priority", PRIORITIES)
async def test_a_tenant_of_a_class_is_served_in_the_order_in_which_it_came(priority: Priority) -> None:
    queue = FairQueue(QueueRules(turns=2))
    order: list[int] = []

    async def one(number: int) -> None:
        turn = await queue.enter(demand(priority=priority))
        order.append(number)
        await asyncio.sleep(0)
        turn.give_back(random.randint(0, 110))

    await asyncio.gather(*(one(number) for number in range(100)))
    assert order == list(range(100))


async def test_a_request_that_is_wider_than_all_turns_takes_them_all_and_is_not_passed_over() -> None:
    queue = FairQueue(QueueRules(turns=4))
    narrow = [await queue.enter(demand()) for _ in range(4)]
    wide = asyncio.create_task(queue.enter(demand("w", turns=99)))
    await settle()
    late = [asyncio.create_task(queue.enter(demand("late"))) for _ in range(4)]
    await settle()
    for turn in narrow:
        assert not wide.done()
        turn.give_back(20)
        await settle()
    assert wide.done()
    assert queue.turns_in_use == 4
    assert not any(task.done() for task in late)
    (await wide).give_back(99)
    for turn in await asyncio.gather(*late):
        turn.give_back()
    assert nothing_is_left_in(queue)


async def test_a_full_room_refuses_at_once_and_says_when_to_come_back() -> None:
    queue = FairQueue(QueueRules(turns=1, places=2), chance=random.Random(7))
    turn = await queue.enter(demand())
    waiting = [asyncio.create_task(queue.enter(demand())) for _ in range(2)]
    await settle()
    advised = []
    for _ in range(50):
        with pytest.raises(OverloadedError) as refused:
            await asyncio.wait_for(queue.enter(demand()), 0.1)
        advised.append(refused.value.retry_after)
    assert all(1 <= seconds <= 60 for seconds in advised)
    assert len(set(advised)) == 50, "a crowd must not come back at once"
    assert (queue.waiting, queue.counters.refused) == (2, 50)
    turn.give_back()
    for task in waiting:
        (await task).give_back()


async def test_no_places_still_lets_through_whoever_need_not_wait() -> None:
    queue = FairQueue(QueueRules(turns=1, places=0))
    turn = await queue.enter(demand())
    with pytest.raises(OverloadedError):
        await queue.enter(demand())
    turn.give_back()
    (await queue.enter(demand())).give_back()


async def test_a_tenant_that_fills_the_room_makes_place_for_others() -> None:
    queue = FairQueue(QueueRules(turns=1, places=10))
    turn = await queue.enter(demand("greedy"))
    greedy = [asyncio.create_task(queue.enter(demand("greedy"))) for _ in range(10)]
    await settle()
    small = [asyncio.create_task(queue.enter(demand(f"small-{number}"))) for number in range(9)]
    await settle()
    assert not any(task.done() for task in small)
    assert [task.done() for task in greedy] == [False] + [True] * 9
    one_more = asyncio.create_task(queue.enter(demand("one more")))
    await settle()
    assert isinstance(greedy[0].exception(), OverloadedError), "it has had a turn, and would be the last"
    last = asyncio.create_task(queue.enter(demand("the last")))
    await settle()
    assert isinstance(last.exception(), OverloadedError), "all others have as little as it would have"
    turn.give_back()
    await asyncio.gather(*(ended(task) for task in [one_more, *small]))
    await asyncio.gather(*greedy, return_exceptions=True)
    assert nothing_is_left_in(queue)


async def ended(entering: asyncio.Task[Turn]) -> None:
    (await entering).give_back(50)


async def test_a_room_full_of_batch_makes_place_for_what_is_urgent_but_not_all_of_it() -> None:
    queue = FairQueue(QueueRules(turns=1, places=146))
    turn = await queue.enter(demand())
    batch = [asyncio.create_task(queue.enter(demand("b", priority="batch"))) for _ in range(146)]
    await settle()
    urgent = [asyncio.create_task(queue.enter(demand("u", priority="interactive"))) for _ in range(300)]
    await settle()
    assert sum(not task.done() for task in batch) in (2, 3)
    assert queue.waiting == 146
    queue.close()
    results = await asyncio.gather(*batch, *urgent, return_exceptions=True)
    assert Counter(type(result) for result in results) == {OverloadedError: 300, ShuttingDownError: 146}
    turn.give_back()
    assert nothing_is_left_in(queue)


async def test_an_answer_that_was_longer_than_expected_is_paid_for_by_waiting() -> None:
    queue = FairQueue(QueueRules(turns=2))
    for name in "ab" * 50:
        (await queue.enter(demand(name, most_output_tokens=1_000))).give_back(60)
    held = {name: await queue.enter(demand(name, most_output_tokens=1_000)) for name in "ab"}
    order: list[str] = []

    async def one(name: str) -> None:
        turn = await queue.enter(demand(name, most_output_tokens=1_000))
        order.append(name)
        await asyncio.sleep(0)
        turn.give_back(60)

    tasks = [asyncio.create_task(one(name)) for name in "abababababab"]
    await settle()
    held["a"].give_back(310)  # as much as five answers; b's was as long as expected
    held["b"].give_back(60)
    await asyncio.gather(*tasks)
    assert order.index("a") >= 4, order
    assert nothing_is_left_in(queue)


async def test_a_batch_that_was_shorter_than_expected_does_not_come_before_what_is_urgent() -> None:
    queue = FairQueue(QueueRules(turns=10, places=1_000))
    fields = {"most_output_tokens": 4_000}
    for _ in range(50):  # its answers have been as long as they may be
        (await queue.enter(demand("b", priority="batch", **fields))).give_back(4_010)
    blocker = await queue.enter(demand("x", turns=10))
    order: list[str] = []
    held: list[Turn] = []

    async def one(name: str, priority: Priority) -> None:
        held.append(await queue.enter(demand(name, priority=priority, **fields)))
        order.append(name)

    tasks = [asyncio.create_task(one("batch", "batch")) for _ in range(60)]
    await settle()
    blocker.give_back()
    await settle()
    tasks += [asyncio.create_task(one("urgent", "interactive")) for _ in range(40)]
    await settle()
    for _ in range(len(tasks)):
        held.pop(0).give_back(15)
        await settle()
    await asyncio.gather(*tasks)
    assert order[10:50].count("batch") <= 2, order
    assert nothing_is_left_in(queue)


async def test_who_has_waited_too_long_is_refused_and_the_others_go_on() -> None:
    queue = FairQueue(QueueRules(turns=1, timeout=0.05))
    turn = await queue.enter(demand())
    with pytest.raises(OverloadedError, match=r"within 0\.05 s"):
        await queue.enter(demand())
    later = asyncio.create_task(queue.enter(demand()))
    await settle()
    turn.give_back()
    (await later).give_back()
    assert queue.counters.expired == 1
    assert nothing_is_left_in(queue)


async def test_a_wide_request_that_gives_up_lets_the_narrow_ones_behind_it_through() -> None:
    queue = FairQueue(QueueRules(turns=2))
    turn = await queue.enter(demand())
    wide = asyncio.create_task(queue.enter(demand(turns=2)))
    await settle()
    narrow = asyncio.create_task(queue.enter(demand()))
    await settle()
    assert not narrow.done()
    wide.cancel()
    (await narrow).give_back()
    turn.give_back()
    assert nothing_is_left_in(queue)


async def test_a_turn_that_comes_with_the_cancellation_is_given_back() -> None:
    queue = FairQueue(QueueRules(turns=1))
    turn = await queue.enter(demand())
    waiting = asyncio.create_task(queue.enter(demand()))
    await settle()
    turn.give_back()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert nothing_is_left_in(queue)


async def test_a_turn_is_given_back_once() -> None:
    queue = FairQueue(QueueRules(turns=2))
    first, second = [await queue.enter(demand()) for _ in range(2)]
    first.give_back(20)
    first.give_back(20)
    assert queue.turns_in_use == 1
    second.give_back()
    assert nothing_is_left_in(queue)


async def test_a_turn_waits_for_room_in_the_engine_and_comes_with_it() -> None:
    told: list[tuple[int, int, int]] = []
    open_now = False

    def room(choices: int, held: int, asked: int) -> bool:
        told.append((choices, held, asked))
        return open_now

    queue = FairQueue(QueueRules(turns=8, worst_case_share=0.25), room=room)
    first = await queue.enter(demand())
    assert told == [], "an engine with nothing to do takes whatever comes"
    second = asyncio.create_task(queue.enter(demand(turns=2)))
    await settle()
    assert not second.done()
    assert told[-1] == (3, 35, 35)
    open_now = True
    queue.review()
    (await second).give_back()
    first.give_back()
    assert nothing_is_left_in(queue)


async def test_an_engine_that_never_has_room_serves_one_after_the_other() -> None:
    queue = FairQueue(QueueRules(turns=8), room=lambda choices, held, asked: False)
    together = most = 0

    async def one() -> None:
        nonlocal together, most
        turn = await queue.enter(demand())
        together += 1
        most = max(most, together)
        await asyncio.sleep(0)
        together -= 1
        turn.give_back(50)

    await asyncio.gather(*(one() for _ in range(20)))
    assert most == 1


async def test_position_and_wait_are_known_from_the_pace_of_late() -> None:
    now = 0.0
    queue = FairQueue(QueueRules(turns=1), clock=lambda: now)
    turn = await queue.enter(demand())
    demands = [demand(f"t{number % 2}") for number in range(20)]
    tasks = [asyncio.create_task(queue.enter(one)) for one in demands]
    await settle()
    assert queue.position(demands[0]) == 0
    assert queue.position(demands[19]) in (18, 19)
    newcomer = demand("alone")
    tasks.append(asyncio.create_task(queue.enter(newcomer)))
    await settle()
    assert queue.position(newcomer) == 0
    assert queue.position(demands[18]) == 19, "nine of its own line, nine of the other, and the newcomer"
    urgent = demand("urgent", priority="interactive")
    tasks.append(asyncio.create_task(queue.enter(urgent)))
    await settle()
    assert queue.position(urgent) == 1
    assert queue.expected_wait(10) is None
    for _ in range(10):
        now += 2.0
        turn.give_back(10)
        await settle()
        turn = next(task.result() for task in tasks if task.done())
        tasks = [task for task in tasks if not (task.done() and task.result() is turn)]
    assert queue.expected_wait(10) == pytest.approx(20, rel=0.05)
    assert queue.position(demand()) is None
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    turn.give_back()
    assert nothing_is_left_in(queue)


async def test_ten_thousand_waiters_leave_nothing_behind() -> None:
    queue = FairQueue(QueueRules(turns=1, places=20_000))
    turn = await queue.enter(demand())
    tasks = [asyncio.create_task(queue.enter(demand(f"t{number % 97}"))) for number in range(10_000)]
    await eventually(lambda: queue.waiting == 10_000)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert queue.waiting == 0
    assert queue.counters.left == 10_000
    turn.give_back()
    assert queue._waiting.remembered == 0
    assert nothing_is_left_in(queue)


async def test_a_closed_queue_refuses_those_who_wait_and_those_who_come() -> None:
    queue = FairQueue(QueueRules(turns=1))
    turn = await queue.enter(demand())
    waiting = [asyncio.create_task(queue.enter(demand())) for _ in range(3)]
    await settle()
    queue.close()
    for task in waiting:
        with pytest.raises(ShuttingDownError):
            await task
    with pytest.raises(ShuttingDownError):
        await queue.enter(demand())
    turn.give_back()
    assert nothing_is_left_in(queue)
