"""What making, checking, restoring and downloading backups share: their files, and what can go wrong with those."""

from __future__ import annotations

import fcntl
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from sqlalchemy.orm import Session

from hub import __version__, words
from hub.clients.blob import BlobError, Store, open_store
from hub.config import Settings
from hub.db import Database
from hub.errors import Conflict, NotFound, Unavailable
from hub.models import archive, audit, backup, records
from hub.models.archive import Unreadable, Writer
from hub.models.backup import Backup
from hub.queue import Context, Fail

log = logging.getLogger(__name__)

# The actor's right is checked again after so many records, or bytes of them.
BLOCK_RECORDS = 500
BLOCK_BYTES = 4_000_000
# Whoever follows the writing of an archive is told after so many.
TELL_RECORDS = 50
TELL_BYTES = 500_000


def folder_of(workspace_id: uuid.UUID) -> str:
    """Where the files of a workspace's backups are."""
    return f"backups/{workspace_id}"


def key_of(workspace_id: uuid.UUID, backup_id: uuid.UUID, claim: int) -> str:
    """The key of a backup's file. Every attempt has one of its own, so that no two ever write the same file."""
    return f"{folder_of(workspace_id)}/{backup_id}-{claim:x}.zip"


@contextmanager
def failing(context: Context) -> Iterator[None]:
    """Turn a store's refusal into the job's failure: at once if trying again is of no use, else after the attempts."""
    try:
        yield
    except BlobError as error:
        if error.code != "away" or context.job.attempt >= context.job.max_attempts:
            raise Fail(f"backup_{error.code}") from error
        raise
    except Unreadable as error:
        raise Fail(f"backup_{error.code}") from error


# What stands in every archive


def write(
    writer: Writer,
    connection: records.Connection,
    workspace_id: uuid.UUID,
    told: dict[str, Any],
    moved: Callable[[int, int], None],
) -> Iterator[bytes]:
    """A whole archive of the workspace as the snapshot `connection` sees it, in pieces.

    `told`: more for the manifest. `moved` is told, after every few records, how many those were and of how many bytes.
    """
    yield from writer.readme(words.say("backup.readme"))
    for table in records.TABLES:
        # Closed even if `moved` raises in its middle: what holds the connection would keep its end waiting for ever.
        with closing(records.rows(connection, table, workspace_id)) as rows:
            yield from writer.table(table, _counted(rows, moved))
    yield from writer.finish(told)


def manifest(
    connection: records.Connection, workspace_id: uuid.UUID, actor: audit.Actor, job_id: int | None = None
) -> dict[str, Any]:
    """What the manifest tells beside its entries, read from the snapshot."""
    at = records.moment(connection)
    row = connection.execute(_ABOUT, [workspace_id]).fetchone()
    if row is None:
        raise NotFound
    revision, slug, name = row
    return {
        "app_version": __version__,
        "schema_revision": revision,
        "created_at": at.isoformat().replace("+00:00", "Z"),
        "workspace": {"id": str(workspace_id), "slug": slug, "name": name},
        "job_id": job_id,
        "actor": {"id": None if actor.id is None else str(actor.id), "name": actor.name},
        "counts": records.count(connection, workspace_id),
        "excluded": [{"what": what, "why": words.say(f"backup.excluded.{what}")} for what in records.EXCLUDED],
    }


def _counted(rows: Iterator[bytes], moved: Callable[[int, int], None]) -> Iterator[bytes]:
    count = size = 0
    for row in rows:
        yield row
        count += 1
        size += len(row)
        if count >= TELL_RECORDS or size >= TELL_BYTES:
            moved(count, size)
            count = size = 0
    moved(count, size)


_ABOUT = """
    select (select max(revision) from hub.schema_revision), slug, name from hub.workspace where id = %s
"""


# Backups that are there


def read(settings: Settings, found: Backup, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """The bytes of a backup's file from `start`, before `end`, in pieces, for a download.

    Raises, before the first piece, NotFound("backup_file_missing") or Unavailable("backup_store_away").
    """
    assert found.storage_key is not None
    try:
        return open_store(settings).read(found.storage_key, start, end)
    except BlobError as error:
        raise _refusal(error) from error


def check(database: Database, settings: Settings, found: Backup, actor: audit.Actor) -> Backup:
    """Read a backup's file again from end to end, and note what was found, with its event; returns the backup.

    It holds no transaction meanwhile. Raises Unavailable if the store does not answer, and NotFound if the backup is
    deleted meanwhile.
    """
    result, entry = "ok", None
    assert found.storage_key is not None
    try:
        with open_store(settings).open(found.storage_key) as file:
            archive.check(file, found.sha256)
    except Unreadable as error:
        result, entry = "damaged", None if error.code == "structure" else error.entry
    except BlobError as error:
        if error.code != "missing":
            raise _refusal(error) from error
        result = "missing"
    with database.transaction() as session:
        return backup.mark_checked(session, found, result, actor, entry=entry)


def remove_file(settings: Settings, key: str) -> None:
    """Remove the file of a backup whose deletion has committed; what cannot be removed goes with the next backup."""
    try:
        open_store(settings).delete(key)
    except BlobError as error:
        log.warning("the file of a deleted backup stays for now: %s", error)


def _refusal(error: BlobError) -> NotFound | Unavailable:
    log.warning("a backup cannot be read: %s", error)
    return NotFound("backup_file_missing") if error.code == "missing" else Unavailable("backup_store_away")


def export(settings: Settings, workspace_id: uuid.UUID, path: Path, actor: audit.Actor) -> dict[str, Any]:
    """Write a backup of a workspace to a file of one's own, without a job; returns what it is.

    The file appears whole or not at all. Raises Conflict("file_exists" or "file_in_work"), and what the system says of
    the file.
    """
    if path.exists():
        raise Conflict("file_exists", name=path.name)
    writer = Writer()
    with _drafted(path) as file:
        with records.snapshot(settings.database_url) as connection:
            told = manifest(connection, workspace_id, actor)
            for piece in write(writer, connection, workspace_id, told, lambda records, size: None):
                file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        archive.check(file, writer.sha256)
    told_of = {"bytes": writer.size, "records": sum(told["counts"].values())}
    return told_of | {"file": str(path), "sha256": writer.sha256, "counts": told["counts"]}


@contextmanager
def _drafted(path: Path) -> Iterator[IO[bytes]]:
    """An empty file beside `path`, which gets that name at the end; nothing is left of it if anything is raised.

    It is locked meanwhile: what a killed command has left is written over, what another is writing is not.
    """
    draft = path.with_name(f"{path.name}.part")
    with draft.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict("file_in_work", name=path.name) from None
        try:
            if path.exists():
                # Whoever held the lock has just finished, and this is their file.
                raise Conflict("file_exists", name=path.name)
            file.truncate(0)
            yield file
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


# Files that are nobody's


def sweep(database: Database, store: Store, workspace_id: uuid.UUID, mine: tuple[uuid.UUID, str] | None = None) -> None:
    """Remove the files of a workspace that no backup names: what killed workers left, and what has expired.

    The files of backups that are being made stay, but for `mine`: of that backup, only the files of that key stay.
    """
    # Files first: one that appears after this look, or is published after it, is then found in the rows.
    keys = store.keys(folder_of(workspace_id))
    with database.transaction() as session:
        claimed = backup.claimed_keys(session, workspace_id)
        making = backup.in_making(session, workspace_id)
    for key in keys:
        if key in claimed or _is_kept(key, making, mine):
            continue
        log.info("a file that no backup names is removed", extra={"key": key})
        store.discard(key)


def _is_kept(key: str, making: set[uuid.UUID], mine: tuple[uuid.UUID, str] | None) -> bool:
    try:
        backup_id = uuid.UUID(key.rpartition("/")[2][:36])
    except ValueError:
        # Not one of ours: it is not for us to remove.
        return True
    if mine is not None and backup_id == mine[0]:
        return key.startswith(mine[1])
    return backup_id in making


def discard(store: Store, *keys: str) -> None:
    """Remove what an attempt has written, if that can be done now; else the next backup does."""
    for key in keys:
        with suppress(BlobError):
            store.delete(key)


def record_downloaded(session: Session, found: Backup, actor: audit.Actor) -> None:
    """Write the event of a download."""
    backup.record(session, "backup.downloaded", found, actor, {"bytes": found.bytes})
