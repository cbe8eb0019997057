"""Courses, their pages, and tags."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import PurePath
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from flask import Blueprint, Response, after_this_request, request, url_for
from sqlalchemy.orm import Session
from werkzeug.datastructures import FileStorage

from hub import words
from hub.db import driver
from hub.errors import Invalid, Malformed, NotFound, Refusal, Stale
from hub.jobs import view
from hub.models import audit, content, course, importing, markdown, tag
from hub.models.course import Course, CourseLine, PageLine, PageView
from hub.queue import reads
from hub.web import auth, errors, respond
from hub.web.auth import Place
from hub.web.state import database

bp = Blueprint("courses", __name__)

# Bytes. Text shrinks to a third or less, so this holds the 200 MB that an import may unpack.
MAX_UPLOAD = 64 * 1024 * 1024
MAX_QUERY = 200
SHOWN_EVENTS = 10
SHOWN_TAGS = 20

# Courses


@bp.get("/w/<slug>/courses")
def index(slug: str) -> Response:
    """A workspace's courses by title; ``q`` keeps those with these words in it."""
    cursor, limit = respond.paging()
    query = _query("q")
    with database().transaction() as session:
        place = auth.enter(session, slug, "workspace.see")
        after = _cursor(cursor, str, UUID)
        found = course.list_courses(session, place.workspace.id, query=query, after=after, limit=limit + 1)
    lines = found[:limit]
    following = respond.encode_cursor(lines[-1].sort_key, lines[-1].id) if len(found) > limit else None
    if respond.wants_json():
        return respond.as_json({"items": [_course_json(line) for line in lines], "next": following})
    return respond.render(
        "courses/index.html", courses=lines, query=query, first=cursor is None, following=_with_cursor(following)
    )


@bp.get("/w/<slug>/courses/new")
def new(slug: str) -> Response:
    """The forms that make a course: empty, or from a zip file."""
    with database().transaction() as session:
        auth.enter(session, slug, "course.edit")
    return respond.render("courses/new.html", title="", errors={}, import_errors={})


@bp.post("/w/<slug>/courses")
def create(slug: str) -> Response:
    """Make an empty course."""
    fields = _sent(slug, respond.body)
    with database().transaction() as session:
        place = auth.enter(session, slug, "course.edit")
        try:
            made = course.create_course(session, place.workspace.id, fields.get("title"), place.actor)
        except Invalid as error:
            if respond.wants_json():
                raise
            return respond.render(
                "courses/new.html", 422, title=fields.get("title", ""), errors=error.fields, import_errors={}
            )
    return respond.created(
        _course_url(place, made.id), _made_json(made, 0), words.say("courses.created", title=made.title)
    )


@bp.post("/w/<slug>/courses/import")
@respond.takes(MAX_UPLOAD)
def import_zip(slug: str) -> Response:
    """Make a course of a zip file of Markdown files: multipart field ``file``, and ``title`` or the file's name."""
    try:
        fields = _sent(slug, respond.body)
        upload = _upload()
        name = PurePath((upload.filename or "").replace("\\", "/")).name
        title = fields.get("title") or PurePath(name).stem
        with importing.spooled(importing.read_zip(upload.stream)) as pages, database().transaction() as session:
            place = auth.enter(session, slug, "course.edit")
            course_id, count = importing.import_course(session, place.workspace.id, title, pages, place.actor, name)
            made = course.find_course(session, place.workspace.id, course_id)
    except Refusal as error:
        if respond.wants_json() or error.status not in (413, 415, 422):
            raise
        return _import_again(error)
    message = words.say("courses.imported", title=made.title, count=count)
    return respond.created(_course_url(place, course_id), _made_json(made, count), message)


@bp.get("/w/<slug>/courses/<uuid:course_id>")
@bp.get("/w/<slug>/courses/<uuid:course_id>/pages", endpoint="pages")
def show(slug: str, course_id: UUID) -> Response:
    """A course with its pages in order; ``tag`` keeps those with that tag, ``untagged`` those without any."""
    cursor, limit = respond.paging()
    chosen, untagged = _query("tag"), bool(_query("untagged"))
    with database().transaction() as session:
        place = auth.enter(session, slug, "workspace.see")
        found = course.find_course(session, place.workspace.id, course_id)
        after = _cursor(cursor, _position, UUID)
        pages = course.list_pages(session, course_id, tag=chosen, untagged=untagged, after=after, limit=limit + 1)
        total, tagged = course.count_pages(session, course_id)
        shown = pages[:limit]
        following = respond.encode_cursor(shown[-1].position, shown[-1].id) if len(pages) > limit else None
        if respond.wants_json():
            items = [_page_json(page) for page in shown]
            return respond.as_json(_made_json(found, total) | {"tagged": tagged, "items": items, "next": following})
        subject = f"course:{course_id}"
        jobs = reads.latest_for_subject(driver(session), subject)
        tags = tag.of_course(session, course_id, SHOWN_TAGS)
        events = _events(session, place, "course", course_id)
    return respond.render(
        "courses/show.html",
        course=found,
        pages=shown,
        total=total,
        tagged=tagged,
        tags=tags,
        jobs=jobs,
        view=view,
        events=events,
        chosen=chosen,
        untagged=untagged,
        first=cursor is None,
        following=_with_cursor(following),
    )


@bp.patch("/w/<slug>/courses/<uuid:course_id>")
def rename(slug: str, course_id: UUID) -> Response:
    """Give a course another title."""
    title = _sent(slug, respond.body).get("title")
    with database().transaction() as session:
        place = auth.enter(session, slug, "course.edit")
        renamed = course.rename_course(session, place.workspace.id, course_id, title, place.actor)
        total, tagged = course.count_pages(session, course_id)
    return respond.as_json(_made_json(renamed, total) | {"tagged": tagged})


@bp.get("/w/<slug>/courses/<uuid:course_id>/edit")
def rename_form(slug: str, course_id: UUID) -> Response:
    """The form with a course's title."""
    with database().transaction() as session:
        place = auth.enter(session, slug, "course.edit")
        found = course.find_course(session, place.workspace.id, course_id)
    return respond.render("courses/edit.html", course=found, title=found.title, errors={})


@bp.post("/w/<slug>/courses/<uuid:course_id>/edit")
def rename_by_form(slug: str, course_id: UUID) -> Response:
    """Give a course another title, from its form."""
    title = _sent(slug, respond.body).get("title")
    with database().transaction() as session:
        place = auth.enter(session, slug, "course.edit")
        before = course.find_course(session, place.workspace.id, course_id)
        try:
            renamed = course.rename_course(session, place.workspace.id, course_id, title, place.actor)
        except Invalid as error:
            if respond.wants_json():
                raise
            return respond.render("courses/edit.html", 422, course=before, title=title, errors=error.fields)
    return respond.see_other(_course_url(place, course_id), words.say("courses.saved", title=renamed.title))


@bp.get("/w/<slug>/courses/<uuid:course_id>/delete")
def delete_form(slug: str, course_id: UUID) -> Response:
    """What deleting a course would do."""
    with database().transaction() as session:
        place = auth.enter(session, slug, "course.edit")
        found = course.find_course(session, place.workspace.id, course_id)
        total, _tagged = course.count_pages(session, course_id)
    return respond.render("courses/delete.html", course=found, total=total)


@bp.delete("/w/<slug>/courses/<uuid:course_id>")
@bp.post("/w/<slug>/courses/<uuid:course_id>/delete")
def delete(slug: str, course_id: UUID) -> Response:
    """Remove a course with all its pages."""
    with database().transaction() as session:
        place = auth.enter(session, slug, "course.edit")
        found = course.find_course(session, place.workspace.id, course_id)
        pages = course.delete_course(session, place.workspace.id, course_id, place.actor)
    if respond.wants_json() or request.method == "DELETE":
        return respond.as_json({"id": course_id, "pages": pages})
    return respond.see_other(
        url_for("courses.index", slug=place.workspace.slug), words.say("courses.deleted", title=found.title)
    )


# Pages


@bp.get("/w/<slug>/courses/<uuid:course_id>/pages/new")
def new_page(slug: str, course_id: UUID) -> Response:
    """The form for a new page."""
    with database().transaction() as session:
        place = auth.enter(session, slug, "course.edit")
        found = course.find_course(session, place.workspace.id, course_id)
    return respond.render("pages/new.html", course=found, typed=_typed({}), errors={})


@bp.post("/w/<slug>/courses/<uuid:course_id>/pages")
def create_page(slug: str, course_id: UUID) -> Response:
    """Add a page at the end of a course."""
    fields = _sent(slug, _page_fields)
    with database().transaction() as session:
        place = auth.enter(session, slug, "course.edit")
        found = course.find_course(session, place.workspace.id, course_id)
        try:
            page = course.create_page(
                session,
                place.workspace.id,
                course_id,
                title=fields.get("title"),
                body=fields.get("body", ""),
                tags=fields.get("tags", []),
                actor=place.actor,
            )
        except Invalid as error:
            if respond.wants_json():
                raise
            return respond.render("pages/new.html", 422, course=found, typed=_typed(fields), errors=error.fields)
    response = respond.created(_page_url(place, page), _page_json(page), words.say("pages.created", title=page.title))
    response.headers["ETag"] = page.etag
    return response


@bp.get("/w/<slug>/courses/<uuid:course_id>/pages/<uuid:page_id>")
def show_page(slug: str, course_id: UUID, page_id: UUID) -> Response:
    """A page. Support sees all of it but the body."""
    with database().transaction() as session:
        place = auth.enter(session, slug, "workspace.see")
        page = course.read_page(session, place.workspace.id, course_id, page_id)
        if respond.wants_json():
            data = _page_json(page) if place.may("page.read") else _line_json(page)
            response = respond.as_json(data, ETag=page.etag)
            response.make_conditional(request)
            return response
        found = course.find_course(session, place.workspace.id, course_id)
        before, after = course.beside_page(session, page)
        events = _events(session, place, "page", page_id)
    readable = place.may("page.read")
    response = respond.render(
        "pages/show.html",
        course=found,
        page=page,
        html=markdown.render(page.body, page.title) if readable else None,
        before=before,
        after=after,
        events=events,
    )
    response.headers["ETag"] = page.etag
    return response


@bp.patch("/w/<slug>/courses/<uuid:course_id>/pages/<uuid:page_id>")
def edit_page(slug: str, course_id: UUID, page_id: UUID) -> Response:
    """Change title, body or tags of a page, as it is at the ETag in If-Match."""
    fields = _sent(slug, _page_fields)
    with database().transaction() as session:
        place = auth.enter(session, slug, "course.edit")
        try:
            page = course.edit_page(
                session,
                place.workspace.id,
                course_id,
                page_id,
                if_match=request.headers.get("If-Match"),
                fields=fields,
                actor=place.actor,
            )
        except Stale as error:
            _tell_present(error)
            raise
    return respond.as_json(_page_json(page), ETag=page.etag)


@bp.get("/w/<slug>/courses/<uuid:course_id>/pages/<uuid:page_id>/edit")
def edit_form(slug: str, course_id: UUID, page_id: UUID) -> Response:
    """The form with a page's title, body and tags, and the ETag it is based on."""
    with database().transaction() as session:
        place = auth.enter(session, slug, "course.edit")
        page = course.read_page(session, place.workspace.id, course_id, page_id)
        found = course.find_course(session, place.workspace.id, course_id)
    typed = {"title": page.title, "body": page.body, "tags": "\n".join(page.tag_names)}
    return respond.render("pages/edit.html", course=found, page=page, etag=page.etag, typed=typed, errors={})


@bp.post("/w/<slug>/courses/<uuid:course_id>/pages/<uuid:page_id>/edit")
def edit_by_form(slug: str, course_id: UUID, page_id: UUID) -> Response:
    """Save a page's form. Whatever is in the way, the answer keeps all that was typed."""
    with database().transaction() as session:
        place = auth.enter(session, slug, "course.edit")
        found = course.find_course(session, place.workspace.id, course_id)
    # No connection is held while the client sends; the right is asked for again behind that.
    fields = _page_fields()
    etag = fields.pop("etag", None)
    form = {"course": found, "typed": _typed(fields)}
    try:
        with database().transaction() as session:
            place = auth.enter(session, slug, "course.edit")
            page = course.edit_page(
                session,
                place.workspace.id,
                course_id,
                page_id,
                if_match=etag if isinstance(etag, str) else None,
                fields=fields,
                actor=place.actor,
            )
    except Refusal as error:
        if respond.wants_json() or error.status not in (404, 412, 422):
            raise
        return _edit_again(error, place, course_id, page_id, etag, form)
    return respond.see_other(_page_url(place, page), words.say("pages.saved", title=page.title))


@bp.get("/w/<slug>/courses/<uuid:course_id>/pages/<uuid:page_id>/delete")
def delete_page_form(slug: str, course_id: UUID, page_id: UUID) -> Response:
    """What deleting a page would do."""
    with database().transaction() as session:
        place = auth.enter(session, slug, "course.edit")
        page = course.read_page(session, place.workspace.id, course_id, page_id)
        found = course.find_course(session, place.workspace.id, course_id)
    return respond.render("pages/delete.html", course=found, page=page, changed=False)


@bp.delete("/w/<slug>/courses/<uuid:course_id>/pages/<uuid:page_id>")
def delete_page(slug: str, course_id: UUID, page_id: UUID) -> Response:
    """Remove a page, as it is at the ETag in If-Match."""
    with database().transaction() as session:
        place = auth.enter(session, slug, "course.edit")
        if_match = request.headers.get("If-Match")
        try:
            course.delete_page(session, place.workspace.id, course_id, page_id, if_match=if_match, actor=place.actor)
        except Stale as error:
            _tell_present(error)
            raise
    return respond.as_json({"id": page_id})


@bp.post("/w/<slug>/courses/<uuid:course_id>/pages/<uuid:page_id>/delete")
def delete_page_by_form(slug: str, course_id: UUID, page_id: UUID) -> Response:
    """Remove a page, from its confirmation; asks again if it has changed since."""
    etag = _sent(slug, respond.body).get("etag")
    if_match = etag if isinstance(etag, str) else None
    with database().transaction() as session:
        place = auth.enter(session, slug, "course.edit")
        found = course.find_course(session, place.workspace.id, course_id)
        try:
            page = course.delete_page(
                session, place.workspace.id, course_id, page_id, if_match=if_match, actor=place.actor
            )
        except Stale as error:
            if respond.wants_json():
                raise
            return respond.render("pages/delete.html", 412, course=found, page=error.data["page"], changed=True)
    return respond.see_other(_course_url(place, course_id), words.say("pages.deleted", title=page.title))


# Tags


@bp.get("/w/<slug>/tags")
def tags(slug: str) -> Response:
    """A workspace's tags by name, with the number of pages that carry each."""
    cursor, limit = respond.paging()
    with database().transaction() as session:
        place = auth.enter(session, slug, "workspace.see")
        after = _cursor(cursor, str)
        found = tag.of_workspace(session, place.workspace.id, after=after[0] if after else None, limit=limit + 1)
    lines = found[:limit]
    following = respond.encode_cursor(lines[-1].key) if len(found) > limit else None
    if respond.wants_json():
        items = [{"id": line.id, "name": line.name, "pages": line.pages} for line in lines]
        return respond.as_json({"items": items, "next": following})
    return respond.render("tags/index.html", tags=lines, first=cursor is None, following=_with_cursor(following))


# What requests say


def _query(name: str) -> str:
    value = request.args.get(name, "").strip()
    if len(value) > MAX_QUERY:
        raise Malformed("bad_query")
    respond.refuse_unstorable(value)
    return value


def _cursor(cursor: str | None, *kinds: Callable[[str], Any]) -> Any:
    """The parts of a cursor, each made by its one of `kinds`. Raises Malformed for a cursor of something else."""
    if cursor is None:
        return None
    parts = respond.decode_cursor(cursor)
    try:
        return tuple(kind(part) for kind, part in zip(kinds, parts, strict=True))
    except ValueError:
        raise Malformed("bad_cursor") from None


def _position(part: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", part):
        raise ValueError(part)
    return int(part)


def _sent(slug: str, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `read` makes of the request's body, for those who may edit courses.

    The right is asked for first, in a transaction of its own: a client may take its time to send the body, and no
    connection is held meanwhile. The transaction that acts on the body asks again, since a right may be lost by then.
    """
    with database().transaction() as session:
        auth.enter(session, slug, "course.edit")
    return read()


def _upload() -> FileStorage:
    upload = request.files.get("file")
    if upload is None or not upload.filename:
        raise Invalid({"file": words.say("import.no_file")})
    return upload


def _page_fields() -> dict[str, Any]:
    """The fields of a page; a form's tags are one a line, since a tag may hold a comma."""
    fields = respond.body()
    if not request.is_json and "tags" in fields:
        typed = fields["tags"] if isinstance(fields["tags"], list) else [fields["tags"]]
        fields["tags"] = [line for text in typed for line in content.line_ends(text).split("\n") if line.strip()]
    return fields


def _typed(fields: dict[str, Any]) -> dict[str, str]:
    """What a form holds, for showing it again."""
    title, body, names = fields.get("title", ""), fields.get("body", ""), fields.get("tags", [])
    return {
        "title": title if isinstance(title, str) else "",
        "body": content.line_ends(body) if isinstance(body, str) else "",
        "tags": "\n".join(str(name) for name in names) if isinstance(names, list) else "",
    }


# What answers say


def _edit_again(
    error: Refusal, place: Place, course_id: UUID, page_id: UUID, etag: object, form: dict[str, Any]
) -> Response:
    if isinstance(error, Stale):
        return respond.render("pages/conflict.html", 412, page=error.data["page"], **form)
    if isinstance(error, NotFound):
        return respond.render("pages/gone.html", 404, **form)
    assert isinstance(error, Invalid)
    with database().transaction() as session:
        page = course.read_page(session, place.workspace.id, course_id, page_id)
    return respond.render("pages/edit.html", 422, page=page, etag=etag, errors=error.fields, **form)


def _import_again(error: Refusal) -> Response:
    told = error.fields if isinstance(error, Invalid) else {"file": errors.message(error)}
    return respond.render("courses/new.html", error.status, title="", errors={}, import_errors=told)


def _tell_present(error: Stale) -> None:
    """Let the refusal carry the ETag of what is there now."""
    present: PageView = error.data["page"]

    @after_this_request
    def add(response: Response) -> Response:
        response.headers["ETag"] = present.etag
        return response


def _events(session: Session, place: Place, kind: str, target: UUID) -> list[audit.Event] | None:
    """The latest of a thing's history; None for those who may not read the trail."""
    if not place.may("audit.read"):
        return None
    return audit.timeline(session, place.workspace.id, target_kind=kind, target_id=target, limit=SHOWN_EVENTS)


def _with_cursor(cursor: str | None) -> str | None:
    """This list's address at another place; None without a cursor."""
    if cursor is None:
        return None
    return f"{request.path}?{urlencode({**request.args, 'cursor': cursor})}"


def _course_url(place: Place, course_id: UUID) -> str:
    return url_for("courses.show", slug=place.workspace.slug, course_id=course_id)


def _page_url(place: Place, page: PageLine) -> str:
    return url_for("courses.show_page", slug=place.workspace.slug, course_id=page.course_id, page_id=page.id)


def _course_json(line: CourseLine) -> dict[str, Any]:
    return _course(line.id, line.title, line.pages, line.changed_at, line.updated_by) | {"tagged": line.tagged}


def _made_json(found: Course, pages: int) -> dict[str, Any]:
    return _course(found.id, found.title, pages, found.updated_at, found.updated_by)


def _course(course_id: uuid.UUID, title: str, pages: int, changed_at: datetime, by: str) -> dict[str, Any]:
    return {"id": course_id, "title": title, "pages": pages, "updated_at": changed_at, "updated_by": by}


def _page_json(page: PageLine) -> dict[str, Any]:
    return _line_json(page) | ({"body": page.body} if isinstance(page, PageView) else {})


def _line_json(page: PageLine) -> dict[str, Any]:
    return {
        "id": page.id,
        "course_id": page.course_id,
        "title": page.title,
        "tags": page.tag_names,
        "etag": page.etag,
        "updated_at": page.updated_at,
        "updated_by": page.updated_by,
    }
