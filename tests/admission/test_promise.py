"""The promise itself: in no interval of 60 s, measured anywhere, is a limit exceeded."""

import asyncio
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from mulgil.admission.policy import WINDOW, Charge, Limits
from mulgil.admission.store import Account, Report, Reservation, Settlement
from mulgil.stores.memory import MemoryStore

LIMITS = Limits(requests=6, input_tokens=100, output_tokens=100, concurrency=3)
TENANT_LIMITS = Limits(requests=8, input_tokens=150, output_tokens=130, concurrency=4)


@dataclass
class Log:
    """What was admitted and made, and when; amounts by moment."""

    requests: list[tuple[float, int]] = field(default_factory=list)
    input_tokens: list[tuple[float, int]] = field(default_factory=list)
    output_tokens: list[tuple[float, int]] = field(default_factory=list)

    def most_in_a_window(self, entries: list[tuple[float, int]]) -> int:
        """The largest sum over any 60 s; an interval that begins with an entry is as bad as any."""
        return max(
            (sum(amount for at, amount in entries if begin <= at < begin + WINDOW) for begin, _ in entries), default=0
        )


requests = st.tuples(
    st.floats(0, 9),  # seconds since the one before
    st.sampled_from(["a", "b"]),
    st.integers(1, 60),  # prompt
    st.integers(1, 60),  # most it may make
    st.floats(0, 1),  # how much of that it makes
    st.floats(0, 20),  # seconds until it ends
)


@given(st.lists(requests, min_size=5, max_size=80), st.floats(0, 1))
def test_no_sixty_seconds_hold_more_than_a_limit(
    asked: list[tuple[float, str, int, int, float, float]], start: float
) -> None:
    clock = [1_000_000.0 + start]
    store = MemoryStore(now=lambda: clock[0])
    logs = {"a": Log(), "b": Log()}
    ends: list[tuple[float, str, int, int]] = []

    async def end_those_before(moment: float) -> None:
        for at, key, number, made in sorted(ends):
            if at <= moment:
                clock[0] = max(clock[0], at)
                await store.settle(Settlement(Report(f"l{number}", Account("t", key), made)))
                logs[key].output_tokens.append((clock[0], made))
                ends.remove((at, key, number, made))

    async def scenario() -> None:
        for number, (pause, key, prompt, most, share, lasts) in enumerate(asked):
            moment = clock[0] + pause
            await end_those_before(moment)
            clock[0] = moment
            reservation = Reservation(f"l{number}", Account("t", key), Charge(prompt, most), LIMITS, TENANT_LIMITS)
            if (await store.reserve(reservation)).admitted:
                logs[key].requests.append((moment, 1))
                logs[key].input_tokens.append((moment, prompt))
                ends.append((moment + lasts, key, number, round(most * share)))
        await end_those_before(float("inf"))

    asyncio.run(scenario())
    for name in ("requests", "input_tokens", "output_tokens"):
        both = [entry for log in logs.values() for entry in getattr(log, name)]
        for log in logs.values():
            assert log.most_in_a_window(getattr(log, name)) <= getattr(LIMITS, name)
        assert Log().most_in_a_window(both) <= getattr(TENANT_LIMITS, name)
