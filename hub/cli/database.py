"""`hub db`: roles and schemas."""

from __future__ import annotations

import click

from hub import config
from hub.cli import base
from hub.errors import ConfigError


@click.group()
def db() -> None:
    """The database: roles and schemas."""


@db.command("init")
@click.option("--admin-url", help="Address of Hub's database for a superuser.")
@click.option("--print", "print_only", is_flag=True, help="Only print the SQL, for a database administrator.")
@click.option("--database", default="hub", show_default=True, help="Name of the database in the printed SQL.")
def db_init(admin_url: str | None, print_only: bool, database: str) -> None:
    """Make Hub's roles and schemas in an existing database; safe to run again."""
    from hub import postgres, schema

    if print_only:
        click.echo(schema.init_sql(database))
        return
    if admin_url:
        schema.init(admin_url)
    else:
        settings = config.load()
        if settings.database_url:
            raise click.UsageError("Say with --admin-url how to connect as a superuser, or use --print.")
        with base.embedded(settings) as server:
            assert isinstance(server, postgres.Server)
            schema.init(server.admin_url)
    click.echo("Roles and schemas are there. Next: hub db upgrade")


@db.command("upgrade")
@base.as_json
def db_upgrade(as_json: bool) -> None:
    """Bring the schemas to what this version of Hub needs, as hub_migrate."""
    from hub import schema

    with base.embedded_or_named() as settings:
        if not settings.migrate_database_url:
            raise ConfigError("HUB_MIGRATE_DATABASE_URL: say how to connect as hub_migrate")
        status = schema.upgrade(settings.migrate_database_url)
    _print_status(status.as_dict(), as_json)


@db.command("status")
@base.as_json
def db_status(as_json: bool) -> int:
    """Show which revisions the schemas have; exit code 1 if they are too old."""
    from hub import schema

    with base.embedded_or_named() as settings:
        status = schema.status(settings.database_url or settings.migrate_database_url)
    _print_status(status.as_dict(), as_json)
    return 0 if status.hub >= status.hub_needed and status.queue >= status.queue_needed else 1


def _print_status(status: dict[str, int], as_json: bool) -> None:
    if as_json:
        base.print_json(status)
        return
    for name in ("hub", "queue"):
        click.echo(f"schema {name}: revision {status[name]}, needed {status[f'{name}_needed']}")
