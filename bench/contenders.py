"""Who is compared: how each is started, with the same engine under all of them."""

import dataclasses
import json
import secrets
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from bench.load import Load, Measured
from bench.servers import ROOT, Server, free_port, running, serving
from mulgil.auth.keys import PREFIX, digest

MODEL = "bench"
MOST_STREAMS = 128
LITELLM_PROGRAM = ROOT / ".venvs/litellm/bin/litellm"
MULGIL, VLLM_SERVE, LITELLM, BARE_ENGINE = "Mulgil", "vllm serve", "LiteLLM", "bare engine"
STARLETTE, RAW = "bare Starlette", "no framework"
_LOAD_TIMEOUT = 300.0
_PLENTY = 10**9
_TIER = f"""\
[tiers.default]
requests_per_minute = {_PLENTY}
input_tokens_per_minute = {_PLENTY}
output_tokens_per_minute = {_PLENTY}
concurrent_requests = {_PLENTY}
"""
_ENGINE_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # the gateway sets it too, where the model runs eagerly
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
_ENGINE_ARGUMENTS = {
    "enforce_eager": True,
    "enable_chunked_prefill": False,
    "max_num_seqs": MOST_STREAMS,
    "served_model_name": MODEL,
    "shutdown_timeout": 10,
}


class Contender(Protocol):
    """Something that answers loads."""

    @property
    def name(self) -> str:
        """Who it is."""

    @property
    def server(self) -> Server:
        """The process whose work counts as its own."""

    def answer(self, load: Load) -> Measured:
        """Put *load* on it, and say what came of that; its port and keys are filled in."""


@dataclass(frozen=True)
class OverHttp:
    """A contender behind HTTP, asked by a load generator in a process of its own."""

    name: str
    server: Server
    port: int
    keys: tuple[str, ...] = ("none",)

    def answer(self, load: Load) -> Measured:
        self.server.check()
        asked = json.dumps(dataclasses.asdict(dataclasses.replace(load, port=self.port, keys=self.keys)))
        done = subprocess.run(
            [sys.executable, "-m", "bench.load", "-"],
            cwd=ROOT,
            input=asked,
            capture_output=True,
            text=True,
            timeout=_LOAD_TIMEOUT,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"the load on {self.name} failed: {done.stderr[-2_000:]}")
        return _measured(json.loads(done.stdout))


@dataclass(frozen=True)
class InProcess:
    """The bare engine, which puts loads on itself."""

    name: str
    server: Server

    def answer(self, load: Load) -> Measured:
        return _measured(self.ask(dataclasses.asdict(load)))

    def preparation(self, words: int, times: int) -> dict[str, float]:
        """Seconds of template and tokenizer for a prompt of *words*, and its tokens."""
        return self.ask({"preparation": {"words": words, "times": times}})

    def ask(self, question: dict[str, object]) -> dict[str, float]:
        """One line to it, and one back."""
        process = self.server.process
        assert process.stdin is not None
        process.stdin.write(json.dumps(question) + "\n")
        return _line(self.server)


@dataclass(frozen=True)
class KnownKeys:
    """API keys, and the file in which a gateway finds them."""

    keys: tuple[str, ...]
    file: Path

    @classmethod
    def made(cls, number: int, folder: Path) -> "KnownKeys":
        """New ones, each of a tenant of its own."""
        keys = tuple(f"{PREFIX}{secrets.token_hex(22)[:43]}" for _ in range(number))
        now = datetime.now(UTC).isoformat()
        records = (
            f'[[keys]]\nid = "key-{index}"\ndigest = "{digest(key.encode())}"\n'
            f'tenant = "tenant-{index}"\ncreated = {now}\n'
            for index, key in enumerate(keys)
        )
        file = folder / f"keys-{number}.toml"
        file.write_text("\n".join(records))
        return cls(keys, file)


@contextmanager
def mulgil(
    folder: Path,
    redis_url: str,
    known: KnownKeys,
    model: Path | None = None,
    more: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[OverHttp]:
    """The gateway with all its guards: keys, and all four budgets in Valkey, of key and tenant.

    Args:
        folder: where it runs.
        redis_url: of its Valkey.
        known: its keys.
        model: what it serves; None for the simulated engine.
        more: settings beside these.
    """
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    tiers = folder / "mulgil.toml"
    tiers.write_text(_TIER)
    settings = {
        "ENGINE": "vllm" if model else "simulated",
        "MODEL": str(model or MODEL),
        "SERVED_MODEL_NAME": MODEL,
        **({"MAX_NUM_SEQS": str(MOST_STREAMS)} if model else {}),
        "MAX_CONCURRENT_REQUESTS": "20000",
        "CONFIG": str(tiers),
        "REDIS_URL": redis_url,
        "KEYS_FILE": str(known.file),
        "RUN_FOLDER": str(folder / "run"),
        "STATE_FOLDER": str(folder / "state"),
        "LOG_LEVEL": "warning",
        "PORT": str(port),
        **more,
    }
    environment = _ENGINE_ENVIRONMENT | {f"MULGIL_{name}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "mulgil", "serve"]
    with serving(command, folder, port, path="/health/ready", environment=environment) as server:
        yield OverHttp(MULGIL, server, port, known.keys)


@contextmanager
def vllm_serve(folder: Path, model: Path) -> Iterator[OverHttp]:
    """vLLM's own server: no keys, no budgets, and no statistics or access log that could cost it anything."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", MODEL, "--enforce-eager"]
    command += ["--no-enable-chunked-prefill", "--max-num-seqs", str(MOST_STREAMS), "--disable-log-stats"]
    command += ["--disable-uvicorn-access-log", "--uvicorn-log-level", "warning"]
    with serving(command, folder, port, path="/health", environment=_ENGINE_ENVIRONMENT) as server:
        yield OverHttp(VLLM_SERVE, server, port)


@contextmanager
def litellm(folder: Path, behind: OverHttp) -> Iterator[OverHttp]:
    """LiteLLM's proxy in front of *behind*, with one key, and nothing else switched on."""
    port = free_port()
    key = "sk-bench-of-the-proxy"
    upstream = {"model": f"openai/{MODEL}", "api_base": f"http://127.0.0.1:{behind.port}/v1", "api_key": "none"}
    configuration = {
        "model_list": [{"model_name": MODEL, "litellm_params": upstream}],
        "general_settings": {"master_key": key},
        "litellm_settings": {"telemetry": False, "drop_params": False, "request_timeout": 300},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "litellm.json").write_text(json.dumps(configuration))
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "PYTHONPATH": ""}
    command = [str(LITELLM_PROGRAM), "--config", "litellm.json", "--host", "127.0.0.1", "--port", str(port)]
    with serving(command, folder, port, path="/health/liveliness", environment=environment) as server:
        yield OverHttp(LITELLM, server, port, (key,))


@contextmanager
def bare_engine(folder: Path, model: Path) -> Iterator[InProcess]:
    """`AsyncLLM.generate` without any server, and without statistics."""
    arguments = json.dumps({**_ENGINE_ARGUMENTS, "model": str(model), "disable_log_stats": True})
    command = [sys.executable, "-m", "bench.bare_engine", arguments]
    with running(command, folder, environment=_ENGINE_ENVIRONMENT, talks=True) as server:
        begun = time.monotonic()
        _line(server)
        server.started_in = time.monotonic() - begun
        yield InProcess(BARE_ENGINE, server)


@contextmanager
def ready_made(folder: Path) -> Iterator[OverHttp]:
    """Starlette with ready-made bytes."""
    port = free_port()
    command = [sys.executable, "-m", "bench.ready_made", str(port)]
    with serving(command, folder, port, path="/health") as server:
        yield OverHttp(STARLETTE, server, port)


@contextmanager
def raw_answers(folder: Path) -> Iterator[OverHttp]:
    """What shows the ceiling of the load generator."""
    port = free_port()
    command = [sys.executable, "-m", "bench.raw_answers", str(port)]
    with serving(command, folder, port, path="/health") as server:
        yield OverHttp(RAW, server, port)


def _line(server: Server, timeout: float = _LOAD_TIMEOUT) -> dict[str, float]:
    """The next line that it says."""
    assert server.process.stdout is not None
    ready, _, _ = select.select([server.process.stdout], [], [], timeout)
    if not ready:
        raise TimeoutError(f"nothing came from {server.process.args!r} for {timeout:.0f} s")
    if not (line := server.process.stdout.readline()):
        server.process.wait(30)
        server.check()
    found: dict[str, float] = json.loads(line)
    return found


def _measured(found: Mapping[str, object]) -> Measured:
    return Measured(**found)  # type: ignore[arg-type]  # it was one before it was JSON
