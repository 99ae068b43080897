"""The commands of the Dockerfile, done in order in a clean folder, and the image run as a container would be."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from deployment import ROOT


@pytest.mark.timeout(1800)
@pytest.mark.heavy(reason="installs all that the image has in a fresh environment; with vLLM these are 3.5 GB")
@pytest.mark.parametrize(("build", "command"), [("simulated", []), ("cpu", ["quickstart"])])
def test_the_image_is_made_and_serves_as_nobody_special_on_a_read_only_root(build: str, command: list[str]) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root may lay a file system over another")
    with tempfile.TemporaryDirectory(prefix="mg-image-") as name:
        folder = Path(name)
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private",
             sys.executable, str(ROOT / "tests/imageroot.py"), build, str(folder), *command],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout)
    sys.stderr.write(done.stdout)
    assert seen["first_process"] == "tini"
    assert seen["user"] == 10001
    assert seen["answer"]
    assert seen["can_write"] == ["/var/cache/mulgil", "/var/lib/mulgil", "/tmp", "/dev/shm"]
    assert seen["stopped"][0] == 0
