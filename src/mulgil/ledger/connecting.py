"""How the databases are reached."""

import importlib.util
import sqlite3
import time
from functools import partial
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

_SOON = 0.01
_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+asyncpg",
    "postgresql": "postgresql+asyncpg",
    "postgresql+asyncpg": "postgresql+asyncpg",
}


def checked(text: str) -> URL:
    """The URL that *text* is, with the driver that we use.

    Raises:
        ValueError: it is for neither database, or the driver is not installed. The message does not repeat it.
    """
    try:
        url = make_url(text)
        driver = _DRIVERS[url.drivername]
    except (ArgumentError, ValueError, KeyError):
        raise ValueError("the URL of the usage database must begin with sqlite:/// or postgresql://") from None
    if driver.startswith("sqlite") and (url.host or url.database in (None, "", ":memory:")):
        raise ValueError(
            "the URL of the usage database must name a file: sqlite:///usage.db, sqlite:////var/lib/usage.db"
        )
    if driver.endswith("asyncpg"):
        if importlib.util.find_spec("asyncpg") is None:
            raise ValueError("for usage in PostgreSQL asyncpg is needed: pip install 'mulgil[postgres]'")
        if mode := url.query.get("sslmode"):  # libpq's word; the driver's is another
            url = url.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})
    return url.set(drivername=driver)


def connect(url: URL, timeout: float) -> AsyncEngine:
    """An engine for *url*, of which connecting and each statement may take *timeout* seconds."""
    if is_sqlite(url):
        engine = create_async_engine(url, connect_args={"timeout": timeout})
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        return engine
    limits = {"timeout": timeout, "command_timeout": timeout}
    return create_async_engine(
        url,
        pool_size=2,
        max_overflow=2,
        pool_timeout=timeout,
        pool_pre_ping=True,
        connect_args=limits | {"server_settings": {"application_name": "mulgil"}},
    )


def connect_blocking(url: URL, timeout: float) -> Engine:
    """An engine for the SQLite file of *url* that works without an event loop."""
    engine = create_engine(url.set(drivername="sqlite"), connect_args={"timeout": timeout})
    event.listen(engine, "connect", partial(_prepare_new_sqlite, timeout))
    return engine


def is_sqlite(url: URL) -> bool:
    """Whether it is a file."""
    return url.get_backend_name() == "sqlite"


def _prepare_new_sqlite(timeout: float, connection: Any, record: Any) -> None:
    """The first one switches the file to its log, for which SQLite does not wait as it does for a statement."""
    until = time.monotonic() + timeout
    while True:
        try:
            return _prepare_sqlite(connection, record)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(_SOON)


def _prepare_sqlite(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")  # readers and the writer do not wait for each other
    cursor.execute("PRAGMA synchronous=FULL")  # what is committed outlives a power cut
    cursor.close()
