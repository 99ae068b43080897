"""A process: the objects it consists of, and its life."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from mulgil.admission.lease import Leases
from mulgil.answers.answering import Answers
from mulgil.auth.source import KeyChain
from mulgil.embedders import Embeddings
from mulgil.engine.base import Engine
from mulgil.engine.lora_registry import AdapterRegistry
from mulgil.engine.supervisor import Health, Supervisor
from mulgil.gateway import Gateway
from mulgil.kept import KeptStreams
from mulgil.ledgers import Usage
from mulgil.loop_lag import LoopLag
from mulgil.metrics_port import MetricsPort
from mulgil.stores.guard import GuardedStore
from mulgil.telemetry.traces import Tracing


class Closeable(Protocol):
    """What holds connections."""

    async def close(self) -> None:
        """Let go of them."""
        ...


@dataclass(frozen=True, slots=True)
class Mulgil:
    """The objects of one process."""

    app: FastAPI
    supervisor: Supervisor[Engine]
    adapters: AdapterRegistry
    upstreams: Mapping[str, Closeable]
    gateway: Gateway
    answers: Answers
    streams: KeptStreams
    embeddings: Embeddings | None
    keys: KeyChain
    leases: Leases
    store: GuardedStore
    lag: LoopLag
    usage: Usage
    registry: CollectorRegistry
    tracing: Tracing | None
    metrics_port: MetricsPort | None

    @property
    def health(self) -> Health:
        """The engine's state, and that of a server which will end soon."""
        state = self.supervisor.health
        return Health("stopped", "The server is shutting down.", state.since) if self.gateway.leaving else state

    @property
    def running(self) -> int:
        """Requests that are not settled yet."""
        return self.gateway.running + (self.embeddings.gateway.running if self.embeddings else 0)

    async def until_ready(self) -> None:
        """Wait until requests can be answered: for chat, and for embeddings unless they cannot be had."""
        await self.supervisor.until_ready()
        if self.embeddings:
            await self.embeddings.supervisor.until_loaded()

    async def drain(self) -> None:
        """Take nothing on any more, end what runs, and wait until it is settled."""
        await self.gateway.drain()
        await self.answers.drain()
        if self.embeddings:
            await self.embeddings.gateway.drain()


@asynccontextmanager
async def running(mulgil: Mulgil) -> AsyncGenerator[None]:
    """The life of a process: what is started is ended in the other order, each part whatever the others do."""
    async with AsyncExitStack() as closings:
        if mulgil.tracing is not None:
            closings.push_async_callback(asyncio.to_thread, mulgil.tracing.close)
        if mulgil.metrics_port is not None:
            closings.push_async_callback(mulgil.metrics_port.stop)
            mulgil.metrics_port.start()
        closings.push_async_callback(mulgil.lag.stop)
        closings.push_async_callback(mulgil.store.close)
        closings.push_async_callback(mulgil.answers.close)
        closings.push_async_callback(mulgil.keys.close)
        closings.push_async_callback(mulgil.supervisor.stop)
        for upstream in mulgil.upstreams.values():
            closings.push_async_callback(upstream.close)
        if mulgil.embeddings:
            closings.push_async_callback(mulgil.embeddings.supervisor.stop)
        closings.push_async_callback(mulgil.usage.ledger.close)
        closings.push_async_callback(mulgil.leases.drain)
        closings.push_async_callback(mulgil.drain)
        closings.push_async_callback(mulgil.streams.close)
        mulgil.lag.start()
        mulgil.supervisor.start()
        if mulgil.embeddings:
            mulgil.embeddings.supervisor.start()
        mulgil.leases.start()
        mulgil.usage.ledger.start()
        mulgil.keys.start()
        yield
