"""Dead letters: jobs that used up their attempts, and what operators decide about them.

A letter is open until it is redriven or discarded, and then never changes again. Redriving makes a new job through the
same enqueue as every other, with the arguments, priority, subject, workspace and key of the dead one, which it names as
its origin. A letter whose key is held by a live job, whose kind is not known here, or that was redriven too often in a
row stays as it is, and the answer says why. Nobody decides here about jobs of people: an admin runs those again.

The statements stand in letters.sql. Who may act, and the audit trail, are the caller's: see `hub.jobs.operate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from psycopg import Connection
from psycopg.rows import dict_row

from hub.db import Database
from hub.queue import kind, store
from hub.queue.kind import EXCLUSIVE
from hub.queue.sql import load

_SQL = load(Path(__file__).with_name("letters.sql"))
# So many letters are decided about in one transaction at most.
BATCH = 100
# Exact up to here; above, a page says "more than 10,000".
MAX_COUNT = 10_000
MAX_ID = 2**63 - 1
MAX_REASON = 500


@dataclass(frozen=True)
class Group:
    """The open letters of one kind and reason. `count` is exact up to MAX_COUNT and one more above it.

    `of_people`: people asked for these jobs, so no operator decides about them.
    """

    kind: str
    code: str
    count: int
    of_people: bool
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True)
class Letter:
    """A dead letter with what its job tells. `state` is open, redriven (as the job `redriven_as`) or discarded.

    `redrives`: the how manieth redriven job in a row this one was; `origin_id` is the one before it.
    """

    job_id: int
    queue: str
    kind: str
    code: str
    live_key: str | None
    of_people: bool
    state: str
    at: datetime
    decided_at: datetime | None
    decided_by_name: str | None
    reason: str | None
    redriven_as: int | None
    workspace_id: UUID
    subject: str | None
    attempt: int
    created_at: datetime
    error: str | None
    origin_id: int | None
    redrives: int


@dataclass(frozen=True)
class Outcome:
    """What came of an act on one letter: the new job `made` of a redrive; or the `problem`, and it is unchanged.

    Problems: no_dead_letter, letter_decided, people_job, unknown_kind, kind_changed, redrive_limit, and live_twin: the
    job `twin` lives and holds the key.
    """

    job_id: int
    kind: str | None = None
    workspace_id: UUID | None = None
    made: int | None = None
    problem: str | None = None
    twin: int | None = None


def groups(connection: Connection[Any]) -> list[Group]:
    """The open letters by kind and reason, the latest first."""
    return [Group(**row) for row in _all(connection, "groups", most=MAX_COUNT + 1)]


def find(connection: Connection[Any], job_id: int) -> Letter | None:
    """The letter of this job, whatever became of it."""
    return next(iter(_these(connection, [job_id])), None)


def page(
    connection: Connection[Any], kind: str, code: str, before: tuple[datetime, int] | None = None, limit: int = 50
) -> tuple[list[Letter], bool]:
    """Up to `limit` open letters of a kind and reason, newest first, older than `before` (a letter's time and job).

    Also whether there are more.
    """
    at, job_id = before or ("infinity", MAX_ID)
    rows = _all(connection, "page", kind=kind, code=code, at=at, job_id=job_id, most=limit + 1)
    return _these(connection, [row["job_id"] for row in rows[:limit]]), len(rows) > limit


def batches(database: Database, kind: str, code: str) -> Iterator[list[int]]:
    """The jobs of all open letters of a kind and reason up to now, oldest first, at most BATCH at a time.

    What fails again while they are decided about is left for another time.
    """
    until = None
    after: tuple[Any, int] = ("-infinity", 0)
    while True:
        with database.autocommit() as connection:
            until = until or _all(connection, "now")[0]["now"]
            values = {"kind": kind, "code": code, "at": after[0], "job_id": after[1], "until": until, "most": BATCH}
            rows = _all(connection, "batch", **values)
        if not rows:
            return
        after = rows[-1]["at"], rows[-1]["job_id"]
        yield [row["job_id"] for row in rows]


def redrive(
    connection: Connection[Any], job_ids: Sequence[int], *, ceiling: int, most: int, by_id: UUID | None, by_name: str
) -> list[Outcome]:
    """Make new jobs from dead letters, in the caller's transaction; one outcome for each letter.

    ceiling: the deployment's ceiling on attempts. most: how many times in a row a job may be redriven. Raises
    ValueError for more letters than BATCH.
    """
    letters = _lock(connection, job_ids)
    outcomes = [_redrive(connection, letters.get(job_id), job_id, ceiling, most) for job_id in dict.fromkeys(job_ids)]
    _decide(connection, "redriven", outcomes, by_id, by_name)
    return outcomes


def discard(
    connection: Connection[Any], job_ids: Sequence[int], *, reason: str, by_id: UUID | None, by_name: str
) -> list[Outcome]:
    """Give letters up for the stated reason, in the caller's transaction; one outcome for each. Raises as `redrive`."""
    letters = _lock(connection, job_ids)
    outcomes = [_undecided(letters.get(job_id), job_id) for job_id in dict.fromkeys(job_ids)]
    _decide(connection, "discarded", outcomes, by_id, by_name, reason)
    return outcomes


def _lock(connection: Connection[Any], job_ids: Sequence[int]) -> dict[int, Mapping[str, Any]]:
    if len(job_ids) > BATCH:
        raise ValueError(f"at most {BATCH} letters are decided about at once")
    known = [job_id for job_id in job_ids if 0 < job_id <= MAX_ID]
    return {row["job_id"]: row for row in _all(connection, "lock", ids=known)}


def _undecided(letter: Mapping[str, Any] | None, job_id: int) -> Outcome:
    """Whether anything may be decided about a letter at all."""
    if letter is None:
        return Outcome(job_id, problem="no_dead_letter")
    problem = "people_job" if letter["of_people"] else "letter_decided" if letter["state"] != "open" else None
    return Outcome(job_id, letter["kind"], letter["workspace_id"], problem=problem)


def _redrive(
    connection: Connection[Any], letter: Mapping[str, Any] | None, job_id: int, ceiling: int, most: int
) -> Outcome:
    outcome = _undecided(letter, job_id)
    if letter is None or outcome.problem:
        return outcome
    declared = kind.find(letter["kind"])
    if declared is None:
        return replace(outcome, problem="unknown_kind")
    if declared.policy == EXCLUSIVE and letter["live_key"] is None:
        return replace(outcome, problem="kind_changed")
    if letter["redrives"] >= most:
        return replace(outcome, problem="redrive_limit")
    made = store.enqueue(
        connection,
        declared,
        letter["args"],
        ceiling=ceiling,
        workspace_id=letter["workspace_id"],
        subject=letter["subject"],
        key=letter["live_key"] if declared.policy == EXCLUSIVE else None,
        priority=letter["priority"],
        origin=(job_id, letter["redrives"] + 1),
    )
    return replace(outcome, made=made.id) if made.created else replace(outcome, problem="live_twin", twin=made.id)


def _decide(
    connection: Connection[Any],
    state: str,
    outcomes: list[Outcome],
    by_id: UUID | None,
    by_name: str,
    reason: str | None = None,
) -> None:
    done = [outcome for outcome in outcomes if outcome.problem is None]
    values = {
        "state": state,
        "ids": [outcome.job_id for outcome in done],
        "made": [outcome.made for outcome in done],
        "by_id": by_id,
        "by_name": by_name,
        "reason": reason,
    }
    if done:
        connection.execute(_SQL["decide"].encode(), values)


def _these(connection: Connection[Any], job_ids: list[int]) -> list[Letter]:
    known = [job_id for job_id in job_ids if 0 < job_id <= MAX_ID]
    found = {row["job_id"]: Letter(**row) for row in _all(connection, "these", ids=known)} if known else {}
    return [found[job_id] for job_id in job_ids if job_id in found]


def _all(connection: Connection[Any], name: str, **values: Any) -> list[Mapping[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return list(cursor.execute(_SQL[name], values).fetchall())
