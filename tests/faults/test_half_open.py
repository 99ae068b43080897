"""Peers that vanish without a word: their cable was cut, their machine lost its power."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ALONE = ["unshare", "--user", "--map-root-user", "--net"]


def can_be_alone() -> bool:
    """Whether this user may have a network of its own here."""
    return (
        bool(shutil.which(ALONE[0]))
        and not subprocess.run([*ALONE, "true"], check=False, capture_output=True).returncode
    )


@pytest.mark.skipif(
    not can_be_alone(), reason="needs a network of its own: Linux, util-linux, and user namespaces that are allowed"
)
@pytest.mark.parametrize("time", ["once", "twice"])
def test_requests_of_peers_that_vanished_are_ended_and_not_at_the_systems_pace_of_minutes(time: str) -> None:
    run = subprocess.run(
        [*ALONE, sys.executable, str(HERE / "vanishing.py")],
        env=os.environ | {"PYTHONPATH": str(HERE.parent)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert run.stdout.split() == ["3", "0"], run.stderr
