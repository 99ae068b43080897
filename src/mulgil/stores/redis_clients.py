"""From a URL to a client: standalone, Sentinel or Cluster; TCP, TLS or a Unix socket; user and password."""

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

SCHEMES = "redis://, rediss://, unix://, redis+sentinel://, rediss+sentinel://, redis+cluster://, rediss+cluster://"

_DEFAULT_PORTS = {"": 6379, "sentinel": 26379, "cluster": 6379}


@dataclass(frozen=True)
class Connected:
    """A client, which connects when it is first used.

    Attributes:
        client: runs commands.
        secrets: parts of the URL that nobody may read in a message.
        sentinels: clients of the Sentinels; to be closed too.
    """

    client: "Redis | RedisCluster"
    secrets: tuple[str, ...] = ()
    sentinels: "list[Redis]" = field(default_factory=list)

    async def close(self) -> None:
        """Close every connection."""
        await self.client.aclose()
        if isinstance(self.client, RedisCluster):
            # After an error the client thinks that it has nothing open, and closes nothing.
            await self.client.nodes_manager.aclose()
            await self.client.nodes_manager.aclose("startup_nodes")
        for sentinel in self.sentinels:
            await sentinel.aclose()


def connect(url: str, *, connections: int, timeout: float) -> Connected:
    """The client that *url* asks for.

    Args:
        url: one of `SCHEMES`. Several hosts are separated by commas; `redis+sentinel` has the service's
            name as its path, its database as `?db=`, and `sentinel_username` and `sentinel_password` for
            the Sentinels themselves. Options of TLS are those of redis-py (`?ssl_ca_certs=…`).
        connections: most connections to one server.
        timeout: of a whole step; a part of it is spent on one server where others could be asked too.

    Raises:
        ValueError: not such a URL. The message does not repeat it.
    """
    scheme, _, kind = urlsplit(url).scheme.partition("+")
    if scheme not in ("redis", "rediss", "unix") or kind not in _DEFAULT_PORTS or (scheme == "unix" and kind):
        raise ValueError(f"the URL of the budget store must begin with one of {SCHEMES}")
    hosts = _hosts(url, _DEFAULT_PORTS[kind]) if scheme != "unix" else []
    options = _options(url, scheme)
    secrets = tuple(str(value) for name, value in options.items() if name.endswith(("username", "password")) and value)
    common: dict[str, Any] = {
        "max_connections": connections,
        # A step that failed may have happened; only those who know whether it may be repeated repeat it.
        "retry": Retry(NoBackoff(), 0),
        # Two round trips less for each new connection.
        "protocol": 2,
        "driver_info": None,
        # The whole step has a deadline; one for each read costs more than it brings.
        "socket_timeout": None,
        "socket_connect_timeout": None,
    }
    if kind == "cluster":
        return Connected(_cluster(hosts, scheme, options | common, timeout), secrets)
    if kind == "sentinel":
        service = unquote(urlsplit(url).path.strip("/"))
        if not service:
            raise ValueError("the URL of a Sentinel must end with the name of the service")
        sentinel, client = _sentinel(hosts, scheme, service, options | common, timeout)
        return Connected(client, secrets, sentinel.sentinels)
    return Connected(Redis.from_pool(ConnectionPool(**options | common)), secrets)


def _hosts(url: str, default_port: int) -> list[tuple[str, int]]:
    try:
        parts = [urlsplit(f"//{part}") for part in urlsplit(url).netloc.rpartition("@")[2].split(",")]
        return [(part.hostname or "localhost", part.port or default_port) for part in parts]
    except ValueError:
        raise ValueError("the URL of the budget store has a bad host or port") from None


def _options(url: str, scheme: str) -> dict[str, Any]:
    """What a URL of one host with the same user, path and query says to redis-py."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    single = parts._replace(scheme=scheme, netloc=user + at + hosts.split(",")[0])
    options = dict(parse_url(single.geturl()))
    options.pop("retry_on_timeout", None)
    return options


def _cluster(hosts: list[tuple[str, int]], scheme: str, options: dict[str, Any], timeout: float) -> RedisCluster:
    for name in ("host", "port", "db", "connection_class"):
        options.pop(name, None)
    # The client looks for a new primary only after an error that it noticed itself, hence before ours.
    options |= {"socket_timeout": timeout * 0.75, "socket_connect_timeout": timeout * 0.75}
    nodes = [ClusterNode(host, port) for host, port in hosts]
    # After each few slots that moved it would close all connections, those in use too; 0 is never.
    return RedisCluster(startup_nodes=nodes, ssl=scheme == "rediss", reinitialize_steps=0, **options)


def _sentinel(
    hosts: list[tuple[str, int]], scheme: str, service: str, options: dict[str, Any], timeout: float
) -> "tuple[Sentinel, Redis]":
    for name in ("host", "port", "connection_class"):
        options.pop(name, None)
    options["ssl"] = scheme == "rediss"
    # A Sentinel that does not answer leaves time to ask the next one.
    patience = timeout / (len(hosts) + 1)
    for_sentinels = {name: value for name, value in options.items() if name.startswith("ssl")} | {
        "username": options.pop("sentinel_username", None),
        "password": options.pop("sentinel_password", None),
        "retry": options["retry"],
        "protocol": options["protocol"],
        "driver_info": None,
        "socket_timeout": patience,
        "socket_connect_timeout": patience,
    }
    sentinel = Sentinel(hosts, sentinel_kwargs=for_sentinels)  # type: ignore[no-untyped-call]  # untyped in redis-py
    return sentinel, sentinel.master_for(service, **options)
