"""What a model says of itself in its files, where they are on this machine."""

import json
from pathlib import Path
from typing import Any

_OF_LANGUAGE = ("text_config", "llm_config", "language_config")


def config_of(model: str) -> dict[str, Any]:
    """What *model* says of itself in its `config.json`; empty where that is not on this machine."""
    path = Path(model) / "config.json"
    if not path.is_file():
        path = downloaded(model)
    try:
        read = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def model_config(model: str) -> dict[str, Any]:
    """What *model* says of its language model in its `config.json`; empty where that is not on this machine."""
    read = config_of(model)
    inner = (read[name] for name in _OF_LANGUAGE if isinstance(read.get(name), dict))
    return dict(next(inner, read))


def downloaded(model: str) -> Path:
    """Where the Hub's client has put its `config.json`; a path that does not exist where it has not, or is missing."""
    try:
        from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - comes with vLLM
        from huggingface_hub.errors import HFValidationError  # noqa: PLC0415 - as above
    except ImportError:
        return Path(model) / "config.json"
    try:
        found = try_to_load_from_cache(model, "config.json")
    except HFValidationError:  # a folder that does not exist
        found = None
    return Path(found) if isinstance(found, str) else Path(model) / "config.json"
