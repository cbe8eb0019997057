"""What all commands share: options, one transaction with its actor, the database that is meant, printing."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from hub import config
from hub.config import Settings
from hub.errors import ConfigError, Forbidden, NotFound

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from hub.db import Database
    from hub.models.audit import Actor
    from hub.models.person import Person
    from hub.models.workspace import Workspace

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
acting_as = click.option("--as", "email", metavar="EMAIL", help="The person whose act this is, for the audit trail.")


def require(session: Session, target: Workspace, actor: Actor, action: str) -> None:
    """Whoever acts in somebody's name may do what that person may; whoever runs Hub acts in Hub's name."""
    from hub.models import permission, workspace

    if actor.id is None:
        return
    membership = workspace.membership(session, target.id, actor.id)
    if membership is None or not membership.enabled or not permission.may(membership.role, action):
        raise Forbidden(action=action)


def workspace(session: Session, slug: str) -> Workspace:
    """The workspace of this slug. Raises NotFound."""
    from hub.models import workspace

    found = workspace.find(session, slug)
    if found is None:
        raise NotFound("no_workspace", slug=slug)
    return found


def person(session: Session, address: str) -> Person:
    """The person with this address. Raises NotFound."""
    from hub.models import person

    found = person.find(session, address)
    if found is None:
        raise NotFound("no_person", email=address)
    return found


def password(from_stdin: bool) -> str:
    """The first line of standard input. Raises UsageError if the command was not told to read it."""
    if not from_stdin:
        raise click.UsageError("Give the password on standard input and say --password-stdin.")
    return sys.stdin.readline().rstrip("\r\n")


@contextmanager
def transaction(email: str | None) -> Iterator[tuple[Session, Actor]]:
    """One transaction on Hub's database, and the actor that its audit events name."""
    with open_database() as (_settings, database), database.transaction() as session:
        yield session, actor(session, email)


@contextmanager
def open_database() -> Iterator[tuple[Settings, Database]]:
    """The settings and a pool of one connection, for commands with several transactions."""
    from hub.db import Database

    with embedded_or_named() as settings:
        database = Database(settings.database_url, application_name="hub cli", size=1)
        try:
            yield settings, database
        finally:
            database.close()


def actor(session: Session, email: str | None) -> Actor:
    """Whom audit events name: the person with this address, or Hub itself. Raises NotFound."""
    from hub import words
    from hub.models import audit

    if email is None:
        return audit.Actor(None, words.say("cli.actor"), kind="hub", channel="cli")
    acting = person(session, email)
    if not acting.enabled:
        raise NotFound("no_person", email=email)
    return audit.Actor(acting.id, acting.name, channel="cli")


@contextmanager
def embedded_or_named() -> Iterator[Settings]:
    """The settings with database addresses: those named, else those of the embedded server, running meanwhile."""
    settings = config.load()
    if settings.database_url or settings.migrate_database_url:
        yield settings
        return
    with embedded(settings) as server:
        yield replace(settings, database_url=server.url(), migrate_database_url=server.url("hub_migrate"))


@contextmanager
def embedded(settings: Settings) -> Iterator[Any]:
    """The embedded server, started if need be and running meanwhile."""
    from hub import postgres

    server = postgres.start(settings.data_dir / "pg", settings.pg_bin or None, tied=True)
    try:
        yield server
    finally:
        # Only what was started here is stopped; `hub up` may be using it.
        if server.process is not None:
            server.stop()


def with_database() -> Settings:
    """The settings, which name a database. Raises ConfigError."""
    settings = config.load()
    if not settings.database_url:
        raise ConfigError("HUB_DATABASE_URL: say which database to use; `hub up` brings its own")
    return settings


def answer(report: dict[str, Any], as_json: bool, sentence: str) -> None:
    """Print what a command did: `report` as JSON, or the sentence."""
    if as_json:
        print_json(report)
    else:
        click.echo(harmless(sentence))


def harmless(sentence: str) -> str:
    """A sentence for a terminal, which must take nothing in it for a command: names may come from anybody."""
    return "".join(
        character if character == "\n" or unicodedata.category(character) != "Cc" else "\N{REPLACEMENT CHARACTER}"
        for character in sentence
    )


def print_json(data: Any) -> None:
    """Print `data` as one line of JSON."""
    click.echo(json.dumps(data, ensure_ascii=False))


def plain(value: Any) -> Any:
    """Times as RFC 3339 in UTC and ids as text, however deep in lists and dictionaries: ready to be JSON."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(value) if isinstance(value, UUID) else value
