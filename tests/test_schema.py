"""Roles, schemas and their versions: what each role may do, and when Hub refuses to start."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from alembic import command

from hub import schema
from hub.errors import SchemaMismatch
from tests import cluster


@pytest.fixture
def superuser(database: Any, admin_url: str) -> Any:
    """A connection to the database that many tests share."""
    with psycopg.connect(admin_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def admin(own_database: Any) -> Any:
    """A superuser's connection to a database of this test alone."""
    with psycopg.connect(cluster.as_role(own_database.url, "hub_admin"), autocommit=True) as connection:
        yield connection


@pytest.fixture
def migrate_url(own_database: Any) -> str:
    return cluster.as_role(own_database.url, "hub_migrate")


FORBIDDEN = [
    "create table hub.t (a int)",
    "create table public.t (a int)",
    "create table queue.t (a int)",
    "create table audit.t (a int)",
    "create temporary table t (a int)",
    "create schema mine",
    "create function hub.f() returns int language sql as 'select 1'",
    "create extension pg_trgm",
    "create role mine",
    "create database mine",
    "alter table hub.person add column a int",
    "drop table hub.person",
    "drop index hub.person_email_key",
    "comment on table hub.person is 'x'",
    "truncate hub.person",
    "alter system set work_mem = '1GB'",
    "set role hub_owner",
    "set role hub_migrate",
    "set session_replication_role = 'replica'",
    "copy hub.person to program 'cat'",
    "copy hub.person from '/etc/passwd'",
    "select pg_read_file('/etc/passwd')",
    "select lo_create(0)",
    "select lo_from_bytea(0, 'x')",
    "alter table queue.job disable trigger ended_jobs_never_change",
    "alter function audit.record owner to hub_app",
    "alter schema hub rename to mine",
    "insert into hub.schema_revision (revision, compatible_from) values (9, 9)",
    "update queue.schema_revision set revision = 9",
    "insert into audit.event (id) values (1)",
    "update audit.event set action = 'x'",
    "delete from audit.event",
    "truncate audit.event",
    "lock table audit.event in access exclusive mode",
]


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_the_app_has_rows_only(database: Any, statement: str) -> None:
    with psycopg.connect(database.url, autocommit=True) as app, pytest.raises(psycopg.errors.Error):
        app.execute(statement)


def test_the_app_owns_nothing_and_everything_belongs_to_the_owner(superuser: Any) -> None:
    owners = superuser.execute(
        "select distinct c.relowner::regrole::text from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = any(%s)",
        [list(schema.SCHEMAS)],
    ).fetchall()
    assert owners == [("hub_owner",)]


def test_what_public_may_do_is_nothing(superuser: Any) -> None:
    rights = superuser.execute(
        "select has_schema_privilege('public', 'public', 'CREATE'), has_schema_privilege('public', 'hub', 'USAGE'),"
        " has_database_privilege('public', current_database(), 'TEMP')"
    ).fetchone()
    assert rights == (False, False, False)


def test_a_database_that_fits_is_accepted(database: Any) -> None:
    schema.check(database.url)
    status = schema.status(database.url)
    assert (status.hub, status.queue) == (status.hub_needed, status.queue_needed)


@pytest.mark.parametrize("name", ["hub", "queue"])
def test_a_schema_that_is_too_old_is_refused(own_database: Any, admin: Any, name: str) -> None:
    admin.execute(f"update {name}.schema_revision set revision = 0")
    with pytest.raises(SchemaMismatch, match=f"Schema {name} is at revision 0 .* Run `hub db upgrade`"):
        schema.check(own_database.url)


@pytest.mark.parametrize("name", ["hub", "queue"])
def test_a_newer_schema_is_accepted_only_if_it_says_so(own_database: Any, admin: Any, name: str) -> None:
    needed = getattr(schema.status(own_database.url), f"{name}_needed")
    insert = f"insert into {name}.schema_revision (revision, compatible_from) values (%s, %s)"
    admin.execute(insert, [needed + 1, needed])
    schema.check(own_database.url)
    admin.execute(f"update {name}.schema_revision set compatible_from = %s where revision = %s", [needed + 1] * 2)
    with pytest.raises(SchemaMismatch, match="Install the newer Hub"):
        schema.check(own_database.url)


@pytest.mark.parametrize("role", ["hub_admin", "hub_migrate"])
def test_a_role_that_may_do_more_is_refused(database: Any, role: str) -> None:
    with pytest.raises(SchemaMismatch, match=f"role {role} may do more"):
        schema.check(cluster.as_role(database.url, role))


@pytest.mark.parametrize(
    ("grant", "phrase"),
    [
        ("grant create on schema queue to hub_app", "may create objects in schema queue"),
        ("grant temporary on database {} to hub_app", "may create temporary tables"),
        ("grant create on database {} to public", "may create schemas in this database"),
        ("create table hub.mine (a int); alter table hub.mine owner to hub_app", "owns hub.mine"),
    ],
)
def test_a_right_that_was_added_by_hand_is_noticed(own_database: Any, admin: Any, grant: str, phrase: str) -> None:
    admin.execute(grant.format(admin.info.dbname))
    with pytest.raises(SchemaMismatch, match=phrase):
        schema.check(own_database.url)


def test_a_database_without_schemas_is_told_how_to_get_them(server: Any, admin: Any, own_database: Any) -> None:
    name = f"{admin.info.dbname}_bare"
    admin.execute(f"create database {name}")
    try:
        with pytest.raises(SchemaMismatch, match="hub db init"):
            schema.upgrade(server.url("hub_migrate", name))
        with pytest.raises(SchemaMismatch, match="hub_app"):
            schema.check(server.url("hub_app", name))
    finally:
        admin.execute(f"drop database {name} with (force)")


def test_init_and_upgrade_can_run_again(own_database: Any, admin: Any, migrate_url: str) -> None:
    before = schema.status(own_database.url)
    for _ in range(2):
        schema.init(cluster.as_role(own_database.url, "hub_admin"))
        assert schema.upgrade(migrate_url) == before
    schema.check(own_database.url)


@pytest.mark.filterwarnings("ignore:Did not recognize type 'xid8'")
def test_the_migrations_make_just_what_the_models_declare(database: Any, server: Any, database_name: str) -> None:
    command.check(schema.alembic_config(server.url("hub_migrate", database_name)))


def test_no_foreign_key_crosses_into_the_queue_or_the_trail(superuser: Any) -> None:
    crossing = superuser.execute(
        "select c.conrelid::regclass::text, c.confrelid::regclass::text from pg_constraint c"
        " join pg_class f on f.oid = c.conrelid join pg_class t on t.oid = c.confrelid"
        " where c.contype = 'f' and f.relnamespace <> t.relnamespace"
    ).fetchall()
    assert crossing == []


@pytest.mark.parametrize(
    "statement",
    [
        "update audit.event set action = 'x'",
        "delete from audit.event",
        "truncate audit.event",
    ],
)
@pytest.mark.parametrize("mode", ["origin", "replica"])
def test_the_trail_is_closed_to_the_owner_too(superuser: Any, statement: str, mode: str) -> None:
    superuser.execute(
        "select audit.record(null, null, 'a', 'hub', 'hub', null, null, 'workspace.created', 'done', 'workspace',"
        " null, 'x', null, '{}')"
    )
    superuser.execute(f"set session_replication_role = '{mode}'")
    superuser.execute("set role hub_owner" if mode == "origin" else "select 1")
    with pytest.raises(psycopg.errors.Error):
        superuser.execute(statement)
    assert superuser.execute("select count(*) from audit.event").fetchone() == (1,)
