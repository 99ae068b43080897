"""Mulgil on Ray Serve: each replica is one gateway with its engine, and replicas share Redis (docs/scale.md).

`deploy/ray/serve.yaml` names `application` and `ByWaiting`; nothing else imports Ray.
"""

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import SecretStr
from ray import serve
from ray._private import worker
from ray.exceptions import RayError
from ray.serve.config import AutoscalingContext
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mulgil.app import build
from mulgil.server import START_FAILED
from mulgil.settings import Settings, unknown_variables
from mulgil.telemetry import logs

log = logging.getLogger(__name__)

_STOPPING = 30.0
"""Seconds after `shutdown_grace` in which a replica must have settled everything and ended its engine."""
_LAST_WORDS = 0.3
"""Seconds that the last event of a stream may be under way through Ray's proxy."""
_LOOK = 0.05


@serve.deployment(name="Mulgil", health_check_period_s=2, health_check_timeout_s=30)
@serve.ingress()  # the application is made in the replica's own process, by __serve_build_asgi_app__
class Replica:
    """One gateway, in an actor of its own.

    Args:
        given: settings by name; the environment has the others.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._settings = settings_of(given)
        logs.configure(self._settings.log_level, self._settings.log_format)
        self._failed = asyncio.Event()
        self._mulgil = build(self._settings, on_engine_failed=self._failed.set)
        self._actor = _Actor()
        self._watching: asyncio.Task[None] | None = None

    def __serve_build_asgi_app__(self) -> FastAPI:
        """What Ray Serve sends requests to, and whose life it begins and ends."""
        self._mulgil.app.add_middleware(_BehindRay)
        return self._mulgil.app

    async def check_health(self) -> None:
        """Ray asks once before it sends requests, and waits for the answer; then every few seconds.

        Raises:
            RuntimeError: this replica must be replaced.
        """
        if self._watching is None:
            ready = asyncio.create_task(self._mulgil.until_ready())
            failed = asyncio.create_task(self._failed.wait())
            await asyncio.wait({ready, failed}, return_when=asyncio.FIRST_COMPLETED)
            ready.cancel()
            failed.cancel()
        health = self._mulgil.health
        if health.state == "failed":
            raise RuntimeError(health.reason)
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What `ByWaiting` decides by."""
        queue = self._mulgil.gateway.queue
        return {
            "waiting": queue.waiting,
            "running": queue.turns_in_use,
            "turns": self._settings.max_concurrent_requests,
        }

    async def _make_way(self) -> None:
        """End, so that Ray starts another and sends requests elsewhere meanwhile; who is here gets an error to read."""
        log.error("this replica ends: %s", self._mulgil.supervisor.health.reason)
        self._actor.turn_away()
        await self._mulgil.drain()
        await self._mulgil.leases.drain()
        await asyncio.sleep(_LAST_WORDS)
        await self._mulgil.supervisor.stop()
        os._exit(START_FAILED)

    async def _watch(self) -> None:
        """See to it that no request is sent to an engine that has died, and that none is cut off at the end."""
        while not self._actor.is_to_end:
            if self._mulgil.health.state == "failed":
                await self._make_way()
            await asyncio.sleep(_LOOK)
        # Ray waits until no request runs, and kills in the end: what outlives the grace period gets an error instead.
        self._mulgil.gateway.leaving = True
        await asyncio.sleep(self._settings.shutdown_grace)
        await self._mulgil.drain()


class ByWaiting:
    """How many replicas there should be. Ray applies the bounds and delays of `autoscaling_config` to the answer.

    More, when more requests wait for their turn than a replica should have waiting; one less, when none waits and the
    others would have turns to spare.

    Args:
        waiting: requests that may wait in each replica, on average.
        fullness: share of the turns that may be in use after a replica has left.
    """

    def __init__(self, waiting: float = 4.0, fullness: float = 0.7) -> None:
        self._waiting = waiting
        self._fullness = fullness

    def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        """The number, and nothing to remember."""
        told = context.aggregated_metrics or {}
        waiting, running, turns = (sum(told.get(name, {}).values()) for name in ("waiting", "running", "turns"))
        replicas = context.current_num_replicas
        if not replicas or not turns:
            return context.target_num_replicas, {}
        if (over := waiting / (self._waiting * replicas)) > 1:
            return replicas * min(over, 2.0), {}
        if not waiting and running <= self._fullness * turns * (replicas - 1) / replicas:
            return replicas - 1, {}
        return context.target_num_replicas, {}


def application(args: dict[str, Any]) -> serve.Application:
    """What a Serve config names as its `import_path`.

    Args:
        args: settings by name; those that are missing come from the replica's environment.

    Raises:
        ValueError: they cannot be served.
    """
    settings = settings_of(args)
    # Ray holds back what is beyond this, and tells nobody when to come again; our own queue does. Readers of kept
    # streams and sockets count too.
    ongoing = 2 * (settings.max_concurrent_requests + settings.max_queued_requests)
    deployment: Any = Replica  # Ray's decorator has made a deployment of the class
    bound: serve.Application = deployment.options(
        max_ongoing_requests=ongoing, graceful_shutdown_timeout_s=settings.shutdown_grace + _STOPPING
    ).bind(args)
    return bound


def settings_of(given: Mapping[str, Any]) -> Settings:
    """The settings of a replica.

    An engine that fails is not rebuilt unless `engine_rebuilds` says so: Ray starts another replica and sends requests
    to the others meanwhile, where one that rebuilds its engine would keep them waiting.

    Raises:
        ValueError: they cannot be served, or one of those *given* is a secret.
    """
    if unknown := sorted({*given} - {*Settings.model_fields}) or unknown_variables():
        raise ValueError(f"no such setting: {', '.join(unknown)}")
    settings = Settings(**given)
    for name in given:
        if _is_secret(getattr(settings, name)):
            raise ValueError(
                f"'{name}' is secret, and Ray logs and keeps arguments: set MULGIL_{name.upper()} on its nodes"
            )
    if "engine_rebuilds" not in settings.model_fields_set:
        settings = settings.model_copy(update={"engine_rebuilds": 0})
    settings.check()
    return settings


class _BehindRay:
    """What is different behind Ray's proxy.

    It adds an `x-request-id` of its own in any case; our access log has both. And where a client hangs up, what should
    say so may fail instead.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_or_gone() -> Message:
            try:
                return await receive()
            except RayError:
                return {"type": f"{scope['type']}.disconnect"}

        async def send_without_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                del MutableHeaders(scope=message)["x-request-id"]
            await send(message)

        await self._app(scope, receive_or_gone, send_without_id)


def _is_secret(value: Any) -> bool:
    return isinstance(value, SecretStr) or (isinstance(value, tuple) and any(map(_is_secret, value)))


class _Actor:
    """What Ray Serve 2.60 knows of the replica in this process, and has no public word for.

    A replica's code is neither told that it is to end, nor can it turn requests away so that Ray sends them elsewhere.
    """

    @property
    def is_to_end(self) -> bool:
        """Whether Ray has begun to end it: it sends no more requests, and waits for those that run."""
        return any(one._shutting_down for one in self._found())  # noqa: SLF001 - see above

    def turn_away(self) -> None:
        """Let it accept no more requests; Ray gives them to another replica."""
        for one in self._found():
            one._quiescing = True  # noqa: SLF001 - see above

    def _found(self) -> list[Any]:
        actors = worker.global_worker.actors.values()
        return [actor._replica_impl for actor in actors if hasattr(actor, "_replica_impl")]  # noqa: SLF001 - see above
