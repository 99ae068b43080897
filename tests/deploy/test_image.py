"""The Dockerfile, as far as it can be checked without a Docker engine."""

import asyncio
import fnmatch
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from deployment import BIN, ROOT, dockerfile, image_variables, settings_from
from harness import Server

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_hadolint_finds_nothing() -> None:
    done = subprocess.run(
        [str(BIN / "hadolint"), str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_the_gpu_image_has_the_very_vllm_that_the_adapter_is_written_against() -> None:
    (pinned,) = [one for one in PROJECT["optional-dependencies"]["gpu"] if one.startswith("vllm==")]
    version = pinned.removeprefix("vllm==")
    arguments, stages = dockerfile()
    assert arguments["VLLM_IMAGE"] == f"vllm/vllm-openai:v{version}"
    assert f"'{version}'" in stages["packages-gpu"].all("RUN")[-1], "and the build fails where it is another"


def test_every_build_has_a_stage_and_gpu_is_the_default() -> None:
    arguments, stages = dockerfile()
    assert arguments["BUILD"] == "gpu"
    assert stages["gateway"].base == "packages-${BUILD}"
    assert {name.removeprefix("packages-") for name in stages if name.startswith("packages-")} == {
        "gpu",
        "cpu",
        "simulated",
    }


def test_no_image_floats() -> None:
    arguments, stages = dockerfile()
    for value in (arguments["VLLM_IMAGE"], arguments["PYTHON_IMAGE"]):
        assert re.search(r":v?\d+\.\d+", value), value
    foreign = {stage.base for stage in stages.values()} - stages.keys() - {"packages-${BUILD}"}
    assert foreign == {"${VLLM_IMAGE}", "${PYTHON_IMAGE}"}


def test_it_runs_as_nobody_special_under_a_first_process_that_reaps_and_signals_the_gateway_alone() -> None:
    last = dockerfile()[1]["gateway"]
    assert last.all("USER") == ["10001:10001"]
    assert [json.loads(one) for one in last.all("ENTRYPOINT")] == [["tini", "--", "mulgil"]]
    assert [json.loads(one) for one in last.all("CMD")] == [["serve"]]
    assert last.instructions.index(("USER", "10001:10001")) > max(
        index for index, (word, _) in enumerate(last.instructions) if word == "RUN"
    )


def test_its_variables_are_settings() -> None:
    assert (
        settings_from(image_variables() | {"MULGIL_ENGINE": "simulated", "MULGIL_INSECURE": "true"}).host == "0.0.0.0"
    )


def test_what_is_copied_exists_and_the_builder_is_given_it_and_little_else() -> None:
    sent = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert sent[0] == "*", "nothing, and then what is named"
    allowed = [line.removeprefix("!") for line in sent if line.startswith("!")]
    copied = {
        source
        for stage in dockerfile()[1].values()
        for argument in stage.all("COPY")
        if "--from" not in argument
        for source in shlex.split(argument)[:-1]
    }
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) or source.startswith(f"{pattern}/") for pattern in allowed), source
    for secret in (".env", ".mulgil", ".git", "tests", "docs"):
        assert secret not in allowed


def test_no_secret_is_an_argument_of_the_build() -> None:
    words = re.findall(r"^(?:ARG|ENV) (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert not [word for word in words if re.search(r"TOKEN|PASSWORD|SECRET|API_KEY", word)]


async def test_the_health_check_says_what_the_path_says(shared: Server) -> None:
    check = str(ROOT / "deploy/docker/healthcheck.py")
    cases = {
        (shared.port, "/health/live"): 0,
        (shared.port, "/health/ready"): 0,
        (shared.port, "/nothing"): 1,
        (1, "/health/live"): 1,
    }
    for (port, path), status in cases.items():
        environment = os.environ | {"MULGIL_PORT": str(port)}
        process = await asyncio.create_subprocess_exec(sys.executable, "-I", check, path, env=environment)
        assert await process.wait() == status, (port, path)
    asked = json.loads(dockerfile()[1]["gateway"].all("HEALTHCHECK")[0].partition("CMD ")[2])
    assert asked == ["python", "-I", "/opt/mulgil/healthcheck.py", "/health/live"]


@pytest.mark.parametrize("extras", ["", "cpu,", "gpu,gunicorn"])
def test_every_requirement_of_the_layers_below_is_exact(extras: str, tmp_path: Path) -> None:
    for source in ("pyproject.toml", "scripts/constraints.txt"):
        (tmp_path / Path(source).name).write_bytes((ROOT / source).read_bytes())
    printed = subprocess.run(
        [sys.executable, str(ROOT / "deploy/docker/requirements.py"), extras],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert len(printed) >= len(PROJECT["dependencies"])
    assert [line for line in printed if not re.fullmatch(r"[\w.-]+(\[[\w,]+\])?==[\w.+]+", line)] == []
