"""The settings of LoRA adapters."""

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_settings import NoDecode

from mulgil.settings.groups import Group, from_commas

Folders = Annotated[tuple[Path, ...], NoDecode, BeforeValidator(from_commas)]


class AdapterSettings(Group):
    """LoRA adapters: small weights on top of the model's, each served under a name of its own (docs/variants.md)."""

    adapter_folders: Folders = ()
    """Folders from which the admin API may load adapters. Default: none may be loaded while the server runs; those in
    `mulgil.toml` are loaded at the start."""
    max_adapters: int = Field(default=4, ge=1, le=1_000)
    """Most adapters at a time. The engine keeps room for as many of the highest rank."""
    max_lora_rank: int = Field(default=16, ge=1, le=512)
    """Highest rank that an adapter may have."""
