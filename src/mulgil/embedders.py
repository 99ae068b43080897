"""The composition root's part for embeddings: builds the embedder that the settings name, and its watch."""

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from mulgil.admission.lease import Leases
from mulgil.embedding import EmbeddingGateway
from mulgil.engine.embedding import Embedder
from mulgil.engine.remote_embedding import RemoteEmbedder
from mulgil.engine.simulated_embedding import SimulatedEmbedder
from mulgil.engine.supervisor import Patience, Supervisor
from mulgil.errors import EngineUnavailableError
from mulgil.ledger.base import Ledger
from mulgil.settings import Settings
from mulgil.tiers import Tier

_REMOTE_CHECKS_ARE_RARER = 5  # each is a request over the network


@dataclass(frozen=True, slots=True)
class Embeddings:
    """What serves embeddings in one process. Its failures are its own: chat goes on without it."""

    supervisor: Supervisor[Embedder]
    gateway: EmbeddingGateway


def build_embeddings(
    settings: Settings,
    leases: Leases,
    tiers: Mapping[str, Tier],
    ledger: Ledger,
    *,
    after: Callable[[], Awaitable[None]],
) -> Embeddings | None:
    """What the settings ask for; None where they ask for no embeddings.

    Args:
        settings: the configuration.
        leases: where budgets are taken.
        tiers: by name.
        ledger: takes what was used.
        after: returns when the chat engine has loaded; two that measure free memory at once would mismeasure.
    """
    if not settings.embedding_names:
        return None
    interval = settings.engine_check_interval * (_REMOTE_CHECKS_ARE_RARER if settings.embeddings_url else 1)
    supervisor = Supervisor(
        lambda: _build_embedder(settings, after),
        patience=Patience(interval, hung=settings.engine_hung_timeout, rebuilds=settings.engine_rebuilds),
        on_failed=lambda: None,
        name="embedding engine",
    )
    gateway = EmbeddingGateway(supervisor.engine, settings.embedding_names, leases, tiers, ledger)
    return Embeddings(supervisor, gateway)


def check_embeddings_engine_args(settings: Settings) -> None:
    """Let vLLM's own list judge `embeddings_engine_args`; slow, since vLLM is imported for it.

    Raises:
        ValueError: vLLM does not have one of them, or is not installed.
    """
    if settings.embeddings_engine_args and settings.engine == "vllm":
        try:
            importlib.import_module("mulgil.engine.vllm.pooling").VLLMEmbedder(settings, settings.engine_run_folder)
        except ImportError as error:
            raise ValueError(f"embeddings_engine_args cannot be checked without vLLM: {error}") from error


async def _build_embedder(settings: Settings, after: Callable[[], Awaitable[None]]) -> Embedder:
    if settings.embeddings_url:
        key = settings.embeddings_api_key
        return RemoteEmbedder(
            settings.embeddings_url,
            model=settings.embedding_names[0],
            api_key=key.get_secret_value() if key else None,
            timeout=settings.embeddings_timeout,
        )
    if settings.engine == "simulated":
        return SimulatedEmbedder()
    await after()
    try:
        # Here and in a thread, as for the chat engine.
        adapter = await asyncio.to_thread(importlib.import_module, "mulgil.engine.vllm.pooling")
        embedder: Embedder = adapter.VLLMEmbedder(settings, settings.engine_run_folder)
    except (ImportError, ValueError) as error:
        raise EngineUnavailableError(f"The embedding model cannot be loaded: {error}") from error
    return embedder
