"""The `hub` command. Errors are one sentence on standard error; the exit code is 1, or 2 for wrong usage.

Modules are imported where they are used, so that each command starts quickly.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from hub import __version__, config
from hub.config import Settings
from hub.errors import ConfigError, Forbidden, HubError, Invalid, NotFound, Refusal

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from hub.models.audit import Actor
    from hub.models.person import Person
    from hub.models.workspace import Workspace

CONTEXT = {"help_option_names": ["-h", "--help"]}


def main() -> NoReturn:
    """Run the command of this process's arguments and exit."""
    try:
        code = cli.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except HubError as error:
        _fail(_sentence(error))
    except UnicodeError:
        _fail("Arguments and input must be valid UTF-8.")
    except Exception as error:
        reason = _database_reason(error)
        if reason is None:
            raise
        _fail(reason)


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, prog_name="hub")
def cli() -> None:
    """Hub: the admin workspace of a knowledge hub."""


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
acting_as = click.option("--as", "email", metavar="EMAIL", help="The person whose act this is, for the audit trail.")


@cli.command()
def up() -> int:
    """Start everything on this machine: database, web server, one worker. Ctrl-C stops all."""
    from hub import up

    return up.run(config.load())


@cli.command()
def web() -> None:
    """Run the web server."""
    from hub import schema, up

    settings = _with_database()
    schema.check(settings.database_url)
    up.exec_web(settings)


@cli.command()
@click.option("--lanes", help="Lanes for each queue, as workspace.jobs=2,knowledge.ingest=4; default: HUB_LANES.")
def worker(lanes: str | None) -> int:
    """Run a worker, which does the jobs of the queues it has lanes for."""
    # Importing the kinds is what makes them known.
    import hub.jobs  # noqa: F401
    from hub import log, schema
    from hub.queue import kind, worker

    settings = _with_database()
    try:
        wanted = settings.lanes if lanes is None else config.parse_lanes(lanes)
    except ValueError as error:
        raise click.UsageError(f"--lanes {error}") from None
    schema.check(settings.database_url)
    log.setup()
    for queue in wanted:
        if not kind.of_queue(queue):
            logging.getLogger("hub").warning("no kind of job uses the queue %s", queue)
    return worker.main(settings, wanted)


@cli.command()
@as_json
def check(as_json: bool) -> int:
    """Say whether this machine's Hub is ready: one line each; exit code 1 if anything is not."""
    from hub import readiness

    with _embedded_or_named() as settings:
        findings = readiness.findings(settings)
    if as_json:
        _print_json([finding.as_dict() for finding in findings])
    else:
        for finding in findings:
            click.echo(f"{'ok  ' if finding.ok else 'FAIL'} {finding.name}: {finding.text}")
    return 0 if all(finding.ok for finding in findings) else 1


@cli.command()
@as_json
def settings(as_json: bool) -> None:
    """List all settings: name, value, unit, reason."""
    rows = config.describe(config.load())
    if as_json:
        _print_json(rows)
        return
    for row in rows:
        value = row["value"] or "(empty)"
        changed = "" if row["value"] == row["default"] else f"  (default: {row['default'] or 'empty'})"
        click.echo(f"{row['name']}={value} {row['unit']}{changed}\n    {row['why']}")


@cli.group()
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
        with _embedded(settings) as server:
            assert isinstance(server, postgres.Server)
            schema.init(server.admin_url)
    click.echo("Roles and schemas are there. Next: hub db upgrade")


@db.command("upgrade")
@as_json
def db_upgrade(as_json: bool) -> None:
    """Bring the schemas to what this version of Hub needs, as hub_migrate."""
    from hub import schema

    with _embedded_or_named() as settings:
        if not settings.migrate_database_url:
            raise ConfigError("HUB_MIGRATE_DATABASE_URL: say how to connect as hub_migrate")
        status = schema.upgrade(settings.migrate_database_url)
    _print_status(status.as_dict(), as_json)


@db.command("status")
@as_json
def db_status(as_json: bool) -> int:
    """Show which revisions the schemas have; exit code 1 if they are too old."""
    from hub import schema

    with _embedded_or_named() as settings:
        status = schema.status(settings.database_url or settings.migrate_database_url)
    _print_status(status.as_dict(), as_json)
    return 0 if status.hub >= status.hub_needed and status.queue >= status.queue_needed else 1


@cli.group()
def workspace() -> None:
    """Workspaces."""


@workspace.command("add")
@click.argument("slug")
@click.option("--name", default="", help="What people read; default: the slug.")
@acting_as
@as_json
def workspace_add(slug: str, name: str, email: str | None, as_json: bool) -> None:
    """Make a workspace whose address is /w/SLUG/."""
    from hub.models import people

    with _transaction(email) as (session, actor):
        added = people.add_workspace(session, slug, name, actor)
        report = {"id": str(added.id), "slug": added.slug, "name": added.name}
    _print(report, as_json, f"Workspace {added.slug} is there.")


@workspace.command("disable")
@click.argument("slug")
@acting_as
@as_json
def workspace_disable(slug: str, email: str | None, as_json: bool) -> None:
    """Close a workspace for everybody; nothing in it is lost."""
    _set_workspace(slug, False, email, as_json)


@workspace.command("enable")
@click.argument("slug")
@acting_as
@as_json
def workspace_enable(slug: str, email: str | None, as_json: bool) -> None:
    """Open a workspace again."""
    _set_workspace(slug, True, email, as_json)


@cli.group()
def user() -> None:
    """People."""


@user.command("add")
@click.argument("address", metavar="EMAIL")
@click.option("--name", default="", help="What people read; default: the part before the @.")
@click.option("--workspace", "slug", help="Make them a member of this workspace.")
@click.option("--role", type=click.Choice(["admin", "member", "viewer"]), help="Their role there.")
@click.option("--staff", type=click.Choice(["support", "operator"]), help="Make them staff.")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@acting_as
@as_json
def user_add(
    address: str,
    name: str,
    slug: str | None,
    role: str | None,
    staff: str | None,
    password_stdin: bool,
    email: str | None,
    as_json: bool,
) -> None:
    """Add a person, or give one who is here already a role in a workspace."""
    from hub.models import people, person

    if (slug is None) != (role is None):
        raise click.UsageError("--workspace and --role go together.")
    with _transaction(email) as (session, actor):
        found = person.find(session, address)
        if found is None or slug is None or password_stdin:
            address = people.valid_email(address)
            hashed = person.hash_password(people.valid_password(_password(password_stdin)))
            found = people.add_person(session, address, hashed, actor=actor, name=name, staff=staff)
        if slug is not None:
            people.add_member(session, _workspace(session, slug), found, role, actor)
        report = {"id": str(found.id), "email": found.email, "name": found.name, "staff": found.staff}
        report |= {"workspace": slug, "role": role}
    _print(report, as_json, f"{found.email} is there.")


@user.command("disable")
@click.argument("address", metavar="EMAIL")
@acting_as
@as_json
def user_disable(address: str, email: str | None, as_json: bool) -> None:
    """Keep a person out of everything and end their sessions at once."""
    _set_person(address, False, email, as_json)


@user.command("password")
@click.argument("address", metavar="EMAIL")
@click.option("--password-stdin", is_flag=True, required=True, help="Read the new password from standard input.")
@acting_as
@as_json
def user_password(address: str, password_stdin: bool, email: str | None, as_json: bool) -> None:
    """Give a person a new password and end their sessions."""
    from hub.models import people

    password = _password(password_stdin)
    with _transaction(email) as (session, actor):
        people.change_password(session, _person(session, address), password, actor, keep=None)
    _print({"email": address, "changed": True}, as_json, f"{address} has a new password.")


@user.command("enable")
@click.argument("address", metavar="EMAIL")
@acting_as
@as_json
def user_enable(address: str, email: str | None, as_json: bool) -> None:
    """Let a person in again."""
    _set_person(address, True, email, as_json)


@cli.group()
def course() -> None:
    """Courses."""


@course.command("import")
@click.argument("source", metavar="FOLDER|ZIP", type=click.Path(exists=True, path_type=Path))
@click.option("--workspace", "slug", required=True, help="Where the course goes.")
@click.option("--title", default="", help="Default: the name of the folder or file.")
@acting_as
@as_json
def course_import(source: Path, slug: str, title: str, email: str | None, as_json: bool) -> None:
    """Import Markdown files as a course of pages."""
    from hub.models import importing

    with ExitStack() as stack:
        if source.is_dir():
            found = importing.read_folder(source)
        else:
            found = importing.read_zip(stack.enter_context(source.open("rb")))
        pages = stack.enter_context(importing.spooled(found))
        session, actor = stack.enter_context(_transaction(email))
        target = _workspace(session, slug)
        _require(session, target, actor, "course.edit")
        # Resolved, so that "." has a name too.
        name = source.resolve().name
        title = title or (name if source.is_dir() else source.stem)
        course_id, count = importing.import_course(session, target.id, title, pages, actor, name)
    pages_word = "page" if count == 1 else "pages"
    _print({"course_id": str(course_id), "pages": count}, as_json, f"{count} {pages_word} imported.")


def _set_workspace(slug: str, enabled: bool, email: str | None, as_json: bool) -> None:
    from hub.models import people

    with _transaction(email) as (session, actor):
        changed = people.set_workspace_enabled(session, _workspace(session, slug), enabled, actor)
    state = "enabled" if enabled else "disabled"
    _print({"slug": slug, "enabled": enabled, "changed": changed}, as_json, f"Workspace {slug} is {state}.")


def _set_person(address: str, enabled: bool, email: str | None, as_json: bool) -> None:
    from hub.models import people

    with _transaction(email) as (session, actor):
        found = _person(session, address)
        changed = people.set_person_enabled(session, found, enabled, actor)
    state = "enabled" if enabled else "disabled"
    _print({"email": found.email, "enabled": enabled, "changed": changed}, as_json, f"{found.email} is {state}.")


def _require(session: Session, target: Workspace, actor: Actor, action: str) -> None:
    """Whoever acts in somebody's name may do what that person may; whoever runs Hub acts in Hub's name."""
    from hub.models import permission, workspace

    if actor.id is None:
        return
    membership = workspace.membership(session, target.id, actor.id)
    if membership is None or not membership.enabled or not permission.may(membership.role, action):
        raise Forbidden(action=action)


def _workspace(session: Session, slug: str) -> Workspace:
    from hub.models import workspace

    found = workspace.find(session, slug)
    if found is None:
        raise NotFound("no_workspace", slug=slug)
    return found


def _person(session: Session, address: str) -> Person:
    from hub.models import person

    found = person.find(session, address)
    if found is None:
        raise NotFound("no_person", email=address)
    return found


def _password(from_stdin: bool) -> str:
    if not from_stdin:
        raise click.UsageError("Give the password on standard input and say --password-stdin.")
    return sys.stdin.readline().rstrip("\r\n")


@contextmanager
def _transaction(email: str | None) -> Iterator[tuple[Session, Actor]]:
    """One transaction on Hub's database, and the actor that its audit events name."""
    from hub import words
    from hub.db import Database
    from hub.models import audit

    with _embedded_or_named() as settings:
        database = Database(settings.database_url, application_name="hub cli", size=1)
        try:
            with database.transaction() as session:
                actor = audit.Actor(None, words.say("cli.actor"), kind="hub", channel="cli")
                if email is not None:
                    acting = _person(session, email)
                    if not acting.enabled:
                        raise NotFound("no_person", email=email)
                    actor = audit.Actor(acting.id, acting.name, channel="cli")
                yield session, actor
        finally:
            database.close()


@contextmanager
def _embedded_or_named() -> Iterator[Settings]:
    """The settings with database addresses: those named, else those of the embedded server, running meanwhile."""
    settings = config.load()
    if settings.database_url or settings.migrate_database_url:
        yield settings
        return
    with _embedded(settings) as server:
        yield replace(settings, database_url=server.url(), migrate_database_url=server.url("hub_migrate"))


@contextmanager
def _embedded(settings: Settings) -> Iterator[Any]:
    from hub import postgres

    server = postgres.start(settings.data_dir / "pg", settings.pg_bin or None, tied=True)
    try:
        yield server
    finally:
        # Only what was started here is stopped; `hub up` may be using it.
        if server.process is not None:
            server.stop()


def _with_database() -> Settings:
    settings = config.load()
    if not settings.database_url:
        raise ConfigError("HUB_DATABASE_URL: say which database to use; `hub up` brings its own")
    return settings


def _print(report: dict[str, Any], as_json: bool, sentence: str) -> None:
    if as_json:
        _print_json(report)
    else:
        click.echo(sentence)


def _print_status(status: dict[str, int], as_json: bool) -> None:
    if as_json:
        _print_json(status)
        return
    for name in ("hub", "queue"):
        click.echo(f"schema {name}: revision {status[name]}, needed {status[f'{name}_needed']}")


def _print_json(data: Any) -> None:
    click.echo(json.dumps(data, ensure_ascii=False))


def _fail(sentence: str) -> NoReturn:
    click.echo(f"hub: {sentence}", err=True)
    sys.exit(1)


def _sentence(error: HubError) -> str:
    from hub import words

    if isinstance(error, Invalid):
        return " ".join(f"{name}: {text}" for name, text in error.fields.items())
    if isinstance(error, Refusal):
        return words.refusal(error.code, error.status, error.data)
    return str(error).strip()


def _database_reason(error: Exception) -> str | None:
    """One sentence for an error of the database; None for any other."""
    import psycopg
    from sqlalchemy.exc import DBAPIError

    cause = error.orig if isinstance(error, DBAPIError) else error
    if not isinstance(cause, psycopg.Error):
        return None
    first = str(cause).strip().splitlines()
    return f"The database says: {first[0] if first else type(cause).__name__}"
