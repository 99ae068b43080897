"""The unit, as systemd's own tools read it."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from deployment import BIN, ROOT, settings_from, shutdown_time

UNIT = ROOT / "deploy/systemd/mulgil@.service"
NEEDS_SYSTEMD = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze (Debian: apt-get install systemd)"
)


def directives() -> dict[str, list[str]]:
    """Every value of each directive; some may be given more than once."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^([A-Z][A-Za-z]+)=(.*)$", UNIT.read_text(), re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def environment() -> dict[str, str]:
    """What the unit sets, for the first gateway."""
    words = [word for value in directives()["Environment"] for word in shlex.split(value.replace("%i", "0"))]
    return dict(word.split("=", 1) for word in words)


@NEEDS_SYSTEMD
def test_systemd_understands_all_of_it(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/mulgil/bin/mulgil", str(BIN / "mulgil")))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@NEEDS_SYSTEMD
def test_it_is_exposed_to_little() -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=25", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_gateway_has_the_time_to_end_and_is_told_alone() -> None:
    found = directives()
    settings = settings_from(environment() | {"MULGIL_MODEL": "any", "MULGIL_INSECURE": "true"})
    (limit,) = found["TimeoutStopSec"]
    assert int(limit) - shutdown_time(settings) >= 10
    assert found["KillMode"] == ["mixed"], "a core that gets SIGTERM drops its streams"


def test_each_gateway_has_a_port_an_accelerator_and_folders_of_its_own() -> None:
    found = directives()
    assert environment()["MULGIL_PORT"] == "8000"
    assert environment()["CUDA_VISIBLE_DEVICES"] == "0"
    assert found["StateDirectory"] == ["mulgil/%i"], "and no other, since the first of them is $STATE_DIRECTORY"
    assert found["WorkingDirectory"] == ["/var/lib/mulgil/%i"]
    assert environment()["MULGIL_RUN_FOLDER"].startswith("/var/lib/mulgil/0/")


def test_no_secret_is_in_the_unit_and_its_user_is_made() -> None:
    assert not re.search(r"(?:TOKEN|PASSWORD|API_KEYS|REDIS_URL)=", UNIT.read_text())
    (user,) = directives()["User"]
    assert re.search(rf"^u {user} ", (UNIT.parent / "mulgil.sysusers").read_text(), re.MULTILINE)


def test_settings_that_cannot_be_served_are_not_tried_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(BIN / "mulgil"), "serve", "--engine", "simulated"],
        cwd=tmp_path,
        env={"PATH": ""},
        capture_output=True,
        check=False,
    )
    assert directives()["RestartPreventExitStatus"] == [str(done.returncode)]
