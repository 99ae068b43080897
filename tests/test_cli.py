"""The command line, as its user meets it."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("MULGIL_")}


def mulgil(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mulgil", *arguments],
        cwd=cwd,
        env=ENVIRONMENT | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_check_config_prints_what_is_in_force_with_secrets_hidden(tmp_path: Path) -> None:
    (tmp_path / "mulgil.toml").write_text('[models.m]\ntruncation = "auto"\n')
    done = mulgil(
        "check-config",
        "--engine=simulated",
        "--port=9",
        "--config=mulgil.toml",
        '--engine-args={"hf_token": "hf_secret"}',
        cwd=tmp_path,
        MULGIL_API_KEYS="secret-key-1",
        MULGIL_MAX_CHOICES="3",
    )
    assert done.returncode == 0, done.stderr
    shown = orjson.loads(done.stdout)
    assert (shown["engine"], shown["port"], shown["max_choices"]) == ("simulated", 9, 3)
    assert shown["models"] == {"m": {"truncation": "auto"}}
    assert "secret-key" not in done.stdout
    assert "hf_secret" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "variables", "reason"),
    [
        ([], {}, "'model' is needed"),
        (["--engine=simulated"], {}, "no API key is configured"),
        (["--engine=simulated", "--insecure"], {"MULGIL_PROT": "1"}, "no such setting: MULGIL_PROT"),
        (["--engine=simulated", "--insecure"], {"MULGIL_PORT": "x"}, "MULGIL_PORT: Input should be a valid integer"),
        (["--engine=simulated"], {"MULGIL_API_KEYS": "sha256:12"}, "a digest is"),
        (["--engine=simulated"], {"MULGIL_API_KEYS": "kéy-of-somebody"}, "printable ASCII"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "check-config"])
def test_a_configuration_that_cannot_be_served_is_refused_with_the_reason_and_no_traceback(
    tmp_path: Path, command: str, arguments: list[str], variables: dict[str, str], reason: str
) -> None:
    done = mulgil(command, *arguments, cwd=tmp_path, **variables)
    assert done.returncode == 2
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_flag_is_refused(tmp_path: Path) -> None:
    done = mulgil("serve", "--prot=1", cwd=tmp_path)
    assert done.returncode == 2
    assert "--prot" in done.stderr


def test_help_lists_the_settings_as_flags(tmp_path: Path) -> None:
    done = mulgil("serve", "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "--max-model-len" in done.stdout


@pytest.mark.model
def test_an_unknown_engine_argument_is_found_by_check_config(tmp_path: Path) -> None:
    done = mulgil("check-config", "--model=m", "--insecure", '--engine-args={"nope": 1}', cwd=tmp_path)
    assert done.returncode == 2
    assert "no engine argument named nope" in done.stderr


@pytest.mark.model
def test_a_model_that_cannot_be_loaded_ends_the_process_with_the_reason(tmp_path: Path) -> None:
    done = mulgil("serve", "--model=/no/such/model", "--insecure", "--port=0", cwd=tmp_path, HF_HUB_OFFLINE="1")
    assert done.returncode == 3
    assert "vLLM could not start" in done.stderr


def test_quickstart_is_up_within_seconds_and_prints_a_call_that_works(tmp_path: Path) -> None:
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "mulgil", "quickstart", "--engine=simulated", "--port=0"],
        cwd=tmp_path,
        env=ENVIRONMENT | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        printed = ""
        while "print(chunk" not in printed:
            printed += process.stdout.readline()
        curl = printed[printed.index("curl ") : printed.index("\n\nfrom openai")]
        reply = subprocess.run(["bash", "-c", f"{curl} --silent"], capture_output=True, text=True, check=True).stdout
        assert orjson.loads(reply)["choices"][0]["message"]["content"]
        python = printed[printed.index("from openai") :]
        answer = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, check=True).stdout
        assert answer
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=10)
    assert process.returncode == 0
    assert time.monotonic() - started < 30
    key = tmp_path / ".mulgil/quickstart-key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.read_text().strip() in printed


def test_quickstart_with_embeddings_prints_a_call_for_them_too(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "mulgil", "quickstart", "--embeddings", "--engine=simulated", "--port=0"],
        cwd=tmp_path,
        env=ENVIRONMENT | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        printed = ""
        while "The sea is deep" not in printed:
            printed += process.stdout.readline()
        curl = printed[printed.rindex("curl ") :].rstrip()
        reply = subprocess.run(["bash", "-c", f"{curl} --silent"], capture_output=True, text=True, check=True).stdout
        assert [len(entry["embedding"]) for entry in orjson.loads(reply)["data"]] == [384, 384]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=10)
    assert process.returncode == 0


def test_a_port_that_is_taken_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = mulgil("serve", "--engine=simulated", "--insecure", f"--port={taken.getsockname()[1]}", cwd=tmp_path)
    assert done.returncode != 0
    assert "address already in use" in done.stderr
