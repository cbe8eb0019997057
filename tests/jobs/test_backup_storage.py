"""Backups where the storage is a bucket, full, closed or away: a plain reason, no half file, earlier ones untouched."""

from __future__ import annotations

import dataclasses
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hub.jobs import backups
from hub.models import backup
from tests.factories import row, rows, run
from tests.jobs.conftest import Desk
from tests.jobs.test_workspace_restore import restored
from tests.jobs.vault import Vault, add_page, without_ids
from tests.processes import Program, until
from tests.s3 import S3


def fill(desk: Desk, megabytes: int) -> None:
    """So many pages of a megabyte that does not get much smaller."""
    course = desk.course(0)
    for number in range(megabytes):
        add_page(desk, course, number, f"Page {number}", random.Random(number).randbytes(490_000).hex(), "Cells")


def moved_to(desk: Desk, url: str) -> Vault:
    """The desk's backups, kept elsewhere from now on."""
    desk.settings = dataclasses.replace(desk.settings, blob_url=url)
    return Vault(desk)


def end_of(vault: Vault, job_id: int) -> tuple[str, str | None, int, str]:
    """State, reason and attempts of a job, and the state of its backup."""
    job = vault.desk.job(job_id)
    return job.state, job.code, job.attempt, vault.of_job(job_id).state


# A bucket


def test_a_bucket_serves_as_well_as_a_folder(desk: Desk, s3: S3) -> None:
    fill(desk, 18)
    vault = moved_to(desk, s3.url)
    made = vault.make()
    assert s3.names() == [f"hub/{made.storage_key}"]
    job_id = vault.restore(made)
    vault.desk.work()
    copy = restored(vault, job_id)
    assert without_ids(copy.tables(copy.make())) == without_ids(vault.tables(made))
    assert backups.check(desk.database, desk.settings, made, desk.team.actor).check_result == "ok"
    assert b"".join(backups.read(desk.settings, made, 5, 10)) == vault.content(made)[5:10]
    with desk.database.transaction() as session:
        key = backup.delete(session, vault.workspace_id, made.id, desk.team.actor)
    backups.remove_file(desk.settings, key)
    assert f"hub/{made.storage_key}" not in s3.names()


REFUSALS = [("PUT", 403, "AccessDenied", "backup_refused"), ("PUT", 403, "QuotaExceeded", "backup_no_space")]


@pytest.mark.parametrize(("method", "status", "refusal", "code"), REFUSALS)
def test_an_upload_that_is_refused_half_way_fails_at_once_and_leaves_nothing(
    desk: Desk, s3: S3, method: str, status: int, refusal: str, code: str
) -> None:
    vault = moved_to(desk, s3.url)
    earlier = vault.make()
    fill(desk, 20)
    s3.refuse(method, status, refusal, after=1)
    job_id = vault.start()
    desk.work()
    assert end_of(vault, job_id) == ("failed", code, 1, "failed")
    s3.relent()
    assert (s3.names(), s3.unfinished()) == ([f"hub/{earlier.storage_key}"], [])
    vault.manifest(earlier)


def test_a_cancelled_upload_is_aborted(desk: Desk, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(desk, 20)
    vault = moved_to(desk, s3.url)
    job_id = vault.start()
    asked: list[int] = []
    real = backups.records.rows

    def cancel_at_page_tags(connection: Any, table: str, workspace_id: Any) -> Any:
        if table == "page_tags":
            assert s3.unfinished() == [f"hub/backups/{vault.workspace_id}/{backup_file(vault, job_id)}"]
            vault.desk.cancel(job_id)
            asked.append(1)
        return real(connection, table, workspace_id)

    monkeypatch.setattr(backups.records, "rows", cancel_at_page_tags)
    desk.work()
    assert (vault.desk.job(job_id).state, asked) == ("cancelled", [1])
    assert s3.names() == s3.unfinished() == []


def backup_file(vault: Vault, job_id: int) -> str:
    claim = row(vault.database, "select claim from queue.job where id = :id", id=job_id).claim
    return f"{vault.of_job(job_id).id}-{claim:x}.zip"


def test_a_bucket_that_does_not_answer_is_tried_again_and_then_told(desk: Desk, s3: S3) -> None:
    vault = moved_to(desk, s3.url)
    s3.refuse("PUT", 503, "SlowDown")
    s3.refuse("POST", 503, "SlowDown")
    job_id = vault.start()
    for _ in range(2):
        desk.work()
        assert vault.desk.job(job_id).state == "queued"
        run(desk.database, "update queue.job set again_at = statement_timestamp()")
    desk.work()
    assert end_of(vault, job_id) == ("failed", "backup_away", 3, "failed")


# A folder


def earlier_one_is_there(vault: Vault, earlier: backup.Backup) -> bool:
    with vault.database.transaction() as session:
        listed = backup.of_workspace(session, vault.workspace_id, states=("available",))
    content = b"".join(backups.read(vault.desk.settings, earlier))
    return [one.id for one in listed] == [earlier.id] and len(content) == earlier.bytes


def test_a_full_folder_fails_at_once_and_earlier_backups_stay(desk: Desk, tiny: Path) -> None:
    vault = moved_to(desk, f"file:{tiny}")
    earlier = vault.make()
    fill(desk, 6)
    job_id = vault.start()
    desk.work()
    assert end_of(vault, job_id) == ("failed", "backup_no_space", 1, "failed")
    assert vault.files() == [vault.path(earlier).name]
    assert earlier_one_is_there(vault, earlier)
    assert rows(desk.database, "select from queue.dead_letter") == []


def test_a_folder_that_cannot_be_written_fails_at_once(desk: Desk, tiny: Path) -> None:
    vault = moved_to(desk, f"file:{tiny}")
    earlier = vault.make()
    subprocess.run(["mount", "-o", "remount,ro", tiny], check=True)
    job_id = vault.start()
    desk.work()
    assert end_of(vault, job_id) == ("failed", "backup_read_only", 1, "failed")
    assert earlier_one_is_there(vault, earlier)


def test_a_folder_that_cannot_be_made_is_told(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    vault = moved_to(desk, f"file:{tmp_path}/file/blobs")
    job_id = vault.start()
    desk.work()
    assert end_of(vault, job_id) == ("failed", "backup_refused", 1, "failed")


def test_a_limit_on_the_size_of_files_fails_a_worker_at_once(desk: Desk, environ: dict[str, str]) -> None:
    """As the system sets it for users, here to two megabytes."""
    vault = Vault(desk)
    earlier = vault.make()
    fill(desk, 6)
    job_id = vault.start()
    limited = f"ulimit -f 2048 && exec {sys.executable} -m hub worker --lanes workspace.jobs=1"
    worker = Program(["bash", "-c", limited], environ)
    try:
        until(lambda: vault.desk.job(job_id).finished_at)
    finally:
        worker.close()
    assert end_of(vault, job_id) == ("failed", "backup_no_space", 1, "failed")
    assert vault.files() == [vault.path(earlier).name]
    assert earlier_one_is_there(vault, earlier)
