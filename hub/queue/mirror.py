"""For kinds that bring something outside into line with a row: a department and its team, a source and its folder.

An exclusive enqueue is answered with the live job while one runs, so an edit made meanwhile would be forgotten. The
row therefore carries `desired_version`, raised in every edit's transaction, and `synced_version`. The handler reads
the desired version before it reads the row, and returns ``{"synced_version": n}``; when its job ends, that is noted,
and if the row has moved on, the next job is enqueued in the same transaction.

Locks are taken in the order of every edit: first the row, then its jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy.orm import Session

from hub.db import driver
from hub.queue.job import Claimed, Ended
from hub.queue.store import Item


@dataclass(frozen=True)
class Mirror:
    """A table whose rows are mirrored. Jobs name their row as the subject, ``<word>:<id>``, which is also their key.

    schema, table: its name; it has the columns id (uuid), desired_version and synced_version (bigint).
    """

    schema: str
    table: str

    def desired(self, connection: psycopg.Connection[Any], subject: str) -> int | None:
        """The version that the handler is about to bring outside; None if the row is gone."""
        row = connection.execute(self._say("select desired_version from {} where id = %s"), [_id(subject)]).fetchone()
        return row[0] if row else None

    def lock(self, session: Session, job: Claimed) -> None:
        """Kind.locks: the row comes before the job in every transaction that writes both."""
        query = self._say("select from {} where id = %s for no key update")
        driver(session).execute(query, [_id(job.subject)])

    def follow_up(self, session: Session, ended: Ended) -> Item | None:
        """Kind.follow_up: note how far the row is mirrored, and ask for another job if it has moved on."""
        synced = (ended.result or {}).get("synced_version")
        if synced is None:
            return None
        query = self._say(
            "update {} set synced_version = greatest(synced_version, %s) where id = %s"
            " returning desired_version > synced_version"
        )
        row = driver(session).execute(query, [synced, _id(ended.subject)]).fetchone()
        if row is None or not row[0]:
            return None
        return Item(ended.args or {}, key=ended.subject, subject=ended.subject, workspace_id=ended.workspace_id)

    def _say(self, query: str) -> sql.Composed:
        return sql.SQL(query).format(sql.Identifier(self.schema, self.table))


def _id(subject: str | None) -> str:
    return str(subject).partition(":")[2]
