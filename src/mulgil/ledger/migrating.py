"""Brings a database to the newest tables."""

import asyncio
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection
from sqlalchemy.engine import URL

from mulgil.ledger.connecting import connect, connect_blocking, is_sqlite

_STEPS = Path(__file__).parent / "migrations"
_LOCK = 0x6D756C67696C  # "mulgil"


def migrate(url: URL, timeout: float) -> None:
    """Take the steps that are missing; of several gateways that start at once, one takes them.

    Blocks, and wants a thread without an event loop: Alembic reads files and knows no `await`.

    Args:
        url: the database; the folder of a file is made when it is missing.
        timeout: seconds for connecting and for each statement.

    Raises:
        Exception: whatever the driver or Alembic raises.
    """
    if not is_sqlite(url):
        asyncio.run(_migrate_postgres(url, timeout))
        return
    Path(url.database or "").absolute().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    engine = connect_blocking(url, timeout)
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            _upgrade(connection)
    finally:
        engine.dispose()


async def _migrate_postgres(url: URL, seconds: float) -> None:
    engine = connect(url, seconds)
    try:
        async with engine.begin() as connection:
            await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
            await connection.run_sync(_upgrade)
    finally:
        await engine.dispose()


def _upgrade(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(_STEPS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
