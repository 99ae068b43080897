"""Gateways, Valkey, PostgreSQL and nginx on the loopback, as docker-compose.yml has them, without containers."""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from deployment import composed
from gatewayprocess import GatewayProcess, gateway_process
from harness import KEY, UNLIMITED, VLLM
from nginxserver import Nginx, nginx
from postgresserver import running as postgres_running
from storeservers import VALKEY, StoreServer
from storeservers import running as store_running

from mulgil.demo_model import prepare_demo_model
from mulgil.quickstart import cache_folder
from mulgil.settings import ENV_PREFIX

PASSWORD = "of-the-stack"
_LOADING = 300


@dataclass(frozen=True)
class Stack:
    """What runs.

    Attributes:
        front: the one that clients see.
        gateways: behind it.
        store: which they share.
        usage_url: of the database in which they keep what was used; None where that is another one than the stack's.
    """

    front: Nginx
    gateways: tuple[GatewayProcess, ...]
    store: StoreServer
    usage_url: str | None

    @property
    def url(self) -> str:
        return self.front.url


@asynccontextmanager
async def stack(*, engine: str = "simulated", gateways: int = 2, **settings: Any) -> AsyncGenerator[Stack]:
    """Runs it, until every gateway is ready; ends it in the other order.

    Args:
        engine: `simulated`, or `vllm` with the demo model.
        gateways: how many.
        settings: of the gateways, beside those of docker-compose.yml. Without a `usage_url` they keep usage in a
            PostgreSQL of the stack, or in one file where there is none for this machine.
    """
    with tempfile.TemporaryDirectory(prefix="mg-stack-") as name:
        folder = Path(name)
        services = _services(folder)
        async with AsyncExitStack() as running:
            store = running.enter_context(store_running(VALKEY, *services["valkey"]["command"][1:]))
            url = f"redis://:{PASSWORD}@127.0.0.1:{store.port}/0"
            usage_url = None if "usage_url" in settings else _usage_url(running, folder)
            chosen = _settings(services, engine) | {"redis_url": url, "config": UNLIMITED, "usage_url": usage_url}
            chosen |= settings
            started = []
            for number in range(gateways):
                (folder / str(number)).mkdir()
                chosen["state_folder"] = folder / str(number)
                process = gateway_process(folder / str(number), variables=_ENVIRONMENT[engine], **chosen)
                started.append(await running.enter_async_context(process))
            for gateway in started:
                await _until_ready(gateway)
            given = _given_to_nginx(services["nginx"]["environment"])
            front = await running.enter_async_context(nginx(*(str(one.address) for one in started), **given))
            yield Stack(front, tuple(started), store, usage_url)


_ENVIRONMENT: dict[str, Mapping[str, str]] = {
    "simulated": {},
    "vllm": {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"},
}


def _usage_url(running: AsyncExitStack, folder: Path) -> str:
    database = running.enter_context(postgres_running())
    return database.url() if database else f"sqlite:///{folder / 'usage.db'}"


def _services(folder: Path) -> Any:
    env = folder / "env"
    env.write_text(f"VALKEY_PASSWORD={PASSWORD}\n")
    return composed("simulated", env_file=str(env))["services"]


def _settings(services: Any, engine: str) -> dict[str, Any]:
    """What the gateway of docker-compose.yml is told, but for where it listens: all of them are on one machine here."""
    told = services["gateway-simulated"]["environment"]
    given = {
        name.removeprefix(ENV_PREFIX).lower(): value
        for name, value in told.items()
        if name.startswith(ENV_PREFIX) and not name.endswith(("HOST", "PORT"))
    }
    if engine == "vllm":
        model = prepare_demo_model(cache_folder(), lambda line: None)
        given |= {**VLLM, "model": model, "served_model_name": ",".join(VLLM["served_model_name"])}
    return given


def _given_to_nginx(told: Mapping[str, str]) -> dict[str, str]:
    ours = {"NGINX_SERVERS", "NGINX_LISTEN", "NGINX_ACCESS_LOG", "NGINX_ERROR_LOG", "NGINX_ENVSUBST_FILTER"}
    return {name: value for name, value in told.items() if name not in ours}


async def _until_ready(gateway: GatewayProcess) -> None:
    async with asyncio.timeout(_LOADING), httpx2.AsyncClient(base_url=gateway.url) as client:
        while (await client.get("/health/ready")).status_code != 200:
            assert gateway.popen.poll() is None, gateway.log.read_text()
            await asyncio.sleep(0.1)


async def _main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/stack", description=__doc__)
    parser.add_argument("--engine", choices=("simulated", "vllm"), default="simulated")
    parser.add_argument("--gateways", type=int, default=2)
    parser.add_argument(
        "--set", action="append", default=[], metavar="MULGIL_NAME=VALUE", help="a setting of the gateways"
    )
    parser.add_argument("command", nargs="*", help="run it, {url} filled in, and end; without one: until Ctrl-C")
    asked = parser.parse_args()
    settings = dict(one.removeprefix(ENV_PREFIX).split("=", 1) for one in asked.set)
    named = {name.lower(): value for name, value in settings.items()}
    async with stack(engine=asked.engine, gateways=asked.gateways, **named) as running:
        sys.stderr.write(f"{asked.gateways} gateways ({asked.engine}) behind {running.url}/v1, key {KEY}\n")
        if not asked.command:
            await asyncio.Event().wait()
        environment = os.environ | {"OPENAI_BASE_URL": f"{running.url}/v1", "OPENAI_API_KEY": KEY}
        words = [word.replace("{url}", running.url) for word in asked.command]
        process = await asyncio.create_subprocess_exec(*words, env=environment)
        return await process.wait()


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(_main()))
    except KeyboardInterrupt:
        sys.exit(130)
