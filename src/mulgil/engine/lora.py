"""LoRA adapters on disk: what one is, and what makes a folder one that may be loaded."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mulgil.errors import InvalidFieldError
from mulgil.tiers import NAME_PATTERN

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PICKLED = ("adapter_model.bin", "adapter_model.pt")
_LONGEST_CONFIG = 1024 * 1024
_LONGEST_HEADER = 100_000_000  # of a safetensors file, by its format


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter.

    Attributes:
        name: under which it is served.
        path: of its folder, without symbolic links.
        version: a digest of its files; other weights have another one, wherever they lie.
    """

    name: str
    path: Path
    version: str


@dataclass(frozen=True, slots=True)
class AdapterRules:
    """Which adapters an engine can have.

    Attributes:
        enabled: whether it can have any.
        folders: in which those lie that may be loaded while it runs.
        most: at a time.
        max_rank: highest rank.
    """

    enabled: bool = False
    folders: tuple[Path, ...] = ()
    most: int = 4
    max_rank: int = 16


NO_ADAPTERS = AdapterRules()


def read_adapter(name: str, path: Path, rules: AdapterRules, *, anywhere: bool = False) -> Adapter:
    """The adapter in the folder *path*, if it may be loaded; reads all of it, so it blocks for as long.

    Args:
        name: under which it is to be served.
        path: of the folder.
        rules: for the folders, unless it may lie *anywhere*, and the rank.
        anywhere: whether it is the operator's own word that it is to be loaded.

    Raises:
        InvalidFieldError: it may not, or cannot; names `name` or `path`, and the reason.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise InvalidFieldError(
            "Invalid 'name': expected 1 to 64 letters, digits, dots, hyphens and underscores, the first one a letter "
            "or a digit.",
            param="name",
            code="invalid_value",
        )
    try:
        folder = _allowed(path, rules, anywhere=anywhere)
        if not folder.is_dir():
            raise refused(f"there is no folder '{path}'")
        # What a link leads to is read, so that must be allowed too.
        config, weights = (_allowed(folder / file, rules, anywhere=anywhere) for file in (CONFIG, WEIGHTS))
        _check_files(folder, config, weights)
        _check_config(config, rules.max_rank)
        _check_weights(weights, rules.max_rank)
        return Adapter(name, folder, _digest(config, weights))
    except OSError as error:
        raise refused(f"the folder cannot be read: {error.strerror}") from error


def check_unchanged(adapter: Adapter) -> None:
    """Refuse *adapter* if its files are not what they were when it was read; reads all of it once more.

    For an engine that has read them meanwhile: what it has is then the version that it is said to be.

    Raises:
        InvalidFieldError: they are not.
    """
    try:
        unchanged = _digest(adapter.path / CONFIG, adapter.path / WEIGHTS) == adapter.version
    except OSError:
        unchanged = False
    if not unchanged:
        raise refused("its files changed while they were loaded")


def refused(reason: str) -> InvalidFieldError:
    """The error for a folder that cannot be loaded."""
    return InvalidFieldError(f"Invalid 'path': {reason.rstrip('.')}.", param="path", code="invalid_value")


def _allowed(path: Path, rules: AdapterRules, *, anywhere: bool) -> Path:
    """*path* without `..` and symbolic links, if what is there may be read."""
    if not path.is_absolute() or "\0" in str(path):
        raise refused("expected an absolute path")
    try:
        found = path.resolve()
    except RuntimeError:  # links in a circle
        raise refused("it leads nowhere") from None
    if not (anywhere or any(found.is_relative_to(folder.resolve()) for folder in rules.folders)):
        # Said before anything is said of what is there, which is nobody's business.
        raise refused("it is not within one of the folders from which adapters may be loaded ('adapter_folders')")
    return found


def _check_files(folder: Path, config: Path, weights: Path) -> None:
    for file in _PICKLED:
        if (folder / file).exists():
            raise refused(f"it has a '{file}', which is a pickle and can run code: only safetensors are loaded")
    for name, found in ((CONFIG, config), (WEIGHTS, weights)):
        if not found.is_file():
            raise refused(f"it has no file '{name}'")


def _check_config(path: Path, max_rank: int) -> None:
    with path.open("rb") as file:
        text = file.read(_LONGEST_CONFIG + 1)
    if len(text) > _LONGEST_CONFIG:
        raise refused(f"its {CONFIG} is larger than {_LONGEST_CONFIG} bytes")
    config = _json(text, CONFIG)
    if config.get("peft_type", "LORA") != "LORA":
        raise refused(f"its {CONFIG} says that it is no LoRA adapter ('peft_type')")
    patterns = config.get("rank_pattern") or {}
    if not isinstance(patterns, dict):
        raise refused(f"'rank_pattern' in its {CONFIG} is no object")
    for rank in (config.get("r"), *patterns.values()):
        if type(rank) is not int or rank < 1:
            raise refused(f"its {CONFIG} has no rank ('r') that is a positive integer")
        _check_rank(rank, max_rank)
    alpha = config.get("lora_alpha")
    if type(alpha) not in (int, float):
        raise refused(f"'lora_alpha' in its {CONFIG} is no number")
    modules = config.get("target_modules")
    if not modules or not isinstance(modules, (str, list)):
        raise refused(f"'target_modules' in its {CONFIG} is neither a list nor a text")


def shapes_in(weights: Path) -> dict[str, list[int]]:
    """The shapes of the tensors in a safetensors file, by name: the format has them in front of the weights.

    Raises:
        InvalidFieldError: it is none.
        OSError: it cannot be read.
    """
    with weights.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(_LONGEST_HEADER, weights.stat().st_size - 8):
            raise refused(f"its {WEIGHTS} is no safetensors file")
        header = _json(file.read(length), WEIGHTS)
    shapes = {}
    for name, told in header.items():
        if name == "__metadata__":
            continue
        shape = told.get("shape") if isinstance(told, dict) else None
        if not isinstance(shape, list) or not all(type(size) is int for size in shape):
            raise refused(f"its {WEIGHTS} is no safetensors file")
        shapes[name] = shape
    return shapes


def _check_weights(path: Path, max_rank: int) -> None:
    shapes = shapes_in(path)
    if not any(".lora_" in name for name in shapes):
        raise refused(f"its {WEIGHTS} has no LoRA weights")
    for name, shape in shapes.items():
        # Those of experts may be many in one tensor.
        if name.endswith(".lora_A.weight") and shape and ".experts" not in name:
            _check_rank(shape[0], max_rank)


def _check_rank(rank: int, max_rank: int) -> None:
    if rank > max_rank:
        raise refused(f"its rank is {rank}, and the highest that may be loaded is {max_rank} ('max_lora_rank')")


def _json(text: bytes, file: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise refused(f"its {file} cannot be understood") from None
    if not isinstance(found, dict):
        raise refused(f"its {file} cannot be understood")
    return found


def _digest(*files: Path) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, hashlib.blake2b).digest())
    return digest.hexdigest()
