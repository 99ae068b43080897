"""What the fair queue costs a request, by how many wait: time in it, and memory.

    python -m bench.fair_queue

Each of so many requests of 1,000 tenants comes, waits, has its turn and gives it back; or comes, waits and leaves. All
three classes, weights 1 to 5. Beside it: a task that waits for a future, without a queue.
"""

import asyncio
import random
import sys
import time
import tracemalloc

from mulgil.admission.queue import FairQueue, QueueRules, Turn
from mulgil.admission.waiting_room import Demand
from mulgil.tiers import Priority

CROWDS = (100, 1_000, 10_000, 100_000)
PRIORITIES: tuple[Priority, ...] = ("interactive", "normal", "batch")


def demands(number: int) -> list[Demand]:
    """Of 1,000 tenants, by chance."""
    chance = random.Random(number)
    return [
        Demand(
            f"tenant-{chance.randrange(1_000)}",
            prompt_tokens=chance.randint(10, 2_000),
            most_output_tokens=4_096,
            priority=chance.choice(PRIORITIES),
            weight=chance.randint(1, 5),
        )
        for _ in range(number)
    ]


async def idle(number: int) -> float:
    """Microseconds that a task with a future takes without a queue."""
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(number)]

    async def wait(future: asyncio.Future[None]) -> None:
        await future

    begun = time.perf_counter()
    tasks = [asyncio.create_task(wait(future)) for future in futures]
    await asyncio.sleep(0)
    for future in futures:
        future.set_result(None)
    await asyncio.gather(*tasks)
    return (time.perf_counter() - begun) / number * 1e6


async def crowd(number: int, *, leave: bool) -> float:
    """Microseconds for each request."""
    queue = FairQueue(QueueRules(turns=1, places=number, timeout=3_600))
    first = await queue.enter(Demand("first", 1, 1))
    asked = demands(number)

    async def one(demand: Demand) -> None:
        turn: Turn = await queue.enter(demand)
        turn.give_back(demand.prompt_tokens + 300)

    begun = time.perf_counter()
    tasks = [asyncio.create_task(one(demand)) for demand in asked]
    await asyncio.sleep(0)
    assert queue.waiting == number
    if leave:
        for task in tasks:
            task.cancel()
    else:
        first.give_back()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert queue.waiting == 0
    return (time.perf_counter() - begun) / number * 1e6


async def memory(number: int) -> float:
    """Bytes of each request that waits, its task and its timer included."""
    queue = FairQueue(QueueRules(turns=1, places=number, timeout=3_600))
    await queue.enter(Demand("first", 1, 1))
    tracemalloc.start()
    tasks = [asyncio.create_task(queue.enter(demand)) for demand in demands(number)]
    await asyncio.sleep(0)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    queue.close()
    await asyncio.gather(*tasks, return_exceptions=True)
    return size / number


def main() -> int:
    """Print a table."""
    print("waiting   served, µs   left, µs   without a queue, µs   bytes")  # noqa: T201 - the result
    for number in CROWDS:
        served, left = (asyncio.run(crowd(number, leave=leave)) for leave in (False, True))
        plain, size = asyncio.run(idle(number)), asyncio.run(memory(number))
        print(f"{number:7,}   {served:10.1f}   {left:8.1f}   {plain:19.1f}   {size:5.0f}")  # noqa: T201 - the result
    return 0


if __name__ == "__main__":
    sys.exit(main())
