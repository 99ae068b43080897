"""What Alembic runs: the steps, on the connection that it was handed."""

from alembic import context

from mulgil.ledger.tables import TABLES

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=TABLES,
    version_table="mulgil_usage_version",  # a database may hold other programs' tables, and their versions
)
with context.begin_transaction():
    context.run_migrations()
