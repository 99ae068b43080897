"""What is deployed on Ray names what exists, and the two ways to deploy it say the same."""

import importlib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from mulgil.ray_serve import settings_of

FOLDER = Path(__file__).parents[2] / "deploy/ray"
SERVE: dict[str, Any] = yaml.safe_load((FOLDER / "serve.yaml").read_text())
SERVICE: dict[str, Any] = yaml.safe_load((FOLDER / "rayservice.yaml").read_text())
(APPLICATION,) = SERVE["applications"]
(DEPLOYMENT,) = APPLICATION["deployments"]


def named(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def test_ray_takes_the_config_and_finds_what_it_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MULGIL_API_KEYS", "a-key-of-the-test")
    ServeDeploySchema.model_validate(SERVE)
    settings_of(APPLICATION["args"])
    bound = named(APPLICATION["import_path"])(APPLICATION["args"])
    assert bound._bound_deployment.name == DEPLOYMENT["name"]
    policy = DEPLOYMENT["autoscaling_config"]["policy"]
    named(policy["policy_function"])(**policy["policy_kwargs"])


def test_on_kubernetes_it_is_the_same_config_and_a_cluster_that_fits_it() -> None:
    assert yaml.safe_load(SERVICE["spec"]["serveConfigV2"]) == SERVE
    cluster = SERVICE["spec"]["rayClusterConfig"]
    assert cluster["rayVersion"] == version("ray")
    (workers,) = cluster["workerGroupSpecs"]
    (worker,) = workers["template"]["spec"]["containers"]
    assert int(worker["resources"]["limits"]["nvidia.com/gpu"]) == DEPLOYMENT["ray_actor_options"]["num_gpus"]
    assert workers["maxReplicas"] >= DEPLOYMENT["autoscaling_config"]["max_replicas"]


@pytest.mark.parametrize("group", ["headGroupSpec", "workerGroupSpecs"])
def test_no_variable_of_a_service_is_taken_for_a_setting(group: str) -> None:
    spec = SERVICE["spec"]["rayClusterConfig"][group]
    pod = (spec[0] if isinstance(spec, list) else spec)["template"]["spec"]
    assert pod["enableServiceLinks"] is False
    (container,) = pod["containers"]
    assert [one["name"] for one in container["env"]][:2] == ["VALKEY_PASSWORD", "MULGIL_REDIS_URL"]
