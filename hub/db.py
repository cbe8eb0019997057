"""The database: pool, transactions, raw connections.

`Database.transaction` is the one place that commits. Models work with its SQLAlchemy session; the queue's own SQL
runs on the psycopg connection beneath (`driver`), so that a job and its cause commit together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import set_json_loads
from pydantic_core import from_json
from sqlalchemy import create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

# For connections that only send prepared statements on keyed rows. A plan made while a table was small would scan it
# and be kept while the table grows, and planning anew each time costs as much as the statement.
KEYED_PLANS = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off"

# A connection that the network swallowed must fail, not hang: without these it hung for minutes.
_CONNECT = {
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}


def connect(
    url: str,
    *,
    application_name: str,
    statement_timeout: float = 30.0,
    lock_timeout: float = 10.0,
    idle_timeout: float = 15.0,
    autocommit: bool = False,
    options: str = "",
) -> psycopg.Connection[Any]:
    """Open one connection of its own. Timeouts are seconds; 0 means none. `options`: more of libpq's.

    `idle_timeout` ends a transaction whose client sleeps: it must stay below the lease, or a frozen worker could keep
    its job's row locked past the lease.
    """
    # The settings travel as start-up options: a pooler in transaction mode would drop them after a SET.
    options += (
        f" -c statement_timeout={int(statement_timeout * 1000)} -c lock_timeout={int(lock_timeout * 1000)}"
        f" -c idle_in_transaction_session_timeout={int(idle_timeout * 1000)} -c timezone=UTC"
        " -c search_path=pg_catalog -c default_transaction_isolation=read\\ committed"
    )
    parameters = _CONNECT | conninfo_to_dict(plain(url)) | {"application_name": application_name, "options": options}
    connection = psycopg.connect(make_conninfo("", **parameters), autocommit=autocommit)
    set_json_loads(from_json, connection)
    return connection


def plain(url: str) -> str:
    """A libpq address from one that may carry SQLAlchemy's driver name (``postgresql+psycopg://``)."""
    return re.sub(r"^postgres(ql)?\+\w+://", "postgresql://", url)


class Database:
    """A pool of connections to one database, as one role.

    `size` is the most connections held at once; further callers wait up to 10 seconds, then get TimeoutError.
    `options` as for `connect`.
    """

    def __init__(self, url: str, *, application_name: str, size: int = 10, **options: Any) -> None:
        self.url = url
        self.application_name = application_name
        self.engine = create_engine(
            "postgresql+psycopg://",
            creator=lambda: connect(url, application_name=application_name, **options),
            pool_size=size,
            max_overflow=0,
            pool_timeout=10,
            pool_pre_ping=True,
            pool_recycle=1800,
            # Statements carry what people wrote; errors, and so the log, do not repeat it.
            hide_parameters=True,
        )
        self._session = sessionmaker(self.engine, expire_on_commit=False)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A session whose changes commit at the end of the block, or not at all if it raises."""
        with self._session.begin() as session:
            yield session

    @contextmanager
    def autocommit(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection on which each statement is a transaction of its own, for the queue's hot path."""
        pooled = self.engine.raw_connection()
        try:
            connection = pooled.driver_connection
            assert isinstance(connection, psycopg.Connection)
            connection.autocommit = True
            yield connection
            connection.autocommit = False
        except BaseException:
            # The connection's state is unknown after an error: a new one is cheap, a wrong one is not.
            pooled.invalidate()
            raise
        finally:
            pooled.close()

    def close(self) -> None:
        """Close all pooled connections."""
        self.engine.dispose()


def driver(session: Session) -> psycopg.Connection[Any]:
    """The psycopg connection beneath a session, inside the same transaction, with pending changes sent."""
    session.flush()
    connection = session.connection().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    return connection


# Classes of SQLSTATE that tell of the server or the way to it, not of the statement: connection, resources (disk full,
# too many connections), shutdown, input and output.
_OUTAGES = ("08", "53", "57P", "58", "25P03")


def is_connection_loss(error: BaseException | None) -> bool:
    """Whether an error means that the database is away for now, rather than that the statement was wrong."""
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or error.orig is None or is_connection_loss(error.orig)
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        # A demoted primary answers reads; writing to it must look like an outage.
        return True
    if isinstance(error, psycopg.Error) and error.sqlstate:
        return error.sqlstate.startswith(_OUTAGES)
    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))


# Another's lock or a deadlock: nothing was written, and the same may succeed a moment later.
CONFLICTS = (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)


def is_conflict(error: BaseException | None) -> bool:
    """Whether a statement failed only because of what others were doing."""
    return isinstance(error.orig if isinstance(error, DBAPIError) else error, CONFLICTS)


def count_statements(database: Database) -> list[str]:
    """A list that fills with each statement sent through the pool's sessions: for tests of a page's query budget."""
    seen: list[str] = []

    @event.listens_for(database.engine, "before_cursor_execute")
    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        seen.append(statement)

    return seen
