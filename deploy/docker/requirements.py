"""Prints what pyproject.toml asks for, with the versions of constraints.txt: the layers below our own wheel.

requirements.py EXTRA,EXTRA…; both files lie in the folder that it is run in.
"""

import re
import sys
import tomllib
from pathlib import Path


def wanted(extras: list[str]) -> list[str]:
    """The requirements of the package and of these extras, exact where the version is known."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    known = dict(
        line.split("==") for line in Path("constraints.txt").read_text().splitlines() if not line.startswith("#")
    )
    pinned = {normal(name): version for name, version in known.items()}
    asked = list(project["dependencies"])
    for extra in extras:
        asked += project["optional-dependencies"][extra]
    return [exact(requirement, pinned) for requirement in asked]


def normal(name: str) -> str:
    """A package's name as packaging.python.org/specifications/name-normalization has it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def exact(requirement: str, pinned: dict[str, str]) -> str:
    """The requirement with its version, if it is known."""
    found = re.match(r"([A-Za-z0-9_.-]+)(\[.*?\])?", requirement)
    assert found, requirement
    version = pinned.get(normal(found[1]))
    return f"{found[0]}=={version}" if version else requirement


if __name__ == "__main__":
    for line in wanted([extra for extra in sys.argv[1].split(",") if extra]):
        sys.stdout.write(f"{line}\n")
