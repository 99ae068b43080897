"""What the files of deployment call the settings is what they are called."""

import re
import subprocess

import pytest
from deployment import ROOT

from mulgil.settings import ENV_PREFIX, Settings

PLACES = ("Dockerfile", "docker-compose.yml", "deploy", "nginx")
FILES = subprocess.run(
    ["git", "ls-files", *PLACES], cwd=ROOT, capture_output=True, text=True, check=True
).stdout.splitlines()


@pytest.mark.parametrize("name", FILES)
def test_every_variable_of_ours_is_a_setting(name: str) -> None:
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.lstrip().startswith("#")]
    known = {ENV_PREFIX + field.upper() for field in Settings.model_fields}
    assert set(re.findall(rf"\b{ENV_PREFIX}[A-Z_]*[A-Z]\b", "\n".join(lines))) <= known


def test_there_are_such_files() -> None:
    assert len(FILES) > 20
