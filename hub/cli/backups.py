"""`hub backup`."""

from __future__ import annotations

import hashlib
import time
import uuid
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hub import words
from hub.cli import base
from hub.errors import Conflict, Forbidden, Invalid

if TYPE_CHECKING:
    from hub.config import Settings
    from hub.db import Database
    from hub.models.archive import Unreadable

# Seconds between two looks at a job that is waited for.
LOOK = 0.3


@click.group()
def backup() -> None:
    """Backups of workspaces."""


@backup.command("create")
@click.option("--workspace", "slug", required=True, help="What to back up.")
@click.option("--file", "path", type=click.Path(path_type=Path), help="Write to this new file, without a job.")
@click.option("--no-wait", is_flag=True, help="Do not wait for the job's end.")
@base.acting_as
@base.as_json
def create(slug: str, path: Path | None, no_wait: bool, email: str | None, as_json: bool) -> int:
    """Back up a workspace: by a job that a worker does, or with --file into a file of yours."""
    from hub.jobs import view

    if path is not None:
        report = _export(slug, path, email)
        told = {"name": report["file"], "records": report["records"], "size": view.size(report["bytes"])}
        base.answer(report, as_json, words.say("backup.cli.exported", **told))
        return 0
    report = _run_job(slug, email, "workspace.backup", {}, no_wait)
    if report["state"] == "succeeded":
        told = {"id": report["backup_id"], "records": report["records"], "size": view.size(report["bytes"])}
        base.answer(report, as_json, words.say("backup.cli.made", **told))
    else:
        base.answer(report, as_json, report["sentence"])
    return 0 if no_wait or report["state"] == "succeeded" else 1


@backup.command("verify")
@click.argument("path", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--sha256", help="What the SHA-256 of the whole file should be.")
@base.as_json
def verify(path: Path, sha256: str | None, as_json: bool) -> int:
    """Say whether a file is a whole backup; exit code 1 if not."""
    from hub.jobs import view
    from hub.models import archive

    with path.open("rb") as file:
        try:
            manifest = archive.check(file, sha256.lower() if sha256 else None)
        except archive.Unreadable as error:
            base.answer({"ok": False, **_reason(error)}, as_json, _sentence(error))
            return 1
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    records = sum(manifest.counts.values())
    report = {
        "ok": True,
        "workspace": manifest.workspace.model_dump(mode="json"),
        "created_at": manifest.created_at.isoformat().replace("+00:00", "Z"),
        "format_version": manifest.format_version,
        "bytes": path.stat().st_size,
        "sha256": digest,
        "records": records,
        "counts": manifest.counts,
        "entries": len(manifest.entries),
    }
    at = view.moment(manifest.created_at, UTC)
    told = {"name": manifest.workspace.name, "at": at, "records": records, "entries": len(manifest.entries)}
    base.answer(report, as_json, words.say("backup.cli.whole", **told))
    return 0


@backup.command("restore")
@click.argument("path", metavar="[FILE]", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--backup", "backup_id", type=click.UUID, help="A stored backup instead of a file; needs --workspace.")
@click.option("--workspace", "slug", help="The workspace that the stored backup is of.")
@click.option("--name", required=True, help="What the new workspace is called.")
@click.option("--admin", metavar="EMAIL", help="Make this person an admin of what is restored from a file.")
@click.option("--no-wait", is_flag=True, help="Do not wait for the job's end.")
@base.acting_as
@base.as_json
def restore(
    path: Path | None,
    backup_id: uuid.UUID | None,
    slug: str | None,
    name: str,
    admin: str | None,
    no_wait: bool,
    email: str | None,
    as_json: bool,
) -> int:
    """Make a new workspace of a backup: of a file at once, of a stored one by a job."""
    if (path is None) == (backup_id is None) or (backup_id is None) != (slug is None):
        raise click.UsageError("Name either a FILE, or a stored backup with --backup and --workspace.")
    if path is not None:
        report = _restore_file(path, name, admin, email) | {"state": "succeeded"}
    else:
        assert slug is not None
        report = _run_job(slug, email, "workspace.restore", {"backup_id": str(backup_id), "name": name}, no_wait)
    if report["state"] != "succeeded":
        base.answer(report, as_json, report["sentence"])
        return 0 if no_wait else 1
    sentences = [words.say("backup.cli.restored", **{key: report[key] for key in ("name", "slug", "records")})]
    sentences += [words.say(f"backup.left_out.{why}", count=count) for why, count in report["left_out"].items()]
    if report["people_left_out"]:
        sentences.append(words.say("backup.cli.left_out", names=", ".join(report["people_left_out"])))
    base.answer(report, as_json, " ".join(sentences))
    return 0


def _export(slug: str, path: Path, email: str | None) -> dict[str, Any]:
    from hub.jobs import backups
    from hub.models import audit

    with base.open_database() as (settings, database):
        with database.transaction() as session:
            actor = base.actor(session, email)
            target = base.workspace(session, slug)
            base.require(session, target, actor, "backup.manage")
        try:
            report = backups.export(settings, target.id, path, actor)
        except OSError as error:
            raise Invalid({"file": error.strerror or str(error)}) from error
        with database.transaction() as session:
            audit.record(
                session,
                "backup.exported",
                actor=actor,
                workspace_id=target.id,
                target_id=target.id,
                target_name=target.name,
                changes={"bytes": report["bytes"], "records": report["records"]},
            )
    return report


def _restore_file(path: Path, name: str, admin: str | None, email: str | None) -> dict[str, Any]:
    from hub.jobs import workspace_restore
    from hub.models import archive

    with base.open_database() as (settings, database), path.open("rb") as file:
        with database.transaction() as session:
            actor = base.actor(session, email)
            if email is not None and base.person(session, email).staff != "operator":
                raise Forbidden(action="backup.manage")
            chosen = base.person(session, admin) if admin is not None else None
        try:
            return workspace_restore.restore_file(settings, file, name, actor, chosen)
        except archive.Unreadable as error:
            raise Invalid({"file": _sentence(error)}) from error


def _run_job(slug: str, email: str | None, kind: str, args: dict[str, Any], no_wait: bool) -> dict[str, Any]:
    """Start a job in somebody's name and wait for its end; what it came to."""
    from hub.db import driver
    from hub.jobs import PEOPLE
    from hub.jobs.create import create
    from hub.queue import reads

    if email is None:
        raise click.UsageError(words.say("backup.error.need_actor"))
    with base.open_database() as (settings, database):
        with database.transaction() as session:
            actor = base.actor(session, email)
            target = base.workspace(session, slug)
            base.require(session, target, actor, "job.start")
            if not no_wait and not reads.has_worker(driver(session), PEOPLE):
                raise Conflict("no_worker")
            made = create(
                session, settings, workspace=target, actor=actor, kind=kind, args=args, key=f"cli-{uuid.uuid4()}"
            )
        return _wait(settings, database, made.job_id, no_wait)


def _wait(settings: Settings, database: Database, job_id: int, no_wait: bool) -> dict[str, Any]:
    from hub.db import driver
    from hub.jobs import view
    from hub.queue import reads

    while True:
        with database.transaction() as session:
            (job,) = reads.these(driver(session), [job_id])
        if job.terminal or no_wait:
            report = {"job_id": job.id, "state": job.state, "code": job.code, "sentence": view.sentence(job, UTC)}
            return report | (job.result or {})
        time.sleep(LOOK)


def _sentence(error: Unreadable) -> str:
    reason = words.say(f"backup.unreadable.{error.code}")
    return f"{reason}: {error.entry}." if error.entry else f"{reason}."


def _reason(error: Unreadable) -> dict[str, Any]:
    return {"code": error.code, "entry": error.entry, "message": _sentence(error)}
