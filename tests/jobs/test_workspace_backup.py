"""workspace.backup: what is in the file, when there is one, and that there is none otherwise."""

from __future__ import annotations

import io
import os
import threading
import uuid
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from hub.jobs import backups, people, workspace_backup
from hub.models import archive, backup, records, workspace
from hub.models import people as members
from tests import factories
from tests.factories import row, rows, run
from tests.invariants import Watch
from tests.jobs.conftest import Desk
from tests.jobs.vault import Vault, add_page

pytestmark = pytest.mark.usefixtures("watch")


@pytest.fixture
def vault(desk: Desk) -> Vault:
    """A team with a course of three pages, two of them tagged."""
    course = desk.course(0)
    for number in (1, 2, 3):
        add_page(desk, course, number, f"Page {number}", f"Text {number}\n", *["Cells", "Life"][: number - 1])
    return Vault(desk)


@contextmanager
def stopped_at(vault: Vault, table: str) -> Iterator[int]:
    """A backup in the middle, come to this table; gives its job. When the block is left, it goes on to its end."""
    reached, go_on = threading.Event(), threading.Event()
    real = records.rows

    def rows_but_wait(connection: Any, name: str, workspace_id: uuid.UUID) -> Iterator[bytes]:
        if name == table:
            reached.set()
            assert go_on.wait(60)
        yield from real(connection, name, workspace_id)

    job_id = vault.start()
    worker = threading.Thread(target=vault.desk.work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "rows", rows_but_wait)
        worker.start()
        assert reached.wait(60)
        try:
            yield job_id
        finally:
            go_on.set()
            worker.join(60)
    assert not worker.is_alive()


# What is in it


def test_a_backup_holds_everything_and_says_so(vault: Vault) -> None:
    made = vault.make()
    manifest = vault.manifest(made)
    tables = vault.tables(made)
    assert {name: len(found) for name, found in tables.items()} == made.counts == manifest.counts
    assert made.counts == {"workspace": 1, "members": 1, "tags": 2, "courses": 1, "pages": 3, "page_tags": 3}
    assert [page["body"] for page in tables["pages"]] == ["Text 1\n", "Text 2\n", "Text 3\n"]
    assert tables["members"][0]["email"] == vault.desk.team.admin.email
    assert {told["what"] for told in manifest.excluded} >= {"passwords", "sessions", "audit_trail", "jobs"}
    assert (made.state, made.check_result, made.bytes) == ("available", "ok", len(vault.content(made)))
    assert vault.files() == [vault.path(made).name]


def test_no_secret_is_in_it(vault: Vault) -> None:
    run(vault.database, "update hub.person set password_hash = 'canary-hash'")
    content = vault.content(vault.make())
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        assert not any(b"canary-hash" in file.read(name) for name in file.namelist())


def test_another_workspaces_rows_are_not_in_it(vault: Vault) -> None:
    other = factories.make_team(vault.database)
    factories.make_course(vault.database, other, 5, title="Theirs")
    before = vault.tables(vault.make())
    assert {page["title"] for page in before["pages"]} == {"Page 1", "Page 2", "Page 3"}
    assert len(before["members"]) == len(before["courses"]) == 1


def test_a_workspace_with_nothing_in_it_can_be_backed_up(desk: Desk) -> None:
    desk.course(0)
    vault = Vault(desk)
    assert vault.make().counts == {
        "workspace": 1, "members": 1, "tags": 0, "courses": 1, "pages": 0, "page_tags": 0
    }  # fmt: skip


def test_equal_contents_make_equal_parts(vault: Vault) -> None:
    first, second = vault.manifest(vault.make()), vault.manifest(vault.make())
    assert first.entries == second.entries
    assert [entry.path for entry in first.entries][0] == "README.txt"


def test_the_job_tells_backup_and_bytes_and_goes_through_all_records(vault: Vault) -> None:
    job_id = vault.start()
    vault.desk.work()
    made = vault.of_job(job_id)
    result = row(vault.database, "select result from queue.detail where job_id = :id", id=job_id).result
    assert (result["backup_id"], result["bytes"]) == (str(made.id), made.bytes)
    job = vault.desk.job(job_id)
    assert (job.state, job.changed, job.total, job.bytes) == ("succeeded", 11, 11, made.bytes)
    events = [event.action for event in rows(vault.database, "select action from audit.event order by id")]
    assert events == ["job.queued", "backup.created", "job.succeeded"]


def test_it_is_the_state_of_its_snapshot_whatever_happens_meanwhile(vault: Vault) -> None:
    before = vault.tables(vault.make())
    page = row(vault.database, "select id, course_id from hub.page order by position limit 1")
    with stopped_at(vault, "pages") as job_id:
        run(vault.database, "update hub.page set body = 'changed', title = 'changed', version = version + 1")
        run(vault.database, "delete from hub.membership where person_id <> :id", id=vault.desk.team.admin.id)
        add_page(vault.desk, page.course_id, 9, "New", "new")
        run(vault.database, "update hub.course set title = 'changed'")
        run(vault.database, "delete from hub.page_tag where page_id = :id", id=page.id)
    made = vault.of_job(job_id)
    assert made.state == "available"
    assert vault.tables(made) == before


# The end


def lose_role(vault: Vault) -> None:
    run(vault.database, "update hub.membership set role = 'member'")


def lose_membership(vault: Vault) -> None:
    run(vault.database, "update hub.membership set enabled = false")


def lose_person(vault: Vault) -> None:
    run(vault.database, "update hub.person set enabled = false")


def lose_workspace(vault: Vault) -> None:
    run(vault.database, "update hub.workspace set enabled = false")


LOSSES = [lose_role, lose_membership, lose_person, lose_workspace]


@pytest.mark.parametrize("lose", LOSSES)
def test_a_right_lost_while_it_waits_ends_it_without_a_file(vault: Vault, lose: Callable[[Vault], None]) -> None:
    job_id = vault.start()
    lose(vault)
    vault.desk.work()
    assert (vault.desk.job(job_id).code, vault.of_job(job_id).state) == ("actor_not_authorized", "failed")
    assert vault.files() == []


def test_a_right_lost_in_the_middle_ends_it_without_a_file(vault: Vault) -> None:
    earlier = vault.make()
    with stopped_at(vault, "page_tags") as job_id:
        assert len(vault.files()) == 2
        lose_membership(vault)
    assert (vault.desk.job(job_id).code, vault.of_job(job_id).state) == ("actor_not_authorized", "failed")
    assert vault.files() == [vault.path(earlier).name]


def test_the_right_is_asked_for_before_every_block(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = people.require_admin

    def count(*args: Any) -> None:
        asked.append(1)
        real(*args)

    monkeypatch.setattr(people, "require_admin", count)
    monkeypatch.setattr(backups, "BLOCK_RECORDS", 2)
    monkeypatch.setattr(backups, "TELL_RECORDS", 1)
    vault.make()
    # Before the work, eleven records in blocks of two, before it is settled, at the end.
    assert len(asked) == 1 + 5 + 1 + 1


@pytest.mark.parametrize("table", ["tags", "pages", "page_tags"])
@pytest.mark.parametrize(
    ("stop", "state"),
    [
        (lambda vault, job_id: lose_role(vault), "failed"),
        (lambda vault, job_id: vault.desk.cancel(job_id), "cancelled"),
    ],
    ids=["right lost", "cancelled"],
)
def test_what_stops_it_between_two_rows_of_a_table_ends_it(
    vault: Vault, monkeypatch: pytest.MonkeyPatch, table: str, stop: Callable[[Vault, int], None], state: str
) -> None:
    for name in ("BLOCK_RECORDS", "TELL_RECORDS"):
        monkeypatch.setattr(backups, name, 1)
    real = records.rows

    def rows_but_stop(connection: Any, name: str, workspace_id: uuid.UUID) -> Iterator[bytes]:
        with closing(real(connection, name, workspace_id)) as found:
            for number, one in enumerate(found):
                if name == table and number == 1:
                    stop(vault, job_id)
                yield one

    monkeypatch.setattr(records, "rows", rows_but_stop)
    job_id = vault.start()
    worker = threading.Thread(target=vault.desk.work, daemon=True)
    worker.start()
    worker.join(30)
    assert not worker.is_alive(), "the end of the snapshot waits for rows that nobody reads"
    assert (vault.desk.job(job_id).state, vault.of_job(job_id).state) == (state, state)
    assert vault.files() == []


def test_a_right_lost_before_the_last_transaction_publishes_nothing(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = workspace_backup.Making.run

    def then_lose(self: Any) -> Any:
        result = real(self)
        assert len(vault.files()) == 1
        lose_role(vault)
        return result

    monkeypatch.setattr(workspace_backup.Making, "run", then_lose)
    job_id = vault.start()
    vault.desk.work()
    assert (vault.desk.job(job_id).code, vault.of_job(job_id).state) == ("actor_not_authorized", "failed")
    assert vault.files() == []
    assert [event.action for event in rows(vault.database, "select action from audit.event order by id")] == [
        "job.queued",
        "job.failed",
    ]


def test_a_cancelled_backup_leaves_nothing(vault: Vault) -> None:
    earlier = vault.make()
    waiting = vault.start()
    vault.desk.cancel(waiting)
    with stopped_at(vault, "page_tags") as running:
        assert len(vault.files()) == 2
        vault.desk.cancel(running)
    for job_id in (waiting, running):
        assert (vault.desk.job(job_id).state, vault.of_job(job_id).state) == ("cancelled", "cancelled")
    assert vault.files() == [vault.path(earlier).name]


def test_a_cancel_request_is_heeded_while_the_file_is_read_back(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    real = archive.check

    def then_cancel(file: Any, sha256: Any = None, moved: Any = None) -> Any:
        vault.desk.cancel(job_id)
        return real(file, sha256, moved)

    monkeypatch.setattr(archive, "check", then_cancel)
    job_id = vault.start()
    vault.desk.work()
    assert vault.desk.job(job_id).state == "cancelled"
    assert vault.files() == []


def test_a_request_to_stop_that_comes_after_everything_is_done_comes_too_late(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = workspace_backup.Making.run

    def then_cancel(self: Any) -> Any:
        result = real(self)
        vault.desk.cancel(job_id)
        return result

    monkeypatch.setattr(workspace_backup.Making, "run", then_cancel)
    job_id = vault.start()
    vault.desk.work()
    assert (vault.desk.job(job_id).state, vault.of_job(job_id).state) == ("succeeded", "available")


def test_a_worker_whose_claim_was_taken_publishes_nothing(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    real = workspace_backup.Making._read_back
    taken: list[int] = []

    def then_lose(self: Any, files: Any, draft: str) -> None:
        real(self, files, draft)
        if not taken:
            taken.append(1)
            run(vault.database, "update queue.job set again_at = statement_timestamp()")
            vault.desk.work()

    monkeypatch.setattr(workspace_backup.Making, "_read_back", then_lose)
    job_id = vault.start()
    vault.desk.work()
    job = vault.desk.job(job_id)
    made = vault.of_job(job_id)
    assert (job.state, job.attempt, made.state) == ("succeeded", 2, "available")
    assert vault.files() == [vault.path(made).name]
    vault.manifest(made)


def test_a_file_that_reads_back_differently_is_never_published(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    real = workspace_backup.Making._read_back

    def spoiled(self: Any, files: Any, draft: str) -> None:
        path = files.folder / draft
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        real(self, files, draft)

    monkeypatch.setattr(workspace_backup.Making, "_read_back", spoiled)
    job_id = vault.start()
    vault.desk.work()
    assert vault.desk.job(job_id).code in ("backup_damaged", "backup_structure")
    assert vault.of_job(job_id).state == "failed"
    assert vault.files() == []


def test_what_killed_workers_left_is_gone_after_the_next_backup(vault: Vault) -> None:
    killed = vault.start()
    vault.desk.work()
    folder = vault.path(vault.of_job(killed)).parent
    dead = vault.of_job(killed)
    for name in (f"{dead.id}-7.zip.part", f"{dead.id}-7.zip.part#1", f"{dead.id}-6.zip", "not-ours.txt"):
        (folder / name).write_bytes(b"half")
    running = vault.start()
    other = vault.of_job(running)
    (folder / f"{other.id}-5.zip.part#2").write_bytes(b"half")
    vault.desk.work()
    left = {vault.path(vault.of_job(job_id)).name for job_id in (killed, running)} | {"not-ours.txt"}
    assert set(vault.files()) == left


def test_a_backup_leaves_the_files_of_another_that_is_being_made(vault: Vault) -> None:
    other = vault.of_job(vault.start())
    vault.desk.cancel(other.job_id or 0)
    run(vault.database, "update hub.backup set state = 'making' where id = :id", id=other.id)
    vault.make()
    folder = vault.path(vault.make()).parent
    (folder / f"{other.id}-9.zip.part#1").write_bytes(b"half")
    vault.make()
    assert f"{other.id}-9.zip.part#1" in vault.files()


def test_what_is_older_than_wanted_goes_with_its_file(vault: Vault) -> None:
    made = [vault.make() for _ in range(2)]
    with vault.database.transaction() as session:
        backup.change_retention(session, vault.desk.team.workspace, 2, 90, vault.desk.team.actor)
    made.append(vault.make())
    states = {one.id: one.state for one in rows(vault.database, "select id, state from hub.backup")}
    assert [states[one.id] for one in made] == ["expired", "available", "available"]
    assert sorted(vault.files()) == sorted(vault.path(one).name for one in made[1:])


def test_a_failed_backup_takes_nothing_away(vault: Vault) -> None:
    made = [vault.make() for _ in range(3)]
    with vault.database.transaction() as session:
        backup.change_retention(session, vault.desk.team.workspace, 1, 90, vault.desk.team.actor)
    job_id = vault.start()
    lose_role(vault)
    vault.desk.work()
    assert vault.desk.job(job_id).state == "failed"
    assert sorted(vault.files()) == sorted(vault.path(one).name for one in made)


# Reading it again


def test_checking_finds_a_whole_a_damaged_and_a_missing_file(vault: Vault) -> None:
    made = vault.make()

    def checked() -> tuple[str | None, str | None]:
        found = backups.check(vault.database, vault.desk.settings, made, vault.desk.team.actor)
        return found.check_result, found.check_entry

    assert checked() == ("ok", None)
    whole = vault.content(made)
    with zipfile.ZipFile(io.BytesIO(whole)) as file:
        inside = file.getinfo("data/pages.jsonl").header_offset + 80
    vault.path(made).write_bytes(whole[:inside] + b"?" + whole[inside + 1 :])
    assert checked() == ("damaged", "data/pages.jsonl")
    vault.path(made).write_bytes(whole[:-10])
    assert checked() == ("damaged", None)
    vault.path(made).unlink()
    assert checked() == ("missing", None)


def test_a_download_reads_any_part(vault: Vault) -> None:
    made = vault.make()
    content = vault.content(made)
    assert b"".join(backups.read(vault.desk.settings, made)) == content
    assert b"".join(backups.read(vault.desk.settings, made, 10, 20)) == content[10:20]
    vault.path(made).unlink()
    with pytest.raises(Exception, match="backup_file_missing"):
        backups.read(vault.desk.settings, made)


def test_a_closed_workspace_is_not_backed_up(vault: Vault) -> None:
    job_id = vault.start()
    with vault.database.transaction() as session:
        found = workspace.find(session, vault.desk.team.workspace.slug)
        assert found is not None
        members.set_workspace_enabled(session, found, False, vault.desk.team.actor)
    vault.desk.work()
    assert vault.desk.job(job_id).state == "failed"
    assert os.listdir(vault.store.folder or "") == []


def test_the_log_of_the_jobs_holds(vault: Vault, watch: Watch) -> None:
    vault.make()
    assert watch.rows("select * from $transition")
