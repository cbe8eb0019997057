"""Backups of a workspace: the list, one backup, its download, check and deletion, and how long they are kept.

Making and restoring are jobs, which start as all jobs do (see `hub.web.jobs`).
"""

from __future__ import annotations

import re
import uuid
from typing import Any
from uuid import UUID

from flask import Blueprint, Response, request, url_for
from sqlalchemy.orm import Session

from hub import words
from hub.errors import Invalid, Malformed
from hub.jobs import backups as files
from hub.jobs import view
from hub.models import backup
from hub.models.backup import Backup
from hub.web import auth, respond
from hub.web.auth import Place
from hub.web.state import database, settings

bp = Blueprint("backups", __name__)


@bp.get("/w/<slug>/backups")
def index(slug: str) -> Response:
    """A workspace's backups, newest first, and how long they are kept."""
    cursor, limit = respond.paging()
    with database().transaction() as session:
        place = auth.enter(session, slug, "backup.see")
        found = backup.of_workspace(session, place.workspace.id, before=_before(cursor), limit=limit + 1)
        kept = backup.retention(session, place.workspace.id)
    shown = found[:limit]
    following = respond.encode_cursor(shown[-1].id) if len(found) > limit else None
    if respond.wants_json():
        told = {"keep": kept.keep, "days": kept.days}
        return respond.as_json({"items": [_as_data(one) for one in shown], "next": following, "retention": told})
    return _list_page(shown, {"keep": kept.keep, "days": kept.days}, first=cursor is None, following=following)


def _list_page(
    shown: list[Backup],
    retention: dict[str, Any],
    *,
    first: bool = True,
    following: str | None = None,
    errors: dict[str, str] | None = None,
) -> Response:
    return respond.render(
        "backups/index.html",
        422 if errors else 200,
        backups=shown,
        view=view,
        retention=retention,
        first=first,
        following=following,
        errors=errors or {},
    )


def _before(cursor: str | None) -> UUID | None:
    if cursor is None:
        return None
    try:
        (text,) = respond.decode_cursor(cursor)
        return UUID(text)
    except ValueError:
        raise Malformed("bad_cursor") from None


@bp.post("/w/<slug>/backups/retention")
def retention(slug: str) -> Response:
    """Change how many backups are kept and for how many days: ``{"keep", "days"}``."""
    sent = respond.body()
    with database().transaction() as session:
        place = auth.enter(session, slug, "backup.manage")
        try:
            kept = backup.change_retention(
                session, place.workspace, _number(sent.get("keep")), _number(sent.get("days")), place.actor
            )
        except Invalid as error:
            if respond.wants_json():
                raise
            shown = backup.of_workspace(session, place.workspace.id)
            return _list_page(shown, {name: sent.get(name, "") for name in ("keep", "days")}, errors=error.fields)
        going = backup.will_expire(session, place.workspace.id)
    if respond.wants_json():
        return respond.as_json({"keep": kept.keep, "days": kept.days, "will_expire": going})
    told = words.say("backups.retention.going", count=going) if going else words.say("backups.retention.changed")
    return respond.see_other(url_for("backups.index", slug=slug), told)


def _number(value: object) -> object:
    """What a form sends is text."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value.strip()) else value


@bp.get("/w/<slug>/backups/<uuid:backup_id>")
def show(slug: str, backup_id: UUID) -> Response:
    """One backup: what it holds, whether it is whole, and what can be done with it."""
    with database().transaction() as session:
        place = auth.enter(session, slug, "backup.see")
        found = backup.find(session, place.workspace.id, backup_id)
    if respond.wants_json():
        return respond.as_json(_as_data(found))
    return respond.render("backups/show.html", backup=found, view=view)


@bp.get("/w/<slug>/backups/<uuid:backup_id>/download")
def download(slug: str, backup_id: UUID) -> Response:
    """The backup's file, or the part of it that ``Range`` asks for. No transaction is open while it is sent."""
    with database().transaction() as session:
        place = auth.enter(session, slug, "backup.manage")
        found = backup.find_available(session, place.workspace.id, backup_id)
    assert found.bytes is not None
    part = _part(found)
    if part is None:
        refused = Response(words.say("backups.range"), 416, mimetype="text/plain")
        refused.headers["Content-Range"] = f"bytes */{found.bytes}"
        return refused
    start, end = part
    response = _file_response(place, found, start, end)
    if request.method == "GET" and start == 0:
        # A download that goes on where it broke off is the same one.
        with database().transaction() as session:
            files.record_downloaded(session, found, place.actor)
    return response


def _part(found: Backup) -> tuple[int, int] | None:
    """The bytes that are asked for, all of them without a range or with one of another file; None if there are none.

    Several ranges at once, and what is no range, are answered with the whole, as HTTP allows.
    """
    assert found.bytes is not None
    whole = (0, found.bytes)
    asked = request.range
    if asked is None or asked.units != "bytes" or len(asked.ranges) != 1:
        return whole
    if request.headers.get("If-Range") and request.if_range.etag != found.sha256:
        return whole
    return asked.range_for_length(found.bytes)


def _file_response(place: Place, found: Backup, start: int, end: int) -> Response:
    assert found.bytes is not None
    # Opened for HEAD as well, which must not promise a file that is not there.
    pieces = files.read(settings(), found, start, end)
    partial = (start, end) != (0, found.bytes)
    sent = pieces if request.method == "GET" else ()
    response = Response(sent, 206 if partial else 200, mimetype="application/zip", direct_passthrough=True)
    if partial:
        response.headers["Content-Range"] = f"bytes {start}-{end - 1}/{found.bytes}"
    at = found.snapshot_at or found.created_at
    name = f"hub-{place.workspace.slug}-{at:%Y-%m-%d-%H%M}.zip"
    response.headers["Content-Length"] = str(end - start)
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    response.headers["Accept-Ranges"] = "bytes"
    response.set_etag(str(found.sha256))
    return response


@bp.post("/w/<slug>/backups/<uuid:backup_id>/verify")
def verify(slug: str, backup_id: UUID) -> Response:
    """Read the whole file again and say whether it is what was written."""
    with database().transaction() as session:
        place, found = _enter(session, slug, backup_id)
    checked = files.check(database(), settings(), found, place.actor)
    if respond.wants_json():
        return respond.as_json(_as_data(checked))
    return respond.see_other(_url(slug, backup_id), words.say(f"backups.verified.{checked.check_result}"))


@bp.get("/w/<slug>/backups/<uuid:backup_id>/delete")
def confirm_delete(slug: str, backup_id: UUID) -> Response:
    """The question before a backup is deleted."""
    with database().transaction() as session:
        _, found = _enter(session, slug, backup_id)
        is_only_good = backup.is_only_good(session, found)
    return respond.render("backups/delete.html", backup=found, view=view, is_only_good=is_only_good)


@bp.post("/w/<slug>/backups/<uuid:backup_id>/delete")
@bp.delete("/w/<slug>/backups/<uuid:backup_id>")
def delete(slug: str, backup_id: UUID) -> Response:
    """Delete a backup with its file."""
    with database().transaction() as session:
        place = auth.enter(session, slug, "backup.manage")
        key = backup.delete(session, place.workspace.id, backup_id, place.actor)
    files.remove_file(settings(), key)
    if respond.wants_json():
        return Response(status=204)
    return respond.see_other(url_for("backups.index", slug=slug), words.say("backups.deleted"))


def _enter(session: Session, slug: str, backup_id: UUID) -> tuple[Place, Backup]:
    place = auth.enter(session, slug, "backup.manage")
    return place, backup.find_available(session, place.workspace.id, backup_id)


def _url(slug: str, backup_id: uuid.UUID) -> str:
    return url_for("backups.show", slug=slug, backup_id=backup_id)


def _as_data(found: Backup) -> dict[str, Any]:
    return {
        "id": found.id,
        "title": backup.title(found),
        "state": found.state,
        "label": words.say(f"backups.state.{found.state}"),
        "bytes": found.bytes,
        "sha256": found.sha256,
        "format_version": found.format_version,
        "records": found.records,
        "counts": found.counts,
        "snapshot_at": found.snapshot_at,
        "created_at": found.created_at,
        "created_by": found.created_by_name,
        "finished_at": found.finished_at,
        "check": found.check_result,
        "check_entry": found.check_entry,
        "checked_at": found.checked_at,
        "removed_at": found.removed_at,
        "job_id": found.job_id,
    }
