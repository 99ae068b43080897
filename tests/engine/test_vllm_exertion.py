"""An engine that computes is told from one that hangs."""

import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager

import psutil
import pytest

from mulgil.engine.vllm.exertion import computes

BURNS = "while :; do :; done"
WAITS = "sleep 60"


@contextmanager
def core_with_a_worker(does: str, name: str = "VLLM::Worker") -> Generator[psutil.Process]:
    """A process with one of that name below it."""
    worker = f"exec -a {name} bash -c '{does}; true'"
    with subprocess.Popen(["bash", "-c", f"({worker}) & wait"], start_new_session=True) as core:
        seen = psutil.Process(core.pid)
        while not any(name in " ".join(one.cmdline()) for one in seen.children(recursive=True)):
            pass
        try:
            yield seen
        finally:
            for one in (*seen.children(recursive=True), seen):
                one.kill()


def test_one_whose_worker_is_busy_computes() -> None:
    with core_with_a_worker(BURNS) as core:
        assert computes([core.pid])


@pytest.mark.parametrize("does", [WAITS, BURNS])
def test_one_whose_worker_waits_or_was_stopped_does_not(does: str) -> None:
    with core_with_a_worker(does) as core:
        if does == BURNS:
            for one in core.children(recursive=True):
                one.send_signal(signal.SIGSTOP)
        assert not computes([core.pid])


def test_one_of_whose_workers_one_hangs_does_not() -> None:
    with core_with_a_worker(BURNS) as one, core_with_a_worker(WAITS) as other:
        assert not computes([one.pid, other.pid])
        assert not computes([])


def test_what_others_below_it_do_does_not_count_and_neither_does_one_that_is_gone() -> None:
    with core_with_a_worker(BURNS, name="VLLM::Other") as core:
        assert not computes([core.pid])
    assert not computes([core.pid])


def test_a_worker_that_ends_meanwhile_has_computed_nothing() -> None:
    with core_with_a_worker(BURNS) as core:

        def kill(_: float) -> None:
            for one in core.children(recursive=True):
                one.kill()

        assert not computes([core.pid], sleep=kill)
