"""Find by reference: from a number or text that somebody quotes to the page that it names, in one step."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote
from uuid import UUID

from flask import Blueprint, Response, request, url_for
from sqlalchemy.orm import Session

from hub import words
from hub.db import driver
from hub.errors import NotFound
from hub.jobs import view
from hub.models import audit, course, person
from hub.queue import reads
from hub.web import auth, respond
from hub.web.auth import Place
from hub.web.state import database

bp = Blueprint("find", __name__)

MAX_WORDS = 200
NUMBER = re.compile(r"[0-9]{1,19}")
REQUEST = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Hit:
    """A page that a reference names."""

    text: str
    url: str


@bp.get("/w/<slug>/find")
def show(slug: str) -> Response:
    """The page that `ref` names, if there is just one; else those it may mean."""
    asked = request.args.get("ref", "").strip()[:MAX_WORDS]
    respond.refuse_unstorable(asked)
    with database().transaction() as session:
        place = auth.enter(session, slug, "workspace.see")
        hits = list(_hits(session, place, asked))
    if respond.wants_json():
        return respond.as_json({"items": [vars(hit) for hit in hits], "next": None})
    if len(hits) == 1:
        return respond.see_other(hits[0].url)
    return respond.render("find/show.html", asked=asked, hits=hits)


def _hits(session: Session, place: Place, asked: str) -> list[Hit]:
    if NUMBER.fullmatch(asked):
        return _numbered(session, place, int(asked))
    if REQUEST.fullmatch(asked.lower()):
        return _of_trail(session, place, audit.Filters(request_id=asked.lower()), request=asked.lower())
    if "@" in asked:
        known = person.find(session, asked)
        who = str(known.id) if known else asked
        return _of_trail(session, place, audit.Filters(who=who), who=who, range="all")
    try:
        return _courses(session, place, UUID(asked))
    except ValueError:
        return []


def _numbered(session: Session, place: Place, number: int) -> list[Hit]:
    slug = place.workspace.slug
    hits = []
    job = reads.get(driver(session), number, place.workspace.id)
    if job is not None:
        text = words.say("find.job", number=str(number), title=view.title(job))
        hits.append(Hit(text, url_for("jobs.show", slug=slug, job_id=number)))
    if place.may("audit.read") and number <= reads.MAX_ID:
        try:
            audit.find(session, place.workspace.id, number)
        except NotFound:
            return hits
        text = words.say("find.event", number=str(number))
        hits.append(Hit(text, url_for("audit.show", slug=slug, event_id=number)))
    return hits


def _of_trail(session: Session, place: Place, filters: audit.Filters, **query: str) -> list[Hit]:
    if not place.may("audit.read") or not audit.entries(session, place.workspace.id, filters, limit=1):
        return []
    address = url_for("audit.index", slug=place.workspace.slug)
    asked = "&".join(f"{name}={quote(value)}" for name, value in query.items())
    return [Hit(words.say("find.events"), f"{address}?{asked}")]


def _courses(session: Session, place: Place, course_id: UUID) -> list[Hit]:
    try:
        found = course.find_course(session, place.workspace.id, course_id)
    except NotFound:
        return []
    text = words.say("find.course", title=found.title)
    return [Hit(text, url_for("courses.show", slug=place.workspace.slug, course_id=course_id))]
