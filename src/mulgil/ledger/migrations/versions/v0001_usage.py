"""The rows, and their sums by day."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make both tables."""
    op.create_table(
        "mulgil_usage",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("request_id", sa.String, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("tenant", sa.String, nullable=False),
        sa.Column("key_id", sa.String, nullable=False),
        sa.Column("model", sa.String, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("ttft", sa.Double),
        sa.Column("duration", sa.Double, nullable=False),
    )
    op.create_index("mulgil_usage_at", "mulgil_usage", ["at"])
    op.create_index("mulgil_usage_tenant_key_at", "mulgil_usage", ["tenant", "key_id", "at"])
    op.create_table(
        "mulgil_usage_days",
        sa.Column("tenant", sa.String, primary_key=True),
        sa.Column("day", sa.Date, primary_key=True),
        sa.Column("key_id", sa.String, primary_key=True),
        sa.Column("model", sa.String, primary_key=True),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Drop both."""
    op.drop_table("mulgil_usage_days")
    op.drop_table("mulgil_usage")
