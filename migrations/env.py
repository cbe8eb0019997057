"""Alembic for the declared models: schemas `hub` and `audit`, never `queue`, in neither direction."""

from alembic import context
from sqlalchemy import create_engine

from hub import db
from hub.models import Base

SCHEMAS = ("hub", "audit")
# Version tables describe the schema; they are not part of what is declared.
VERSION_TABLES = ("alembic_version", "schema_revision")


def include_name(name, type_, parent_names):
    """What autogenerate looks at in the database."""
    if type_ == "schema":
        return name in SCHEMAS
    if type_ == "table":
        return parent_names["schema_name"] in SCHEMAS and name not in VERSION_TABLES
    return True


def run() -> None:
    """Run the migrations on one connection, all in one transaction."""
    url = context.config.attributes["url"]
    engine = create_engine(
        "postgresql+psycopg://",
        creator=lambda: db.connect(url, application_name="hub db upgrade", statement_timeout=0, idle_timeout=0),
    )
    with engine.connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            include_schemas=True,
            include_name=include_name,
            version_table_schema="hub",
            compare_server_default=True,
        )
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()


run()
