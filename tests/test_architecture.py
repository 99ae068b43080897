"""House rules that no tool holds."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "src/mulgil").rglob("*.py"))
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_module_stays_under_300_lines(module: Path) -> None:
    assert len(module.read_text().splitlines()) <= 300


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_names_say_what_a_thing_is(module: Path) -> None:
    assert not re.search(r"util|helper|manager|common", module.stem)


def test_every_ignore_has_its_reason() -> None:
    bare = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in [*MODULES, *(ROOT / "tests").rglob("*.py")]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"#\s(noqa: [A-Z0-9, ]+|type: ignore\[[a-z-]+\])\s*$", line)
    ]
    assert not bare


def test_nothing_is_mocked() -> None:
    suspects = [
        path for path in (ROOT / "tests").rglob("*.py") if re.search(r"unittest\.mock|mocker", path.read_text())
    ]
    assert suspects == [Path(__file__)]


def test_the_changelog_knows_the_version() -> None:
    version = re.search(r'__version__ = "(.+)"', (ROOT / "src/mulgil/__init__.py").read_text())
    assert version is not None
    assert f"## {version[1]}" in (ROOT / "CHANGELOG.md").read_text()
