"""A gateway that answers in place of an engine, as tests ask it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from harness import KEY, Server
from pydantic import SecretStr

from mulgil.engine.load import Load
from mulgil.engine.upstream import Upstream
from mulgil.upstreams import UpstreamOptions


class Elsewhere(Upstream):
    """With what else the contract of an engine looks at.

    Args:
        server: who answers.
        options: of the upstream, beside those that lead to the server.
    """

    def __init__(self, server: Server, **options: Any) -> None:
        given: dict[str, Any] = {"url": f"{server.url}/v1", "key": SecretStr(KEY)} | options
        super().__init__("elsewhere", UpstreamOptions(**given))
        self._server = server

    @property
    def max_model_len(self) -> int:
        return self._server.engine.max_model_len

    def load(self) -> Load:
        return Load(unfinished=self.running)


@asynccontextmanager
async def elsewhere(server: Server, **options: Any) -> AsyncGenerator[Elsewhere]:
    """*server* as an upstream."""
    upstream = Elsewhere(server, **options)
    try:
        yield upstream
    finally:
        await upstream.close()
