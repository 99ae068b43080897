"""The tables as they are after the last migration."""

from datetime import UTC, datetime

from sqlalchemy import BigInteger, Column, Date, DateTime, Dialect, Double, Index, MetaData, String, Table
from sqlalchemy.types import TypeDecorator


class Moment(TypeDecorator[datetime]):
    """An aware time, in UTC. SQLite keeps no offset, so it is put back."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.astimezone(UTC) if value is not None else None

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


TABLES = MetaData()

USAGE = Table(
    "mulgil_usage",
    TABLES,
    Column("id", String, primary_key=True),
    Column("request_id", String, nullable=False),
    Column("at", Moment, nullable=False),
    Column("day", Date, nullable=False),
    Column("tenant", String, nullable=False),
    Column("key_id", String, nullable=False),
    Column("model", String, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("status", String, nullable=False),
    Column("ttft", Double),
    Column("duration", Double, nullable=False),
    Column("variant", String),
    Column("fallback", String),
    Index("mulgil_usage_at", "at"),
    Index("mulgil_usage_tenant_key_at", "tenant", "key_id", "at"),
)
"""A row for each piece of work. `day` is that of `at`, in UTC."""

DAYS = Table(
    "mulgil_usage_days",
    TABLES,
    Column("tenant", String, primary_key=True),
    Column("day", Date, primary_key=True),
    Column("key_id", String, primary_key=True),
    Column("model", String, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
)
"""The rows of a day, added up in the transaction that adds them: what quotas are reckoned from."""

SUMS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
"""The columns of `DAYS` that grow."""
