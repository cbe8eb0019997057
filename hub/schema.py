"""Roles, schemas and their versions: made once, upgraded by one command, checked at every start.

Three schemas (`hub`, `audit`: Alembic; `queue`: numbered SQL files with a version table of their own) and three roles:
`hub_owner` owns everything and cannot log in, `hub_migrate` acts as the owner and is used by `hub db upgrade` alone,
`hub_app` is what web and worker are: rows only, no DDL anywhere.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from hub import db
from hub.errors import SchemaMismatch

MIGRATIONS = Path(__file__).parent.parent / "migrations"
QUEUE_REVISIONS = Path(__file__).parent / "queue" / "revisions"
SCHEMAS = ("hub", "audit", "queue")
# One upgrade at a time for each database; the number is arbitrary and only has to stay the same.
UPGRADE_LOCK = 4_820_515_001


@dataclass(frozen=True)
class Status:
    """Schema revisions: in the database (0: none yet), and what this code needs."""

    hub: int
    hub_needed: int
    queue: int
    queue_needed: int

    def as_dict(self) -> dict[str, int]:
        """The same, for printing."""
        return asdict(self)


def init_sql(database: str) -> str:
    """The SQL that a database administrator runs once, as superuser, connected to `database`.

    Safe to run again. It sets no passwords: that is the administrator's, ``alter role hub_app password …``.
    """
    return _INIT.replace(":database", '"' + database.replace('"', '""') + '"')


def init(admin_url: str) -> None:
    """Make roles, schemas and grants in the database of `admin_url`, a superuser's address."""
    with db.connect(admin_url, application_name="hub db init", autocommit=True) as connection:
        connection.execute(init_sql(connection.info.dbname).encode())


def upgrade(migrate_url: str) -> Status:
    """Bring all three schemas to what this code needs, as `hub_migrate`; returns what stands then.

    A schema that is newer than the code is left alone. Raises SchemaMismatch if `hub db init` was not run.
    """
    with db.connect(migrate_url, application_name="hub db upgrade", statement_timeout=0, idle_timeout=0) as connection:
        _require_init(connection)
        connection.execute("select pg_advisory_xact_lock(%s)", [UPGRADE_LOCK])
        _upgrade_declared(migrate_url)
        _upgrade_queue(connection)
    return status(migrate_url)


def status(url: str) -> Status:
    """Read the revisions that stand in the database of `url`."""
    with db.connect(url, application_name="hub db status", autocommit=True) as connection:
        return Status(
            hub=_revision(connection, "hub")[0],
            hub_needed=_newest(MIGRATIONS / "versions", "py"),
            queue=_revision(connection, "queue")[0],
            queue_needed=_newest(QUEUE_REVISIONS, "sql"),
        )


def check(url: str) -> None:
    """Refuse to start on a database that does not fit. Raises SchemaMismatch with one sentence.

    Checked: the role has no DDL right anywhere and owns nothing; both schemas have the revision this code needs, or a
    newer one whose migration says that this code still works with it.
    """
    with db.connect(url, application_name="hub start-up check", autocommit=True) as connection:
        _check_privileges(connection)
        _check_revision(connection, "hub", _newest(MIGRATIONS / "versions", "py"))
        _check_revision(connection, "queue", _newest(QUEUE_REVISIONS, "sql"))


def _newest(folder: Path, suffix: str) -> int:
    return max(int(path.name[:4]) for path in folder.glob(f"[0-9][0-9][0-9][0-9]_*.{suffix}"))


def _revision(connection: psycopg.Connection[Any], schema: str) -> tuple[int, int]:
    """The schema's revision and the oldest code it still works with; (0, 0) if there is none."""
    # to_regclass answers null for what a role cannot even look into, as before `hub db init`.
    exists = connection.execute("select to_regclass(%s) is not null", [f"{schema}.schema_revision"]).fetchone()
    if not exists or not exists[0]:
        return 0, 0
    query = sql.SQL("select revision, compatible_from from {} order by revision desc limit 1")
    row = connection.execute(query.format(sql.Identifier(schema, "schema_revision"))).fetchone()
    return (row[0], row[1]) if row else (0, 0)


def _require_init(connection: psycopg.Connection[Any]) -> None:
    ready = (
        connection.execute(
            "select count(*) = 3 from pg_catalog.pg_namespace where nspname = any(%s) and nspowner = %s::regrole",
            [list(SCHEMAS), "hub_owner"],
        ).fetchone()
        if _role_exists(connection, "hub_owner")
        else None
    )
    if not ready or not ready[0]:
        raise SchemaMismatch(
            "The database has no Hub schemas yet. Run `hub db init` as a database administrator first."
        )


def _role_exists(connection: psycopg.Connection[Any], role: str) -> bool:
    return connection.execute("select from pg_catalog.pg_roles where rolname = %s", [role]).fetchone() is not None


def _upgrade_declared(migrate_url: str) -> None:
    # Imported here: Alembic takes half a second to import and only this command needs it.
    from alembic import command

    command.upgrade(alembic_config(migrate_url), "head")


def alembic_config(url: str) -> Any:
    """Alembic's configuration for the declared models, connecting to `url`."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["url"] = url
    return config


def _upgrade_queue(connection: psycopg.Connection[Any]) -> None:
    connection.execute(_QUEUE_VERSION_TABLE)
    present, _ = _revision(connection, "queue")
    for path in sorted(QUEUE_REVISIONS.glob("[0-9]*.sql")):
        number = int(path.name[:4])
        if number <= present:
            continue
        text = path.read_text()
        connection.execute(text.encode())
        compatible = re.search(r"^-- compatible from: (\d+)$", text, re.MULTILINE)
        connection.execute(
            "insert into queue.schema_revision (revision, compatible_from) values (%s, %s)",
            [number, int(compatible[1]) if compatible else number],
        )


def _check_revision(connection: psycopg.Connection[Any], schema: str, needed: int) -> None:
    present, compatible_from = _revision(connection, schema)
    if present < needed:
        raise SchemaMismatch(
            f"Schema {schema} is at revision {present} and this version of Hub needs {needed}. Run `hub db upgrade`."
        )
    if present > needed and compatible_from > needed:
        raise SchemaMismatch(
            f"Schema {schema} is at revision {present}, which this older version of Hub (revision {needed}) does not"
            " work with. Install the newer Hub."
        )


def _check_privileges(connection: psycopg.Connection[Any]) -> None:
    row = connection.execute(_EXCESS).fetchone()
    excess = row[0] if row else []
    if excess:
        raise SchemaMismatch(
            f"The database role {connection.info.user} may do more than Hub's web and worker should:"
            f" {'; '.join(excess[:5])}. Connect as hub_app, made by `hub db init`."
        )
    missing = connection.execute(_MISSING).fetchone()
    if missing and missing[0]:
        raise SchemaMismatch(
            f"The database role {connection.info.user} cannot use schema {missing[0]}."
            " Connect as hub_app, made by `hub db init`."
        )


_QUEUE_VERSION_TABLE = """
create table if not exists queue.schema_revision (
    revision        integer primary key,
    compatible_from integer not null,
    applied_at      timestamptz not null default statement_timestamp()
);
revoke insert, update, delete on queue.schema_revision from hub_app;
"""

_MISSING = """
select min(s) from unnest(array['hub', 'audit', 'queue']) s
where to_regnamespace(s) is null or not has_schema_privilege(s, 'USAGE')
"""

# Everything the connected role may do beyond rows, as one array of phrases.
_EXCESS = """
with me as (select * from pg_catalog.pg_roles where rolname = current_user)
select array(
    select 'is a superuser' from me where rolsuper
    union all select 'may create roles' from me where rolcreaterole
    union all select 'may create databases' from me where rolcreatedb
    union all select 'may replicate' from me where rolreplication
    union all select 'bypasses row security' from me where rolbypassrls
    union all select 'may create schemas in this database' where has_database_privilege(current_database(), 'CREATE')
    union all select 'may create temporary tables' where has_database_privilege(current_database(), 'TEMP')
    union all select 'may create objects in schema ' || nspname from pg_catalog.pg_namespace
        where has_schema_privilege(oid, 'CREATE')
    union all select 'owns ' || c.oid::regclass from pg_catalog.pg_class c, me where c.relowner = me.oid
    union all select 'owns schema ' || n.nspname from pg_catalog.pg_namespace n, me where n.nspowner = me.oid
    union all select 'owns function ' || p.oid::regprocedure from pg_catalog.pg_proc p, me where p.proowner = me.oid
    union all select 'owns large objects' from pg_catalog.pg_largeobject_metadata l, me where l.lomowner = me.oid
    union all select 'is a member of role ' || r.rolname from pg_catalog.pg_auth_members m
        join pg_catalog.pg_roles r on r.oid = m.roleid, me where m.member = me.oid
)
"""

_INIT = """
-- Hub: roles, schemas and grants. Run once by a superuser, connected to Hub's database; safe to run again.
do $$
begin
    if not exists (select from pg_roles where rolname = 'hub_owner') then create role hub_owner nologin; end if;
    if not exists (select from pg_roles where rolname = 'hub_migrate') then create role hub_migrate login; end if;
    if not exists (select from pg_roles where rolname = 'hub_app') then create role hub_app login; end if;
    if not exists (
        select from pg_auth_members where roleid = 'hub_owner'::regrole and member = 'hub_migrate'::regrole
    ) then
        grant hub_owner to hub_migrate;
    end if;
    -- What hub_migrate creates must belong to hub_owner, or the default privileges below would not apply to it.
    if not exists (select from pg_db_role_setting where setrole = 'hub_migrate'::regrole and setdatabase = 0) then
        alter role hub_migrate set role = 'hub_owner';
    end if;
end
$$;

revoke all on database :database from public;
grant connect on database :database to hub_migrate, hub_app;
revoke all on schema public from public;

-- Large objects belong to whoever makes them, and nobody here needs any.
do $$
declare
    made regprocedure;
begin
    for made in
        select p.oid from pg_proc p
        where p.pronamespace = 'pg_catalog'::regnamespace and p.proname ~ '^(lo_|lowrite$)'
          and has_function_privilege('hub_app', p.oid, 'EXECUTE')
    loop
        execute format('revoke execute on function %s from public', made);
    end loop;
end
$$;

create schema if not exists hub authorization hub_owner;
create schema if not exists audit authorization hub_owner;
create schema if not exists queue authorization hub_owner;
grant usage on schema hub, audit, queue to hub_app;

alter default privileges for role hub_owner revoke execute on functions from public;
alter default privileges for role hub_owner revoke usage on types from public;
alter default privileges for role hub_owner in schema hub, queue
    grant select, insert, update, delete on tables to hub_app;
alter default privileges for role hub_owner in schema hub, queue grant usage on sequences to hub_app;
alter default privileges for role hub_owner in schema queue grant usage on types to hub_app;
-- The trail is read directly and written only through audit.record.
alter default privileges for role hub_owner in schema audit grant select on tables to hub_app;
"""
