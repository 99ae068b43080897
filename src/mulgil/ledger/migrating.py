"""Brings a database to the newest tables."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine

_STEPS = Path(__file__).parent / "migrations"
_LOCK = 0x6D756C67696C  # "mulgil"


async def migrate(connect: Callable[[], AsyncEngine]) -> None:
    """Take the steps that are missing; of several gateways that start at once, one takes them.

    In a thread with a loop and an engine of its own, since Alembic reads files and works without `await`.

    Args:
        connect: makes an engine.

    Raises:
        Exception: whatever the driver or Alembic raises.
    """
    await asyncio.to_thread(lambda: asyncio.run(_upgraded(connect)))


async def _upgraded(connect: Callable[[], AsyncEngine]) -> None:
    engine = connect()
    try:
        async with engine.begin() as connection:
            await connection.run_sync(_upgrade)
    finally:
        await engine.dispose()


def _upgrade(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    config = Config()
    config.set_main_option("script_location", str(_STEPS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
