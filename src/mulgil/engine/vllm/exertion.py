"""Whether an engine on a CPU computes: it answers nothing within a step, and one with a long prompt takes a minute."""

import contextlib
import time
from collections.abc import Callable, Iterable

import psutil

_WORKER = "VLLM::Worker"
_LOOK = 1.0
_COMPUTES = 0.5
"""Share of a core's time from which on a worker counts as one that computes; one that waits takes next to nothing."""


def computes(cores: Iterable[int], sleep: Callable[[float], None] = time.sleep) -> bool:
    """Whether all workers of these processes have computed within the second that this takes.

    All, since one that hangs is not to be hidden by one that waits for it busily, or that has other work.

    Args:
        cores: the engine's processes, by number.
        sleep: waits so many seconds.
    """
    workers = [worker for core in cores for worker in _workers(core)]
    before = [_spent(worker) for worker in workers]
    begun = time.monotonic()
    sleep(_LOOK)
    passed = time.monotonic() - begun
    after = [_spent(worker) for worker in workers]
    return bool(workers) and all(now - then > _COMPUTES * passed for then, now in zip(before, after, strict=True))


def _workers(core: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return [one for one in psutil.Process(core).children(recursive=True) if _WORKER in " ".join(one.cmdline())]
    return []


def _spent(worker: psutil.Process) -> float:
    """Seconds of processors; of one that is gone 0, so that it has computed nothing since."""
    with contextlib.suppress(psutil.Error):
        times = worker.cpu_times()
        return float(times.user + times.system)
    return 0.0
