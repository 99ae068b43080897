"""docker-compose.yml, as Docker Compose itself reads it; the containers are not run."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from deployment import ENGINE_PROFILES, ROOT, composed, dockerfile, settings_from, shutdown_time
from nginxserver import checked

ALL = composed("*")["services"]
GATEWAYS = {"gpu": "gateway", "cpu": "gateway-cpu", "simulated": "gateway-simulated"}
DATA_PARALLEL = ("docker-compose.yml", "deploy/compose/data-parallel.yml")


def seconds(duration: str) -> float:
    """Of a duration as compose writes it: `1m15s`."""
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)([hms])", duration))


@pytest.mark.parametrize("profile", ENGINE_PROFILES)
def test_each_profile_has_one_gateway_beside_valkey_and_nginx(profile: str) -> None:
    assert composed(profile)["services"].keys() == {GATEWAYS[profile], "nginx", "valkey"}


def test_more_can_be_had_beside_it() -> None:
    assert composed("observability")["services"].keys() == {"nginx", "valkey", "prometheus", "grafana", "jaeger"}
    assert composed("postgres")["services"].keys() == {"nginx", "valkey", "postgres"}


@pytest.mark.parametrize("name", GATEWAYS.values())
def test_a_gateway_would_start_with_its_environment_and_has_the_time_to_end(name: str) -> None:
    service = ALL[name]
    settings = settings_from(
        {"MULGIL_MODEL": "any"} | {key: str(value) for key, value in service["environment"].items()}
    )
    assert (settings.host, settings.port) == ("0.0.0.0", 8000)
    room = seconds(service["stop_grace_period"]) - shutdown_time(settings)
    assert room >= 10, "what the application closes at its end takes a while too"
    assert ALL["nginx"]["stop_grace_period"] == service["stop_grace_period"], "streams pass through it meanwhile"


@pytest.mark.parametrize("name", GATEWAYS.values())
def test_a_gateway_may_write_where_the_image_expects_it_and_nowhere_else(name: str) -> None:
    service = ALL[name]
    assert service["read_only"] is True
    mounted = {volume["target"] for volume in service["volumes"]} | {
        entry.partition(":")[0] for entry in service["tmpfs"]
    }
    made = re.findall(
        r"/var/\S+mulgil", next(one for one in dockerfile()[1]["gateway"].all("RUN") if "install " in one)
    )
    assert mounted == {"/tmp", *made}
    assert service["shm_size"]


@pytest.mark.parametrize("name", ALL)
def test_every_service_has_given_up_what_it_does_not_need(name: str) -> None:
    service = ALL[name]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"
    assert "privileged" not in service
    if name != "postgres":  # its entry point changes owners before it gives up root
        assert service["cap_drop"] == ["ALL"]
    for port in service.get("ports", ()):
        assert port["host_ip"] == "127.0.0.1", "nothing is open to others unless .env says so"
    if "build" not in service:
        assert re.search(r":v?\d+\.\d+(\.\d+)?(-alpine)?$", service["image"]), "no image floats"


@pytest.mark.parametrize("name", GATEWAYS.values())
def test_the_image_is_built_with_arguments_that_it_has(name: str) -> None:
    build = ALL[name]["build"]
    arguments, stages = dockerfile()
    declared = arguments.keys() | {one.partition("=")[0] for stage in stages.values() for one in stage.all("ARG")}
    assert build["args"].keys() <= declared
    assert f"packages-{build['args']['BUILD']}" in stages


def test_valkey_forgets_nothing_by_itself_and_is_reached_by_gateways_alone() -> None:
    valkey = ALL["valkey"]
    flags = dict(zip(valkey["command"][1::2], valkey["command"][2::2], strict=True))
    assert (flags["--appendonly"], flags["--maxmemory-policy"]) == ("yes", "noeviction")
    assert valkey["networks"].keys() == {"back"}
    assert composed("*")["networks"]["back"]["internal"] is True
    assert not valkey.get("ports")
    assert {name for name, service in ALL.items() if "back" in service["networks"]} == {
        *GATEWAYS.values(),
        "valkey",
        "postgres",
    }


def test_a_password_of_the_store_reaches_both_sides(tmp_path: Path) -> None:
    env = tmp_path / "env"
    env.write_text("VALKEY_PASSWORD=s3cret\n")
    services = composed("gpu", env_file=str(env))["services"]
    assert services["gateway"]["environment"]["MULGIL_REDIS_URL"] == "redis://:s3cret@valkey:6379/0"
    assert services["valkey"]["command"][-1] == services["valkey"]["environment"]["REDISCLI_AUTH"] == "s3cret"


def test_nginx_takes_the_configuration_that_its_image_would_make() -> None:
    service = ALL["nginx"]
    (template,) = [volume for volume in service["volumes"] if volume["target"].startswith("/etc/nginx/templates/")]
    assert Path(template["source"]) == ROOT / "nginx/mulgil.conf.template"
    assert Path(template["target"]).name == "default.conf.template", "in place of the image's own server"
    listening = service["environment"]["NGINX_LISTEN"]
    assert [str(port["target"]) for port in service["ports"]] == [listening]
    config = checked(service["environment"])
    assert "server gateway:8000 resolve max_fails=0;" in config
    aliases = {tuple(ALL[name]["networks"]["front"]["aliases"]) for name in GATEWAYS.values()}
    assert aliases == {("gateway",)}, "whichever gateway runs"


def test_a_gateway_for_each_gpu_of_one_machine() -> None:
    services = composed("gpu", files=DATA_PARALLEL)["services"]
    gateways = {name: service for name, service in services.items() if name.startswith("gateway")}
    assert len(gateways) == 2
    devices = [service["deploy"]["resources"]["reservations"]["devices"] for service in gateways.values()]
    assert sorted(one["device_ids"] for (one,) in devices) == [["0"], ["1"]]
    assert all(service["networks"]["front"]["aliases"] == ["gateway"] for service in gateways.values())


def test_what_fills_in_the_file_is_explained() -> None:
    asked = set(re.findall(r"\$\{([A-Z_]+)", (ROOT / "docker-compose.yml").read_text()))
    ours = {name for name in asked if name.startswith("MULGIL_")}
    assert settings_from(dict.fromkeys(ours, "1024") | {"MULGIL_ENGINE": "simulated", "MULGIL_INSECURE": "1"})
    page = (ROOT / "docs/deploy.md").read_text()
    nginx = (ROOT / "docs/proxies.md").read_text()
    assert [name for name in sorted(asked - ours) if f"`{name}`" not in page and f"`{name}`" not in nginx] == []


def test_the_healthcheck_of_valkey_is_a_command_that_a_shell_reads() -> None:
    kind, command = ALL["valkey"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    assert subprocess.run(["sh", "-n", "-c", command], check=False).returncode == 0
    assert shlex.split(command)[0] == "valkey-cli"
