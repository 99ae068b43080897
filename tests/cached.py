"""Gateways whose answers are kept, and an engine that counts what it is asked for."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness import MODEL, UNLIMITED, Server, serving, settings

from mulgil.engine.base import Prepared
from mulgil.engine.simulated import SimulatedEngine
from mulgil.engine.snapshot import Snapshot

MODEL_TABLE = f"\n[models.{MODEL}]\ncache = true\n"


class Counting(SimulatedEngine):
    """Counts generations."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.generations = 0

    async def generate(self, prepared: Prepared) -> AsyncGenerator[Snapshot]:
        self.generations += 1
        async for snapshot in super().generate(prepared):
            yield snapshot


def cached_config(folder: Path, tiers: str | None = None) -> Path:
    """A `mulgil.toml` with these tiers, none of them limited by default, that keeps the model's answers."""
    path = folder / "mulgil.toml"
    path.write_text((UNLIMITED.read_text() if tiers is None else tiers) + MODEL_TABLE)
    return path


@asynccontextmanager
async def cached(
    folder: Path, *, engine: SimulatedEngine | None = None, tiers: str | None = None, **changes: Any
) -> AsyncGenerator[Server]:
    """A gateway that keeps answers."""
    given = engine or Counting()

    async def build() -> SimulatedEngine:
        return given

    async with serving(settings(config=cached_config(folder, tiers), **changes), engine=build) as server:
        yield server


def generations(server: Server) -> int:
    """How many the engine was asked for."""
    assert isinstance(server.engine, Counting)
    return server.engine.generations
