"""An engine that does not come is given up with what it waits for; nobody waits for it when told to end."""

import asyncio
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from harness import eventually

from mulgil.engine.leftovers import RunFile
from mulgil.errors import EngineUnavailableError

pytestmark = pytest.mark.model

NAME = "MULGIL-TEST::Core"


def never_ready() -> Any:
    """Waits for a process, as vLLM does for its cores, and fails when that ends."""
    subprocess.run(["bash", "-c", f"exec -a {NAME} sleep 60"], check=True)


def hosted(folder: Path, seconds: float) -> Any:
    from mulgil.engine.vllm.hosting import Deadline, HostedLLM  # noqa: PLC0415 - imports vLLM

    deadline = Deadline(seconds, "Does the other machine run?")
    return HostedLLM(never_ready, RunFile(folder, name=NAME), what="the engine", deadline=deadline)


async def test_a_start_that_takes_too_long_is_given_up_with_what_it_waits_for(tmp_path: Path) -> None:
    engine = hosted(tmp_path, 0.5)
    with pytest.raises(EngineUnavailableError) as caught:
        await engine.start()
    assert caught.value.message == (
        "The engine was not ready after 0.5 s ('engine_start_timeout'). Does the other machine run?"
    )
    await engine.stop(())
    assert os.listdir(tmp_path) == [], "its process is gone, and no longer noted"


async def test_a_start_is_ended_at_once_when_it_is_not_wanted_any_more(tmp_path: Path) -> None:
    engine = hosted(tmp_path, 60)
    starting = asyncio.create_task(engine.start())
    await eventually(lambda: bool(os.listdir(tmp_path)))
    starting.cancel()
    begun = time.monotonic()
    await engine.stop(())
    assert time.monotonic() - begun < 10
    await asyncio.wait({starting})
