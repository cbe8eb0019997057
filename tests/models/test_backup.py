"""Backups as rows: which there are, how long they are kept, and who may find them."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from hub.db import Database
from hub.errors import Conflict, Invalid, NotFound
from hub.jobs import people
from hub.models import backup
from tests import factories
from tests.factories import Team, rows


@pytest.fixture
def team(database: Database) -> Team:
    return factories.make_team(database)


def add(database: Database, team: Team, state: str = "available", days: float = 0, **columns: Any) -> uuid.UUID:
    """A backup made so many days ago; available ones were found whole."""
    with database.transaction() as session:
        added = backup.begin(session, team.workspace.id, team.actor)
        values: dict[str, Any] = {"state": state}
        if state != "making":
            values |= {"storage_key": f"backups/{added.id}.zip", "bytes": 10, "sha256": "00", "format_version": 1}
            values |= {"check_result": "ok", "counts": {"pages": 3, "courses": 1}}
            values |= dict.fromkeys(("snapshot_at", "finished_at"), datetime.now(UTC) - timedelta(days=days))
        for name, value in (values | columns).items():
            setattr(added, name, value)
        return added.id


def available(database: Database, team: Team) -> set[uuid.UUID]:
    with database.transaction() as session:
        return {one.id for one in backup.of_workspace(session, team.workspace.id, states=("available",))}


def expire(database: Database, team: Team) -> int:
    with database.transaction() as session:
        return backup.expire(session, team.workspace.id, people.HUB)


def keep(database: Database, team: Team, count: int, days: int = 90) -> None:
    with database.transaction() as session:
        backup.change_retention(session, team.workspace, count, days, team.actor)


def test_the_list_is_newest_first_in_pages_and_of_one_workspace(database: Database, team: Team) -> None:
    ids = [add(database, team, state) for state in ("available", "failed", "making", "cancelled", "available")]
    add(database, team, "deleted")
    add(database, factories.make_team(database))
    with database.transaction() as session:
        first = backup.of_workspace(session, team.workspace.id, limit=2)
        rest = backup.of_workspace(session, team.workspace.id, before=first[-1].id)
    assert [one.id for one in first + rest] == ids[::-1]
    assert first[0].records == 4


def test_a_backup_of_another_workspace_cannot_be_found(database: Database, team: Team) -> None:
    theirs = add(database, factories.make_team(database))
    with database.transaction() as session:
        for look in (backup.find, backup.find_available):
            with pytest.raises(NotFound):
                look(session, team.workspace.id, theirs)
        with pytest.raises(NotFound):
            backup.delete(session, team.workspace.id, theirs, team.actor)


def test_only_available_backups_have_a_file_to_read(database: Database, team: Team) -> None:
    for state in ("making", "failed", "cancelled", "expired", "deleted"):
        one = add(database, team, state)
        with database.transaction() as session, pytest.raises(NotFound):
            backup.find_available(session, team.workspace.id, one)


def test_nothing_is_available_without_its_file_size_and_hash(database: Database, team: Team) -> None:
    with pytest.raises(IntegrityError):
        add(database, team, storage_key=None)
    with pytest.raises(IntegrityError):
        add(database, team, sha256=None)


def test_only_as_many_as_wanted_are_kept(database: Database, team: Team) -> None:
    ids = [add(database, team) for _ in range(5)]
    keep(database, team, 3)
    assert expire(database, team) == 2
    assert available(database, team) == set(ids[2:])
    assert expire(database, team) == 0
    events = rows(database, "select target_id, changes from audit.event where action = 'backup.expired'")
    assert {event.target_id for event in events} == {str(one) for one in ids[:2]}


def test_old_ones_go_but_never_the_last_good_one(database: Database, team: Team) -> None:
    ids = [add(database, team, days=days) for days in (200, 150, 100)]
    keep(database, team, 10, days=30)
    assert expire(database, team) == 2
    assert available(database, team) == {ids[2]}
    assert expire(database, team) == 0


@pytest.mark.parametrize("result", ["damaged", "missing"])
def test_damaged_ones_never_push_the_last_good_one_out(database: Database, team: Team, result: str) -> None:
    good = add(database, team, days=100)
    damaged = [add(database, team, days=1, check_result=result) for _ in range(3)]
    keep(database, team, 1, days=30)
    assert expire(database, team) == 2
    assert available(database, team) == {good, damaged[-1]}


def test_another_workspaces_backups_are_not_touched_by_retention(database: Database, team: Team) -> None:
    other = factories.make_team(database)
    for _ in range(3):
        add(database, other)
        add(database, team)
    keep(database, team, 1)
    assert expire(database, team) == 2
    assert len(available(database, other)) == 3


@pytest.mark.parametrize(
    ("count", "days"), [(0, 1), (1, 0), (1001, 1), (1, 3651), ("3", 1), (True, 1), (None, 1), (1.5, 1)]
)
def test_a_retention_that_makes_no_sense_is_refused_by_its_field(
    database: Database, team: Team, count: Any, days: Any
) -> None:
    with database.transaction() as session, pytest.raises(Invalid) as refused:
        backup.change_retention(session, team.workspace, count, days, team.actor)
    assert set(refused.value.fields) == ({"days"} if count == 1 and count is not True else {"keep"})


def test_a_change_of_retention_is_told_once_with_what_changed(database: Database, team: Team) -> None:
    keep(database, team, 5)
    keep(database, team, 5)
    (event,) = rows(database, "select changes from audit.event where action = 'backup.retention_changed'")
    assert event.changes == {"keep": [10, 5]}
    with database.transaction() as session:
        assert backup.retention(session, team.workspace.id) == backup.Retention(5, 90)


def test_deleting_is_told_and_gives_the_file_free(database: Database, team: Team) -> None:
    one, other = add(database, team), add(database, team)
    with database.transaction() as session:
        key = backup.delete(session, team.workspace.id, one, team.actor)
        assert backup.claimed_keys(session, team.workspace.id) == {f"backups/{other}.zip"}
    assert key == f"backups/{one}.zip"
    assert available(database, team) == {other}
    with database.transaction() as session, pytest.raises(NotFound):
        backup.delete(session, team.workspace.id, one, team.actor)
    assert len(rows(database, "select from audit.event where action = 'backup.deleted'")) == 1


def test_a_backup_that_is_being_made_is_not_deleted(database: Database, team: Team) -> None:
    one = add(database, team, "making")
    with database.transaction() as session, pytest.raises(Conflict, match="backup_in_work"):
        backup.delete(session, team.workspace.id, one, team.actor)


def test_what_a_check_finds_is_kept_and_told(database: Database, team: Team) -> None:
    one = add(database, team)
    with database.transaction() as session:
        found = backup.find(session, team.workspace.id, one)
        found = backup.mark_checked(session, found, "damaged", team.actor, entry="data/pages.jsonl")
        assert (found.check_result, found.check_entry, found.is_good) == ("damaged", "data/pages.jsonl", False)
        assert backup.last_good(session, team.workspace.id) is None
        found = backup.mark_checked(session, found, "ok", team.actor)
        assert (found.check_result, found.check_entry, found.is_good) == ("ok", None, True)
    outcomes = rows(database, "select outcome from audit.event where action = 'backup.verified' order by id")
    assert [event.outcome for event in outcomes] == ["failed", "done"]


def test_a_backup_becomes_available_once_and_only_with_its_file(database: Database, team: Team) -> None:
    bare = add(database, team, "making", job_id=1)
    ready = add(database, team, "making", job_id=2, storage_key="k", bytes=1, sha256="0", format_version=1)
    factories.run(database, "update hub.backup set snapshot_at = statement_timestamp() where id = :id", id=ready)
    with database.transaction() as session:
        assert backup.publish(session, 1) is None
        published = backup.publish(session, 2)
        assert published is not None and published.is_good
        assert backup.publish(session, 2) is None
        backup.give_up(session, 1, "failed")
        backup.give_up(session, 2, "failed")
    assert available(database, team) == {ready}
    with database.transaction() as session:
        assert backup.find(session, team.workspace.id, bare).state == "failed"
