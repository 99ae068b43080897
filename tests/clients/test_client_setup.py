"""What the clients run in is the same wherever it is made."""

import re

import orjson
import pytest
from clientruns import CLIENTS

LOCK = CLIENTS / "node/package-lock.json"


@pytest.mark.parametrize("name", ["openai-2.txt", "openai-3.txt"])
def test_every_python_package_has_one_version(name: str) -> None:
    lines = (CLIENTS / "python" / name).read_text().splitlines()
    packages = [line for line in lines if line and not line.startswith("#")]
    assert len(packages) > 20
    assert [line for line in packages if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)] == []


def test_every_node_package_has_one_version_and_names_no_registry() -> None:
    package = orjson.loads((CLIENTS / "node/package.json").read_bytes())
    asked = package["dependencies"] | package["optionalDependencies"]
    assert [version for version in asked.values() if not re.fullmatch(r"[0-9.]+", version)] == []
    lock = orjson.loads(LOCK.read_bytes())
    assert "://" not in LOCK.read_text()
    assert all(entry["integrity"] for path, entry in lock["packages"].items() if path)
