"""One generation for all who ask the same: it goes on while anyone reads it, whatever happens to the others."""

import asyncio
import random
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from cached import Counting
from harness import MODEL, chat_body, eventually, script

from mulgil.admission.gates import Gates
from mulgil.admission.lease import Leases
from mulgil.admission.policy import Balance
from mulgil.admission.queue import FairQueue, QueueRules
from mulgil.admission.store import Account
from mulgil.answers.answering import Answers, Caching
from mulgil.asked import Wishes
from mulgil.auth.keys import Caller
from mulgil.cache.control import ANY, CacheControl
from mulgil.cache.key import AnswerKeys
from mulgil.cache.responses import CacheRules, ResponseCache
from mulgil.cache.sealing import Seal
from mulgil.catalogue import Catalogue
from mulgil.engine.base import Prepared
from mulgil.engine.snapshot import Snapshot
from mulgil.errors import EngineError, EngineUnavailableError, MulgilError, RateLimitError, ShuttingDownError
from mulgil.gateway import Gateway
from mulgil.generation import Generation
from mulgil.ledger.base import NoLedger, UsageRow
from mulgil.schemas.chat import ChatCompletionRequest
from mulgil.stores.memory import MemoryStore
from mulgil.stores.memory_answers import MemoryAnswers
from mulgil.telemetry.observation import Observation
from mulgil.tiers import Tier

FIRST, SECOND, THIRD = (Caller(key_id=f"key-{number}", tenant="t") for number in (1, 2, 3))


class Rows(NoLedger):
    """Keeps rows."""

    def __init__(self) -> None:
        self.rows: list[UsageRow] = []

    def note(self, row: UsageRow) -> None:
        self.rows.append(row)


class Subject:
    """Answers over an engine that counts, and all that they leave."""

    def __init__(self, engine: Counting | None = None, turns: int = 50, **tier: Any) -> None:
        limits = dict.fromkeys(
            ("requests_per_minute", "input_tokens_per_minute", "output_tokens_per_minute", "concurrent_requests"),
            "unlimited",
        )
        self.engine = engine or Counting()
        self.ledger = Rows()
        self.store = MemoryStore()
        self.leases = Leases(self.store, ttl=30, renew_interval=5)
        tiers = {"default": Tier.model_validate(limits | tier)}
        gates = Gates(tiers, self.leases, FairQueue(QueueRules(turns=turns)), self.ledger)
        self.gateway = Gateway(lambda: self.engine, Catalogue((MODEL,), "fp_test"), gates)
        seal = Seal(b"the secret of the tests")
        cache = ResponseCache(MemoryAnswers(most_entries=100, most_bytes=1_000_000), seal, CacheRules())
        self.answers = Answers(self.gateway, gates, Caching(frozenset({MODEL}), AnswerKeys(seal), cache))

    async def start(
        self, caller: Caller = FIRST, *, control: CacheControl = ANY, prompt: str = "hello", **directives: Any
    ) -> Generation:
        body = chat_body(script(prompt, **directives), temperature=0, max_tokens=4_000)
        request = ChatCompletionRequest.model_validate(body)
        observed = Observation()
        observed.begin("read")
        return await self.answers.start(request, caller, observed=observed, wishes=Wishes(cache=control))

    async def used(self, caller: Caller) -> Balance:
        return (await self.store.balances(Account(caller.tenant, caller.key_id))).key

    async def settled(self) -> None:
        """Wait until nothing is held, and nobody waits for anything."""
        await eventually(lambda: not (self.leases.live or self.answers._tasks or self.gateway.running))
        assert self.answers._flights == {}
        assert self.answers._leaving == {}


async def text_of(generation: Generation) -> str:
    pieces = [piece.text async for news in generation.follow() for piece in news]
    assert "".join(pieces) == (await generation.finished()).choices[0].text
    return "".join(pieces)


async def test_a_hundred_at_once_share_one_generation_and_the_first_pays_for_it() -> None:
    subject = Subject()
    callers = [Caller(key_id=f"key-{number}", tenant="t") for number in range(100)]
    found = await asyncio.gather(*(subject.start(caller, tokens=30, gap=0.001) for caller in callers))
    texts = await asyncio.gather(*(text_of(generation) for generation in found))
    assert subject.engine.generations == 1
    assert len(set(texts)) == 1
    assert len(texts[0].split()) == 30
    assert len({generation.id for generation in found}) == 100
    await subject.settled()
    first, *others = [await subject.used(caller) for caller in callers]
    assert (first.requests, first.input_tokens, first.output_tokens) == (1, found[0].prompt_tokens, 30)
    assert {(one.requests, one.input_tokens, one.output_tokens, one.held_tokens) for one in others} == {(1, 0, 0, 0)}
    assert [generation.observed.cache for generation in found] == ["miss"] + ["hit"] * 99


async def test_the_ledger_has_a_row_for_each_of_them_that_says_who_made_it() -> None:
    subject = Subject()
    found = await asyncio.gather(*(subject.start(caller, tokens=5) for caller in (FIRST, SECOND)))
    for generation in found:
        await generation.finished()
    await subject.settled()
    await (await subject.start(THIRD, tokens=5)).finished()
    rows = {row.key_id: row for row in subject.ledger.rows}
    assert {key: (row.status, row.completion_tokens) for key, row in rows.items()} == {
        "key-1": ("stop", 5),
        "key-2": ("cached", 0),
        "key-3": ("cached", 0),
    }
    assert rows["key-1"].prompt_tokens == found[0].prompt_tokens
    assert (rows["key-2"].prompt_tokens, rows["key-2"].cached_tokens) == (0, 0)
    assert len({row.id for row in rows.values()}) == 3


async def test_a_first_reader_that_leaves_does_not_hurt_the_others_and_pays_all_the_same() -> None:
    subject = Subject()
    first, second = await asyncio.gather(*(subject.start(caller, tokens=60, gap=0.002) for caller in (FIRST, SECOND)))
    await eventually(lambda: second.snapshot.completion_tokens >= 5)
    subject.answers.abandon(first)
    subject.answers.abandon(first)
    assert len((await text_of(second)).split()) == 60
    await subject.settled()
    assert (await subject.used(FIRST)).output_tokens == 60
    assert (await subject.used(SECOND)).output_tokens == 0


async def test_one_that_leaves_before_the_engine_has_accepted_does_not_hurt_the_others() -> None:
    subject = Subject(turns=1)
    running = await subject.start(THIRD, prompt="another", tokens=1_000, gap=0.01)
    first = asyncio.create_task(subject.start(FIRST, tokens=20))
    await eventually(lambda: subject.gateway.queue.waiting == 1)
    second = asyncio.create_task(subject.start(SECOND, tokens=20))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    subject.answers.abandon(running)
    assert len((await text_of(await second)).split()) == 20
    await subject.settled()
    assert subject.engine.generations == 2
    assert (await subject.used(FIRST)).output_tokens == 20


async def test_when_all_have_left_the_engine_stops_and_nobody_joins_any_more() -> None:
    subject = Subject()
    both = await asyncio.gather(*(subject.start(caller, tokens=4_000, gap=0.001) for caller in (FIRST, SECOND)))
    for generation in reversed(both):
        subject.answers.abandon(generation)
    third = await subject.start(THIRD, tokens=4_000, gap=0.001)
    assert third.observed.cache == "miss"
    subject.answers.abandon(third)
    await subject.settled()
    assert subject.engine.load().unfinished == 0
    assert (await subject.used(FIRST)).output_tokens < 4_000
    assert {row.key_id: row.status for row in subject.ledger.rows} == dict.fromkeys(
        ("key-1", "key-2", "key-3"), "aborted"
    )
    assert subject.answers._cache.store.held == (0, 0)


async def test_when_all_leave_before_the_engine_has_accepted_nothing_runs_and_nothing_is_held() -> None:
    subject = Subject(turns=1)
    running = await subject.start(THIRD, prompt="another", tokens=1_000, gap=0.01)
    waiting = [asyncio.create_task(subject.start(caller, tokens=20)) for caller in (FIRST, SECOND)]
    await eventually(lambda: subject.gateway.queue.waiting == 1)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    subject.answers.abandon(running)
    await subject.settled()
    assert subject.engine.generations == 1
    assert [(await subject.used(caller)).requests for caller in (FIRST, SECOND)] == [0, 0]


async def test_another_tenant_shares_nothing() -> None:
    subject = Subject()
    strangers = [Caller(key_id="key-1", tenant=tenant) for tenant in ("t", "u", "v")]
    for _ in range(2):
        found = await asyncio.gather(*(subject.start(caller, tokens=30, gap=0.001) for caller in strangers))
        await asyncio.gather(*(text_of(generation) for generation in found))
    await subject.settled()
    assert subject.engine.generations == 3


async def test_a_failure_on_the_way_is_the_same_for_all_and_is_not_kept() -> None:
    subject = Subject()
    both = await asyncio.gather(*(subject.start(caller, tokens=9, fail_at=4, gap=0.001) for caller in (FIRST, SECOND)))
    for generation in both:
        with pytest.raises(EngineError, match="as it was told to"):
            await text_of(generation)
        assert generation.snapshot.completion_tokens == 4
    await subject.settled()
    assert subject.engine.generations == 1
    assert [row.status for row in subject.ledger.rows] == ["engine_error"] * 2
    assert (await subject.start(THIRD, tokens=9, fail_at=4)).observed.cache == "miss"


class FailsOnce(Counting):
    """Refuses the first generation, after a while."""

    async def generate(self, prepared: Prepared) -> AsyncGenerator[Snapshot]:
        if not self.generations:
            self.generations += 1
            await asyncio.sleep(0.02)
            raise EngineError("not this one")
        async for snapshot in super().generate(prepared):
            yield snapshot


async def test_those_who_were_told_nothing_yet_try_on_their_own_once() -> None:
    subject = Subject(FailsOnce())
    tries = [asyncio.create_task(subject.start(caller, tokens=9)) for caller in (FIRST, SECOND, THIRD)]
    await asyncio.wait(tries)
    with pytest.raises(EngineError, match="not this one"):
        tries[0].result()
    for task in tries[1:]:
        assert len((await text_of(task.result())).split()) == 9
        assert task.result().observed.cache == "miss"
    await subject.settled()
    assert subject.engine.generations == 3
    assert [(await subject.used(one)).requests for one in (FIRST, SECOND, THIRD)] == [0, 1, 1]
    assert [(await subject.used(one)).output_tokens for one in (FIRST, SECOND, THIRD)] == [0, 9, 9]


async def test_the_budget_of_the_first_is_not_the_others() -> None:
    subject = Subject(output_tokens_per_minute=4_500, tenant={"output_tokens_per_minute": "unlimited"})
    await (await subject.start(FIRST, prompt="another", tokens=1_000)).finished()
    tries = [asyncio.create_task(subject.start(caller, tokens=9)) for caller in (FIRST, SECOND)]
    await asyncio.wait(tries)
    with pytest.raises(RateLimitError):
        tries[0].result()
    await tries[1].result().finished()
    await subject.settled()
    assert (await subject.used(FIRST)).requests == 1
    assert (await subject.used(SECOND)).output_tokens == 9


async def test_an_engine_that_dies_ends_all_of_them() -> None:
    subject = Subject()
    both = await asyncio.gather(*(subject.start(caller, tokens=9, die_at=3, gap=0.001) for caller in (FIRST, SECOND)))
    for generation in both:
        with pytest.raises(EngineUnavailableError):
            await generation.finished()
    await subject.settled()


async def test_a_drain_ends_all_of_them_and_leaves_nothing() -> None:
    subject = Subject()
    both = await asyncio.gather(*(subject.start(caller, hang_at=2) for caller in (FIRST, SECOND)))
    await subject.gateway.drain()
    await subject.answers.drain()
    for generation in both:
        with pytest.raises(ShuttingDownError):
            await generation.finished()
    await subject.settled()
    with pytest.raises(ShuttingDownError):
        await subject.start(THIRD, hang_at=2)


async def test_whoever_comes_late_reads_from_the_beginning() -> None:
    subject = Subject()
    first = await subject.start(FIRST, tokens=40, gap=0.002)
    await eventually(lambda: first.snapshot.completion_tokens >= 10)
    late = await subject.start(SECOND, tokens=40, gap=0.002)
    assert await text_of(late) == await text_of(first)
    assert late.observed.cache == "hit"


async def test_who_wants_a_new_answer_does_not_share_an_older_one() -> None:
    subject = Subject()
    first = await subject.start(FIRST, tokens=40, gap=0.001)
    anew = await subject.start(SECOND, control=CacheControl(max_age=0), tokens=40, gap=0.001)
    shared = await subject.start(THIRD, control=CacheControl(max_age=5), tokens=40, gap=0.001)
    await asyncio.gather(*(text_of(one) for one in (first, anew, shared)))
    assert [one.observed.cache for one in (first, anew, shared)] == ["miss", "miss", "hit"]
    await subject.settled()
    assert subject.engine.generations == 2


async def test_a_quota_or_a_limit_of_requests_holds_for_answers_that_are_there() -> None:
    subject = Subject(requests_per_minute=2)
    for _ in range(2):
        await (await subject.start(tokens=9)).finished()
        await subject.settled()
    with pytest.raises(RateLimitError):
        await subject.start(tokens=9)
    assert subject.engine.generations == 1


@pytest.mark.parametrize("seed", range(3))
async def test_in_any_order_of_coming_and_leaving_nothing_is_left_over(seed: int) -> None:
    chance = random.Random(seed)
    subject = Subject(turns=2)

    async def one(number: int) -> None:
        await asyncio.sleep(chance.random() * 0.1)
        try:
            async with asyncio.timeout(chance.choice((0.001, 0.01, 0.05, 5))):
                generation = await subject.start(
                    Caller(key_id=f"key-{number}", tenant="t"), prompt=chance.choice("abc"), tokens=20, gap=0.001
                )
                try:
                    assert len((await text_of(generation)).split()) == 20
                finally:
                    subject.answers.abandon(generation)
        except (TimeoutError, MulgilError):
            pass

    await asyncio.gather(*(one(number) for number in range(150)))
    await subject.settled()
    assert subject.engine.load().unfinished == 0
    assert subject.gateway.queue.waiting == 0
    for number in range(150):
        left = await subject.used(Caller(key_id=f"key-{number}", tenant="t"))
        assert (left.concurrency, left.held_tokens) == (0, 0)
