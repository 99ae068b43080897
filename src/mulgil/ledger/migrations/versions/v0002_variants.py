"""Which variant was to answer, and what answered instead."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns; of rows that are there already nothing is known."""
    op.add_column("mulgil_usage", sa.Column("variant", sa.String))
    op.add_column("mulgil_usage", sa.Column("fallback", sa.String))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("mulgil_usage", "fallback")
    op.drop_column("mulgil_usage", "variant")
