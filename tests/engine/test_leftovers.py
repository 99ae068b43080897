"""Engines of gateways that are gone are ended, and nobody else."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from harness import eventually

from mulgil.engine.leftovers import RunFile

NAME = "MULGIL-TEST::Engine"
# A gateway with an engine: notes it, says its number, and waits to be killed.
GATEWAY = """
import subprocess, sys, time
from pathlib import Path
from mulgil.engine.leftovers import RunFile
child = subprocess.Popen(["bash", "-c", "exec -a {name} sleep 60"])
time.sleep(0.3)
RunFile(Path(sys.argv[1]), name="{name}").note()
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def gateway(tmp_path: Path) -> Generator[tuple[subprocess.Popen[str], psutil.Process]]:
    command = [sys.executable, "-c", GATEWAY.format(name=NAME), str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    engine = psutil.Process(int(process.stdout.readline()))
    yield process, engine
    process.kill()
    process.wait()
    process.stdout.close()
    if engine.is_running():
        engine.kill()


async def test_the_engine_of_a_killed_gateway_is_ended_by_the_next_one(
    tmp_path: Path, gateway: tuple[subprocess.Popen[str], psutil.Process]
) -> None:
    process, engine = gateway
    process.send_signal(signal.SIGKILL)
    process.wait()
    await asyncio.sleep(0.2)
    assert engine.is_running(), "nobody else ends it"
    assert RunFile(tmp_path, name=NAME).end_leftovers() == 1
    await eventually(lambda: not engine.is_running())
    assert os.listdir(tmp_path) == []


async def test_the_engine_of_a_living_gateway_is_left_alone(
    tmp_path: Path, gateway: tuple[subprocess.Popen[str], psutil.Process]
) -> None:
    assert RunFile(tmp_path, name=NAME).end_leftovers() == 0
    assert gateway[1].is_running()


async def test_a_stranger_who_has_got_the_number_or_another_name_is_never_touched(tmp_path: Path) -> None:
    stranger = await asyncio.create_subprocess_exec("bash", "-c", f"exec -a {NAME} sleep 60")
    other = await asyncio.create_subprocess_exec("sleep", "60")
    await asyncio.sleep(0.2)
    noted = {
        "gateway": [2**22 - 1, 0.0],
        "engine": [
            [stranger.pid, psutil.Process(stranger.pid).create_time() - 100],
            [other.pid, psutil.Process(other.pid).create_time()],
        ],
    }
    (tmp_path / "gateway-1.json").write_text(json.dumps(noted))
    try:
        assert RunFile(tmp_path, name=NAME).end_leftovers() == 0
        assert stranger.returncode is None
        assert other.returncode is None
    finally:
        for process in (stranger, other):
            process.kill()
            await process.wait()


@pytest.mark.parametrize("written", ["", "{", "[]", '{"gateway": 1}', '{"gateway": [1, 2, 3], "engine": []}'])
def test_a_broken_note_is_passed_over(tmp_path: Path, written: str) -> None:
    (tmp_path / "gateway-1.json").write_text(written)
    assert RunFile(tmp_path, name=NAME).end_leftovers() == 0


def test_a_folder_that_cannot_be_written_ends_no_engine(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    subject = RunFile(blocked / "folder", name=NAME)
    subject.note()
    assert subject.end_leftovers() == 0


async def test_without_an_engine_there_is_no_note(tmp_path: Path) -> None:
    subject = RunFile(tmp_path, name=NAME)
    engine = await asyncio.create_subprocess_exec("bash", "-c", f"exec -a {NAME} sleep 60")
    await asyncio.sleep(0.2)
    subject.note()
    (note,) = os.listdir(tmp_path)
    noted = json.loads((tmp_path / note).read_text())
    assert (noted["gateway"][0], [one[0] for one in noted["engine"]]) == (os.getpid(), [engine.pid])
    engine.kill()
    await engine.wait()
    subject.note()
    assert os.listdir(tmp_path) == []


# An engine that shares memory, and nobody who would clean up behind it.
SHARING = """
import time
from multiprocessing import resource_tracker, shared_memory
segment = shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister(segment._name, "shared_memory")
print(segment.name, flush=True)
time.sleep(60)
"""


@asynccontextmanager
async def sharing() -> AsyncGenerator[tuple[asyncio.subprocess.Process, Path]]:
    """An engine, and the file of the memory that it shares."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", SHARING, NAME, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    segment = Path("/dev/shm") / (await process.stdout.readline()).decode().strip()
    try:
        yield process, segment
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        segment.unlink(missing_ok=True)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory has no files here; run it on Linux")
async def test_what_a_killed_engine_shared_is_removed_when_nobody_of_ours_uses_it(tmp_path: Path) -> None:
    subject = RunFile(tmp_path, name=NAME)
    async with sharing() as (first, lost), sharing() as (_, used):
        subject.note()
        assert lost.exists()
        first.kill()
        await first.wait()
        assert lost.exists(), "nobody else removes it"
        subject.note()
        assert not lost.exists()
        assert used.exists()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory has no files here; run it on Linux")
async def test_what_the_engine_of_a_killed_gateway_shared_is_removed_and_nothing_else(tmp_path: Path) -> None:
    mine = tmp_path / "psm_mine"
    mine.touch()
    async with sharing() as (_, segment):
        noted = {"gateway": [2**22 - 1, 0.0], "engine": [], "segments": [str(segment), str(mine), "/dev/shm/../x"]}
        (tmp_path / "gateway-1.json").write_text(json.dumps(noted))
        RunFile(tmp_path, name=NAME).end_leftovers()
        assert not segment.exists()
        assert mine.exists()


async def test_of_a_start_that_is_given_up_all_is_ended_that_has_a_name_or_none_yet_and_nothing_else(
    tmp_path: Path,
) -> None:
    async def started(title: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec("bash", "-c", f"exec -a '{title}' sleep 60")

    runs = RunFile(tmp_path, name=NAME)
    others = [await started(NAME), await started("something else")]
    await asyncio.sleep(0.2)
    spared = runs.starting()
    assert spared == {others[0].pid}
    begun = [await started(NAME), await started("from multiprocessing.spawn import spawn_main")]
    await asyncio.sleep(0.2)
    try:
        runs.end_all_but(spared)
        async with asyncio.timeout(5):
            assert [await one.wait() for one in begun] == [-signal.SIGKILL] * 2
        assert [one.returncode for one in others] == [None, None]
    finally:
        for one in others:
            one.kill()
            await one.wait()
