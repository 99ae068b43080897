"""deploy/k8s, as kustomize renders it; no cluster is asked."""

import re
from pathlib import Path
from typing import Any

import httpx2
import kubernetes_validate
import pytest
import yaml
from deployment import (
    OVERLAYS,
    ROOT,
    component,
    container_of,
    dockerfile,
    manifests,
    pod_templates,
    settings_from,
    shutdown_time,
    variables_of,
)
from fastapi import FastAPI
from nginxserver import checked

from mulgil.api import health
from mulgil.engine.supervisor import Health, State
from mulgil.loop_lag import LoopLag

KUBERNETES = ("1.31", "1.34", "1.37")
PODS = [
    pytest.param(overlay, template, id=f"{overlay} {name}")
    for overlay in OVERLAYS
    for name, template in pod_templates(overlay)
]
GATEWAYS = [pod for pod in PODS if component(pod.values[1]) == "gateway"]  # type: ignore[arg-type]  # of mixed types
CUSTOM = {"LeaderWorkerSet", "ScaledObject"}


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_manifest_fits_kubernetes_own_schema(overlay: str, version: str) -> None:
    for one in manifests(overlay):
        if one["kind"] not in CUSTOM:
            kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize(("overlay", "template"), PODS)
def test_the_pods_of_other_controllers_fit_it_too(overlay: str, template: dict[str, Any]) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "one", **template["metadata"]}}
    kubernetes_validate.validate(pod, KUBERNETES[-1], strict=True)


def test_the_other_controllers_own_kinds_have_only_fields_that_they_know() -> None:
    group = next(one for one in manifests("gpu-lws") if one["kind"] == "LeaderWorkerSet")["spec"]
    assert group.keys() <= {"replicas", "leaderWorkerTemplate", "rolloutStrategy", "startupPolicy", "networkConfig"}
    assert group["leaderWorkerTemplate"].keys() <= {
        *("leaderTemplate", "workerTemplate", "size", "restartPolicy", "subGroupPolicy", "volumeClaimTemplates"),
    }
    scaled = next(one for one in manifests("gpu-keda") if one["kind"] == "ScaledObject")["spec"]
    assert scaled.keys() <= {
        *("scaleTargetRef", "pollingInterval", "cooldownPeriod", "initialCooldownPeriod", "idleReplicaCount"),
        *("minReplicaCount", "maxReplicaCount", "fallback", "advanced", "triggers"),
    }
    # What KEDA hands on is Kubernetes' own.
    behavior = scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    (own,) = [one for one in manifests("gpu-hpa") if one["kind"] == "HorizontalPodAutoscaler"]
    kubernetes_validate.validate(own | {"spec": own["spec"] | {"behavior": behavior}}, KUBERNETES[-1], strict=True)


def test_a_group_has_as_many_machines_and_accelerators_as_the_model_is_cut_in() -> None:
    group = next(one for one in manifests("gpu-lws") if one["kind"] == "LeaderWorkerSet")["spec"][
        "leaderWorkerTemplate"
    ]
    container = container_of(group["leaderTemplate"])
    settings = settings_from(variables_of("gpu-lws", container))
    assert settings.distributed_executor_backend == "ray"
    assert group["size"] == settings.pipeline_parallel_size
    for machine in (group["leaderTemplate"], group["workerTemplate"]):
        assert container_of(machine)["resources"]["limits"]["nvidia.com/gpu"] == settings.tensor_parallel_size
    names = {one["metadata"]["name"] for one in manifests("gpu-lws") if one["kind"] == "Service"}
    owner = next(one for one in manifests("gpu-lws") if one["kind"] == "LeaderWorkerSet")
    assert owner["metadata"]["name"] not in names, (
        "its controller makes a Service of that name, for machines not ready yet"
    )


def test_the_schemas_notice_a_slip_of_the_pen() -> None:
    (deployment,) = [
        one for one in manifests("gpu") if one["kind"] == "Deployment" and one["metadata"]["name"] == "mulgil-gateway"
    ]
    wrong = yaml.safe_load(yaml.safe_dump(deployment))
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["failureTreshold"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, KUBERNETES[-1], strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_all_is_in_one_namespace_and_named_once(overlay: str) -> None:
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in manifests(overlay)]
    assert len(names) == len(set(names))
    assert {namespace for kind, namespace, _ in names if kind != "Namespace"} == {"mulgil"}
    assert "Secret" not in {kind for kind, *_ in names}, "secrets are made by hand, or by what the cluster has for them"


@pytest.mark.parametrize(("overlay", "template"), PODS)
def test_a_pod_is_as_confined_as_kubernetes_calls_restricted_and_its_root_is_read_only(
    overlay: str, template: dict[str, Any]
) -> None:
    pod, container = template["spec"], container_of(template)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    assert container["resources"]["limits"]["memory"]
    assert container["resources"]["requests"].keys() >= {"cpu", "memory"}


@pytest.mark.parametrize(("overlay", "template"), PODS)
def test_what_is_mounted_is_a_volume_and_every_name_that_is_referred_to_is_there(
    overlay: str, template: dict[str, Any]
) -> None:
    volumes = {volume["name"]: volume for volume in template["spec"].get("volumes", ())}
    claimed = {"data"} if component(template) == "valkey" else set()
    assert {mount["name"] for mount in container_of(template)["volumeMounts"]} == volumes.keys() | claimed
    maps = {one["metadata"]["name"]: one["data"] for one in manifests(overlay) if one["kind"] == "ConfigMap"}
    for volume in volumes.values():
        if "configMap" in volume:
            assert {item["key"] for item in volume["configMap"]["items"]} <= maps[volume["configMap"]["name"]].keys()


@pytest.mark.parametrize(("overlay", "template"), GATEWAYS)
def test_a_gateway_would_start_with_its_environment(overlay: str, template: dict[str, Any]) -> None:
    container = container_of(template)
    variables = variables_of(overlay, container)
    demo = {"MULGIL_MODEL": "the demo model"} if container.get("args") == ["quickstart"] else {}
    settings = settings_from({"MULGIL_HOST": "0.0.0.0"} | demo | variables)
    assert {"name": "http", "containerPort": settings.port} in container["ports"]
    assert settings.redis_url is not None
    assert settings.redis_url.get_secret_value() == "redis://:secret@mulgil-valkey:6379/0"
    # A Service named mulgil would become MULGIL_PORT=tcp://…
    assert template["spec"]["enableServiceLinks"] is False


@pytest.mark.parametrize(("overlay", "template"), GATEWAYS)
def test_a_gateway_has_the_time_to_end(overlay: str, template: dict[str, Any]) -> None:
    settings = settings_from({"MULGIL_MODEL": "any"} | variables_of(overlay, container_of(template)))
    grace = template["spec"]["terminationGracePeriodSeconds"]
    waits = container_of(template).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert grace - waits - shutdown_time(settings) >= 10, "what the application closes at its end takes a while too"
    assert settings.drain_delay >= 10, "nginx looks the gateways up every 5 s, in a cache as old"
    for _, other in pod_templates(overlay):
        if component(other) == "nginx":
            assert other["spec"]["terminationGracePeriodSeconds"] >= grace, "streams pass through it meanwhile"
        if component(other) == "gateway-worker":
            stays = container_of(other)["lifecycle"]["preStop"]["sleep"]["seconds"]
            assert grace > stays >= settings.drain_delay + settings.shutdown_grace, "the engine needs it until then"


@pytest.mark.parametrize(("overlay", "template"), GATEWAYS)
def test_what_the_gateway_writes_to_is_what_the_image_made_for_it_and_shared_memory_is_memory(
    overlay: str, template: dict[str, Any]
) -> None:
    mounts = {mount["mountPath"]: mount["name"] for mount in container_of(template)["volumeMounts"]}
    made = re.findall(
        r"/var/\S+mulgil", next(one for one in dockerfile()[1]["gateway"].all("RUN") if "install " in one)
    )
    assert mounts.keys() == {"/tmp", "/dev/shm", *made}
    user = str(template["spec"]["securityContext"]["runAsUser"])
    assert dockerfile()[1]["gateway"].all("USER") == [f"{user}:{template['spec']['securityContext']['fsGroup']}"]
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"


async def answer(path: str, state: State) -> int:
    """What the health route answers in this state of the engine."""
    app = FastAPI()
    app.include_router(health.routes(lambda: Health(state, "", 0.0), lambda: False, lambda: 0, LoopLag()))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://pod") as client:
        return (await client.get(path)).status_code


@pytest.mark.parametrize(("overlay", "template"), GATEWAYS)
async def test_probes_ask_what_the_supervisor_means(overlay: str, template: dict[str, Any]) -> None:
    container = container_of(template)
    states: tuple[State, ...] = ("loading", "ready", "unresponsive", "rebuilding", "failed", "stopped")
    seen = {}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["port"] == "http"
        seen[probe] = {state for state in states if await answer(asked["path"], state) == 200}
    assert seen["startupProbe"] == {"ready"}
    assert seen["readinessProbe"] == {"ready"}, "a store that is away changes nothing"
    assert seen["livenessProbe"] == set(states) - {"failed"}, "nothing is killed that mends itself"
    startup, liveness = container["startupProbe"], container["livenessProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 1800
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nginx_takes_the_configuration_and_finds_the_gateways_where_they_are(overlay: str) -> None:
    (template,) = [one for _, one in pod_templates(overlay) if component(one) == "nginx"]
    variables = variables_of(overlay, container_of(template))
    (host,) = re.findall(r"server (\S+):8000 resolve max_fails=0;", variables["NGINX_SERVERS"])
    headless = [
        one for one in manifests(overlay) if one["kind"] == "Service" and one["spec"].get("clusterIP") == "None"
    ]
    assert host in {f"{one['metadata']['name']}.{one['metadata']['namespace']}.svc.cluster.local" for one in headless}
    # The resolver's own name is looked up at once, and only in a cluster.
    (resolver,) = re.findall(r"resolver (\S+) ", variables["NGINX_SERVERS"])
    variables["NGINX_SERVERS"] = variables["NGINX_SERVERS"].replace(resolver, "127.0.0.1")
    checked(variables)
    (key,) = next(item for item in template["spec"]["volumes"] if item["name"] == "template")["configMap"]["items"]
    assert key["path"] == "default.conf.template", "in place of the image's own server"
    (port,) = container_of(template)["ports"]
    assert str(port["containerPort"]) == variables["NGINX_LISTEN"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_selector_selects_pods_and_every_named_port_is_theirs(overlay: str) -> None:
    pods = [template for _, template in pod_templates(overlay)]
    # What the cluster's operator has, or may have.
    elsewhere = {"postgresql"}

    def selected(labels: dict[str, str]) -> list[dict[str, Any]]:
        return [pod for pod in pods if labels.items() <= pod["metadata"]["labels"].items()]

    for one in manifests(overlay):
        spec = one.get("spec", {})
        if one["kind"] == "Service":
            for pod in selected(spec["selector"]):
                ports = {port["name"] for port in container_of(pod)["ports"]}
                assert {port["targetPort"] for port in spec["ports"]} <= ports
            assert selected(spec["selector"]), one["metadata"]["name"]
        if one["kind"] == "PodDisruptionBudget":
            assert selected(spec["selector"]["matchLabels"])
        if one["kind"] == "NetworkPolicy":
            peers = [peer for rule in spec.get("ingress", []) for peer in rule.get("from", [])]
            peers += [peer for rule in spec.get("egress", []) for peer in rule.get("to", [])]
            for peer in [spec, *peers]:
                labels = peer.get("podSelector", {}).get("matchLabels", {})
                assert selected(labels) or elsewhere & set(labels.values()), labels


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_valkey_forgets_nothing_by_itself(overlay: str) -> None:
    (template,) = [one for _, one in pod_templates(overlay) if component(one) == "valkey"]
    arguments = container_of(template)["args"]
    flags = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    assert (flags["--appendonly"], flags["--maxmemory-policy"]) == ("yes", "noeviction")
    assert flags["--requirepass"] == "$(VALKEY_PASSWORD)"


@pytest.mark.parametrize(("overlay", "kind"), [("gpu-hpa", "HorizontalPodAutoscaler"), ("gpu-keda", "ScaledObject")])
def test_it_is_scaled_by_who_waits_and_nothing_else_sets_the_number(overlay: str, kind: str) -> None:
    (scaler,) = [one for one in manifests(overlay) if one["kind"] == kind]
    (target,) = [
        one
        for one in manifests(overlay)
        if one["kind"] == "Deployment" and one["metadata"]["name"] == scaler["spec"]["scaleTargetRef"]["name"]
    ]
    assert "replicas" not in target["spec"]
    assert "mulgil_waiting_requests" in str(scaler["spec"].get("metrics") or scaler["spec"]["triggers"])


def test_the_example_of_the_secret_has_no_secret_and_names_settings() -> None:
    secret = yaml.safe_load((ROOT / "deploy/k8s/secret.example.yaml").read_text())
    assert set(secret["stringData"].values()) == {""}
    asked = {
        (entry["valueFrom"]["secretKeyRef"]["name"], entry["valueFrom"]["secretKeyRef"]["key"])
        for overlay in OVERLAYS
        for _, template in pod_templates(overlay)
        for entry in container_of(template).get("env", ())
        if "secretKeyRef" in entry.get("valueFrom", {})
    }
    assert asked == {(secret["metadata"]["name"], "VALKEY_PASSWORD")}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_overlay_has_its_line_in_the_page(overlay: str) -> None:
    assert f"`deploy/k8s/overlays/{overlay}`" in Path(ROOT / "docs/deploy.md").read_text()
