"""The tests' database server: one cluster, one template for each state of the schema, clones of it.

The cluster stands in `.pytest-pg/`, gives up durability for speed, and keeps running between runs.
``python -m tests.cluster stop`` ends it and removes it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

from hub import postgres, schema

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".pytest-pg"
SCHEMA_SOURCES = ("migrations", "hub/models", "hub/queue/revisions", "hub/schema.py")
# Runs on several states of the code may share the cluster; older templates are dropped beyond this number.
TEMPLATES_KEPT = 6


def start() -> postgres.Server:
    """The cluster's server, started if need be. HUB_PG_BIN picks other programs, with a cluster of their own."""
    programs = os.environ.get("HUB_PG_BIN") or None
    name = hashlib.sha256(programs.encode()).hexdigest()[:8] if programs else "default"
    return postgres.start(FOLDER / name, programs, fast=True)


def clone(server: postgres.Server, name: str) -> None:
    """Make the database `name` anew as a copy of the template for the schema as it stands in the sources."""
    with locked(), _admin(server) as connection:
        template = _ensure_template(server, connection)
        _drop(connection, name)
        _copy(connection, template, name)
        # Rights on a database belong to it and are not copied.
        schema.init(server.url(postgres.SUPERUSER, name))


def drop(server: postgres.Server, name: str) -> None:
    """Remove a database, cutting off whoever is connected."""
    with locked(), _admin(server) as connection:
        _drop(connection, name)


def sweep(server: postgres.Server) -> None:
    """Remove databases of test processes that were killed."""
    with locked(), _admin(server) as connection:
        for name in _databases(connection, "test\\_%"):
            owner = re.match(r"test_(\d+)", name)
            if owner and not _is_alive(int(owner[1])):
                _drop(connection, name)


def wipe(admin_url: str) -> None:
    """Delete every row of the three schemas but those that tell the schema's version."""
    with psycopg.connect(admin_url, options="-c lock_timeout=10s") as connection:
        connection.execute(_WIPE)


def as_role(url: str, role: str) -> str:
    """The address `url`, made by the server's `url`, for another role."""
    return re.sub(r"^postgresql://[^@]*@", f"postgresql://{role}@", url)


@contextmanager
def locked() -> Iterator[None]:
    """One process at a time: roles and templates belong to the whole cluster."""
    FOLDER.mkdir(exist_ok=True)
    with open(FOLDER / "template.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _ensure_template(server: postgres.Server, connection: psycopg.Connection) -> str:
    name = f"template_{_schema_digest()}"
    if name in _databases(connection, "template\\_%"):
        return name
    # Built under another name and renamed when complete, so that a killed run leaves no half-made template.
    building = f"building_{_schema_digest()}"
    _drop(connection, building)
    connection.execute(sql.SQL("create database {}").format(sql.Identifier(building)))
    schema.init(server.url(postgres.SUPERUSER, building))
    schema.upgrade(server.url("hub_migrate", building))
    connection.execute(sql.SQL("alter database {} rename to {}").format(*map(sql.Identifier, (building, name))))
    for old in _databases(connection, "template\\_%")[:-TEMPLATES_KEPT]:
        _drop(connection, old)
    return name


def _schema_digest() -> str:
    digest = hashlib.sha256()
    for source in SCHEMA_SOURCES:
        path = ROOT / source
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.suffix in (".py", ".sql", ".mako"):
                digest.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _copy(connection: psycopg.Connection, template: str, name: str) -> None:
    command = sql.SQL("create database {} template {} strategy file_copy")
    connection.execute(command.format(sql.Identifier(name), sql.Identifier(template)))


def _drop(connection: psycopg.Connection, name: str) -> None:
    connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


def _databases(connection: psycopg.Connection, pattern: str) -> list[str]:
    query = "select datname from pg_catalog.pg_database where datname like %s order by oid"
    return [name for (name,) in connection.execute(query, [pattern])]


def _admin(server: postgres.Server) -> psycopg.Connection:
    return psycopg.connect(server.url(postgres.SUPERUSER, "postgres"), autocommit=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


# Replica role skips foreign keys and ordinary triggers. The append-only trail has triggers that fire even so: they are
# disabled for this transaction, and only if there is anything to delete, since that takes a strong lock.
_WIPE = """
do $$
declare
    target record;
    filled boolean;
begin
    set local session_replication_role = replica;
    for target in
        select c.oid::regclass as name,
               array(select tgname from pg_trigger where tgrelid = c.oid and tgenabled = 'A') as guards
        from pg_class c
        where c.relkind = 'r' and c.relnamespace::regnamespace::text in ('hub', 'audit', 'queue')
          and c.relname not in ('schema_revision', 'alembic_version')
    loop
        if cardinality(target.guards) = 0 then
            execute format('delete from %s', target.name);
            continue;
        end if;
        execute format('select exists (select from %s)', target.name) into filled;
        if filled then
            execute format('alter table %s disable trigger user', target.name);
            execute format('delete from %s', target.name);
            execute format('alter table %s enable trigger user', target.name);
            for i in 1 .. cardinality(target.guards) loop
                execute format('alter table %s enable always trigger %I', target.name, target.guards[i]);
            end loop;
        end if;
    end loop;
end $$
"""


if __name__ == "__main__" and sys.argv[1:] == ["stop"]:
    for folder in FOLDER.glob("*/"):
        postgres.destroy(folder)
