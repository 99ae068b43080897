"""What is deployed, as the tools that deploy it read it: the Dockerfile, compose, kustomize's output, the unit."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from mulgil.server import _TIME_FOR_LAST_WORDS
from mulgil.settings import ENV_PREFIX, Settings

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
OVERLAYS = sorted(path.name for path in (ROOT / "deploy/k8s/overlays").iterdir())
ENGINE_PROFILES = ("gpu", "cpu", "simulated")

SETTLEMENTS = 3
"""Seconds that `Leases.drain` waits for."""
ENGINE_END = 10
"""Seconds that vLLM is given to end; `mulgil.engine.vllm.hosting` says so, and cannot be imported without vLLM."""


def shutdown_time(settings: Settings) -> float:
    """Seconds from SIGTERM to the end of the process, when nothing ends before it must."""
    return settings.drain_delay + settings.shutdown_grace + _TIME_FOR_LAST_WORDS + SETTLEMENTS + ENGINE_END


def settings_from(variables: dict[str, str]) -> Settings:
    """The settings of a gateway whose environment has these variables; fails where it would not start."""
    given = {
        name.removeprefix(ENV_PREFIX).lower(): value for name, value in variables.items() if name.startswith(ENV_PREFIX)
    }
    assert given.keys() <= Settings.model_fields.keys(), "a MULGIL_ variable that is no setting is an error"
    settings = Settings.model_validate(given)
    settings.check()
    return settings


@cache
def composed(*profiles: str, files: tuple[str, ...] = ("docker-compose.yml",), env_file: str = "/dev/null") -> Any:
    """The services as Docker Compose itself reads them, with nothing from this machine's environment."""
    options = [option for file in files for option in ("-f", str(ROOT / file))]
    options += [option for profile in profiles for option in ("--profile", profile)]
    command = [str(BIN / "docker-compose"), "--project-directory", str(ROOT), "--env-file", env_file, *options]
    done = subprocess.run(
        [*command, "config", "--format", "json", "--no-env-resolution"],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@cache
def manifests(overlay: str) -> list[dict[str, Any]]:
    """What `kubectl apply -k` would send."""
    done = subprocess.run(
        [str(BIN / "kubectl"), "kustomize", str(ROOT / "deploy/k8s/overlays" / overlay)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def pod_templates(overlay: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod template, with the name of what makes pods of it."""
    for one in manifests(overlay):
        name = f"{one['kind']}/{one['metadata']['name']}"
        if one["kind"] == "LeaderWorkerSet":
            group = one["spec"]["leaderWorkerTemplate"]
            yield f"{name} leader", group["leaderTemplate"]
            yield f"{name} worker", group["workerTemplate"]
        elif "template" in one.get("spec", {}):
            yield name, one["spec"]["template"]


def container_of(template: dict[str, Any]) -> dict[str, Any]:
    """The one container of a pod."""
    (container,) = template["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def component(template: dict[str, Any]) -> str:
    """What the pod is."""
    return str(template["metadata"]["labels"]["app.kubernetes.io/component"])


def variables_of(overlay: str, container: dict[str, Any]) -> dict[str, str]:
    """The environment of a container, secrets made up."""
    maps = {one["metadata"]["name"]: one["data"] for one in manifests(overlay) if one["kind"] == "ConfigMap"}
    variables: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        if "configMapRef" in source:
            variables |= maps[source["configMapRef"]["name"]]
    for entry in container.get("env", ()):
        value = entry.get("value", "secret")
        for name, known in variables.items():
            value = value.replace(f"$({name})", known)
        variables[entry["name"]] = value
    return variables


@dataclass(frozen=True)
class Stage:
    """A stage of the Dockerfile: its name, what it begins from, and its instructions in order."""

    name: str
    base: str
    instructions: tuple[tuple[str, str], ...]

    def all(self, keyword: str) -> list[str]:
        """The arguments of every instruction of this kind."""
        return [argument for word, argument in self.instructions if word == keyword]


@cache
def dockerfile() -> tuple[dict[str, str], dict[str, Stage]]:
    """The arguments before the first stage, and the stages by name."""
    text = (ROOT / "Dockerfile").read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    instructions = [
        (found[1], found[2])
        for line in lines.replace("\\\n", " ").splitlines()
        if (found := re.match(r"([A-Z]+) +(.*)", line))
    ]
    arguments: dict[str, str] = {}
    stages: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    current: list[tuple[str, str]] | None = None
    for word, argument in instructions:
        if word == "FROM":
            base, name = argument.split(" AS ")
            current = []
            stages[name] = (base, current)
        elif current is None:
            name, _, default = argument.partition("=")
            arguments[name] = default
        else:
            current.append((word, argument))
    return arguments, {name: Stage(name, base, tuple(found)) for name, (base, found) in stages.items()}


def image_variables() -> dict[str, str]:
    """The environment that the last stage sets."""
    return dict(
        part.split("=", 1) for argument in dockerfile()[1]["gateway"].all("ENV") for part in shlex.split(argument)
    )
