"""The audit trail: of one workspace, of all of them for support, and each event by its address."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import groupby
from typing import Any
from urllib.parse import urlencode
from uuid import UUID
from zoneinfo import ZoneInfo

from flask import Blueprint, Response, request, url_for
from markupsafe import Markup, escape
from sqlalchemy.orm import Session

from hub import words
from hub.errors import Invalid, Malformed, NotFound
from hub.models import audit, course
from hub.models.audit import Entry, Event, Filters
from hub.web import auth, filters, respond
from hub.web.state import database

bp = Blueprint("audit", __name__)

RANGES = {
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
    "all": None,
}
DEFAULT_RANGE = "7d"
PARAMETERS = ("who", "action", "outcome", "target_kind", "target_id", "job", "request", "range", "from", "to")
# Who looks for one thing wants all of its events, not those of the last days.
REFERENCES = ("target_id", "job", "request")
DATES = ("from", "to")
MAX_VALUE = 200
MAX_ID = 2**63 - 1
# Stands for the target while its sentence is escaped; no text that is stored can hold it.
TARGET = "\0"


@bp.get("/w/<slug>/audit")
def index(slug: str) -> Response:
    """A workspace's events, newest first."""
    with database().transaction() as session:
        place = auth.enter(session, slug, "audit.read")
        return _list(session, place.workspace.id, place.zone)


@bp.get("/w/<slug>/audit/<int:event_id>")
def show(slug: str, event_id: int) -> Response:
    """One event of a workspace."""
    with database().transaction() as session:
        place = auth.enter(session, slug, "audit.read")
        return _event(session, place.workspace.id, event_id)


@bp.get("/audit")
def everywhere() -> Response:
    """The events of all workspaces and of none, for support."""
    _require_support()
    with database().transaction() as session:
        return _list(session, None, filters.viewer_zone())


@bp.get("/audit/<int:event_id>")
def show_anywhere(event_id: int) -> Response:
    """One event of any workspace or of none, for support."""
    _require_support()
    with database().transaction() as session:
        return _event(session, None, event_id)


@bp.app_template_global("audit_sentence")
def sentence(event: Event, url: str | None = None) -> Markup:
    """What happened, in the past tense; its target leads to `url`, if that is given."""
    key = f"audit.action.{event.action}"
    said = escape(words.say(key, target=TARGET) if words.has(key) else f"{event.action}: {TARGET}")
    name = event.target_name or words.say("audit.unknown")
    target = Markup('<a href="{}">{}</a>').format(url, name) if url else Markup("<strong>{}</strong>").format(name)
    return Markup(said.replace(TARGET, target))


@bp.app_template_global("audit_actor")
def actor(event: Event) -> str:
    """Who did it, as they were called then, and as what if not as a person."""
    name = event.actor_name or words.say("audit.somebody")
    return f"{words.say('audit.kind.support')}: {name}" if event.actor_kind == "support" else name


@bp.app_template_global("audit_clock")
def clock(event: Event) -> Markup:
    """The time of day of an event, to the second, for lists under headings of days."""
    local = event.at.astimezone(filters.viewer_zone())
    return Markup('<time datetime="{}">{:%H:%M:%S}</time>').format(respond.iso(event.at), local)


# The list


@dataclass(frozen=True)
class Asked:
    """A request's filters: as text, by name; as they are understood; and which of them are wrong."""

    texts: dict[str, str]
    filters: Filters
    range: str
    wrong: dict[str, str]


def _list(session: Session, workspace_id: UUID | None, zone: ZoneInfo) -> Response:
    cursor, limit = respond.paging()
    asked = _asked(zone)
    if asked.wrong:
        if respond.wants_json():
            raise Invalid(asked.wrong)
        return _list_page(422, asked, workspace_id, zone, [], {}, None)
    before = _before(cursor)
    found = audit.entries(session, workspace_id, asked.filters, before=before, limit=limit + 1)
    entries = found[:limit]
    last = entries[-1].event if len(found) > limit else None
    following = respond.encode_cursor(last.at, last.id) if last else None
    if respond.wants_json():
        items = [_json(entry, workspace_id is None) for entry in entries]
        return respond.as_json({"items": items, "next": following})
    return _list_page(200, asked, workspace_id, zone, entries, _links(session, entries), following)


def _list_page(
    status: int,
    asked: Asked,
    workspace_id: UUID | None,
    zone: ZoneInfo,
    entries: list[Entry],
    links: dict[int, str],
    following: str | None,
) -> Response:
    return respond.render(
        "audit/index.html",
        status,
        asked=asked,
        everywhere=workspace_id is None,
        days=_days(entries, zone),
        links=links,
        chips=[(_chip(name, value), _address(asked, **{name: ""})) for name, value in asked.texts.items()],
        zone_name=zone.key,
        ranges=list(RANGES),
        action_groups=audit.GROUPS,
        outcomes=audit.OUTCOMES,
        newest=_address(asked) if request.args.get("cursor") else None,
        older=_address(asked, cursor=following) if following else None,
        wider=_address(asked, range="all", **dict.fromkeys(DATES, "")),
    )


def _asked(zone: ZoneInfo) -> Asked:
    texts = {name: request.args[name].strip() for name in PARAMETERS if request.args.get(name, "").strip()}
    respond.refuse_unstorable(texts)
    wrong = {name: words.say("audit.filter.bad") for name, value in texts.items() if len(value) > MAX_VALUE}
    for name, known in (("outcome", audit.OUTCOMES), ("range", (*RANGES, "dates"))):
        if texts.get(name, known[0]) not in known:
            wrong[name] = words.say("audit.filter.bad")
    job = texts.get("job", "")
    if job and (not re.fullmatch("[0-9]{1,19}", job) or int(job) > MAX_ID):
        wrong["job"] = words.say("audit.filter.bad")
    since, until = _days_asked(texts, zone, wrong)
    span = _range(texts)
    return Asked(
        texts,
        Filters(
            who=texts.get("who", ""),
            action=texts.get("action", ""),
            outcome=texts.get("outcome", ""),
            target_kind=texts.get("target_kind", ""),
            target_id=texts.get("target_id", ""),
            job_id=int(job) if job and "job" not in wrong else None,
            request_id=texts.get("request", ""),
            within=RANGES.get(span),
            since=since,
            until=until,
        ),
        span,
        wrong,
    )


def _range(texts: dict[str, str]) -> str:
    """Which of the ranges holds; "dates" if days are chosen, which win over the others."""
    if any(name in texts for name in DATES):
        return "dates"
    asked = texts.get("range", "")
    if asked in RANGES:
        return asked
    return "all" if any(name in texts for name in REFERENCES) else DEFAULT_RANGE


def _days_asked(
    texts: dict[str, str], zone: ZoneInfo, wrong: dict[str, str]
) -> tuple[datetime | None, datetime | None]:
    """The moments at which the chosen days begin and end where the viewer is; both days are included whole."""
    days = {name: _day(texts[name]) for name in DATES if name in texts}
    wrong |= {name: words.say("audit.filter.bad_date") for name, day in days.items() if day is None}
    first, last = days.get("from"), days.get("to")
    if first and last and last < first:
        wrong["to"] = words.say("audit.filter.bad_order")
    since = _midnight(first, zone) if first else None
    until = _midnight(last + timedelta(days=1), zone) if last else None
    return since, until


def _day(value: str) -> date | None:
    if not re.fullmatch("[12][0-9]{3}-[0-9]{2}-[0-9]{2}", value):
        return None
    try:
        return date.fromisoformat(value)
    except ValueError:
        return None


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, time.min, zone).astimezone(UTC)


def _before(cursor: str | None) -> tuple[datetime, int] | None:
    if cursor is None:
        return None
    parts = respond.decode_cursor(cursor)
    if len(parts) != 2 or not re.fullmatch("[0-9]{1,18}", parts[1]):
        raise Malformed("bad_cursor")
    try:
        at = datetime.fromisoformat(parts[0])
    except ValueError:
        raise Malformed("bad_cursor") from None
    if at.tzinfo is None:
        raise Malformed("bad_cursor")
    return at, int(parts[1])


def _address(asked: Asked, **changes: str) -> str:
    """This list's address with other filters; an empty one is left out, and the list begins at the newest."""
    kept = {name: value for name, value in (asked.texts | changes).items() if value}
    return request.path + (f"?{urlencode(kept)}" if kept else "")


def _chip(name: str, value: str) -> str:
    known = {
        "action": f"audit.group.{value}",
        "outcome": f"audit.outcome.{value}",
        "range": f"audit.filter.range.{value}",
        "target_kind": f"audit.target.{value}",
    }
    key = known.get(name, "")
    told = words.say(key) if words.has(key) else value
    return words.say("audit.filter.chip", name=words.say(f"audit.filter.{name}"), value=told)


def _days(entries: list[Entry], zone: ZoneInfo) -> list[tuple[str, list[Entry]]]:
    def day(entry: Entry) -> str:
        local = entry.event.at.astimezone(zone)
        return f"{local:%A} {local.day} {local:%B %Y}"

    return [(name, list(group)) for name, group in groupby(entries, day)]


# One event


def _event(session: Session, workspace_id: UUID | None, event_id: int) -> Response:
    entry = audit.find(session, workspace_id, event_id)
    if respond.wants_json():
        return respond.as_json(_json(entry, workspace_id is None))
    earlier, later = audit.neighbours(session, entry.event)
    link = _links(session, [entry]).get(event_id)
    return respond.render(
        "audit/show.html",
        entry=entry,
        event=entry.event,
        everywhere=workspace_id is None,
        link=link,
        compares=any(before is not None for _name, before, _after in entry.event.differences),
        earlier=earlier,
        later=later,
        as_text=_as_text(entry),
        utc=UTC,
    )


def _as_text(entry: Entry) -> str:
    """The event in plain lines, for a ticket."""
    event = entry.event
    facts = [
        ("audit.event.reference", str(event.id)),
        ("audit.when", respond.iso(event.at)),
        ("audit.who", actor(event)),
        ("audit.workspace", entry.workspace),
        ("audit.outcome", words.say(f"audit.outcome.{event.outcome}")),
        ("audit.event.action", event.action),
        ("audit.event.target", " ".join(filter(None, (event.target_kind, event.target_id)))),
        ("audit.event.channel", words.say(f"audit.channel.{event.channel}")),
        ("audit.event.address", event.address),
        ("audit.event.request", event.request_id),
        ("audit.event.job", event.job_id),
    ]
    lines = [sentence(event).striptags()]
    lines += [f"{words.say(key)}: {value}" for key, value in facts if value]
    for name, before, after in event.differences:
        told = _plain(after) if before is None else f"{_plain(before)} → {_plain(after)}"
        lines.append(f"{words.say(f'audit.field.{name}')}: {told}")
    return "\n".join(lines)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or words.say("audit.event.not_set")
    return words.say("audit.event.not_set") if value in (None, "") else str(value)


# Both


def _links(session: Session, entries: Iterable[Entry]) -> dict[int, str]:
    """Where the targets of events are, by the events' ids; what is deleted, or nowhere, has none."""
    of_kind: dict[str, set[UUID]] = {"course": set(), "page": set()}
    for entry in entries:
        target = _id(entry.event)
        if target and entry.event.target_kind in of_kind:
            of_kind[entry.event.target_kind].add(target)
    courses = course.existing_courses(session, of_kind["course"]) if of_kind["course"] else set()
    pages = course.find_pages(session, of_kind["page"]) if of_kind["page"] else {}
    links = {entry.event.id: _link(entry, courses, pages) for entry in entries}
    return {event_id: link for event_id, link in links.items() if link}


def _link(entry: Entry, courses: set[UUID], pages: dict[UUID, course.PageLink]) -> str | None:
    event, slug, target = entry.event, entry.slug, _id(entry.event)
    if slug is None:
        return None
    if event.target_kind == "job" and event.job_id:
        return url_for("jobs.show", slug=slug, job_id=event.job_id)
    if event.target_kind == "course" and target in courses:
        return url_for("courses.show", slug=slug, course_id=target)
    if event.target_kind == "page" and target in pages:
        page = pages[target]
        return url_for("courses.show_page", slug=slug, course_id=page.course_id, page_id=page.id)
    return None


def _id(event: Event) -> UUID | None:
    try:
        return UUID(event.target_id or "")
    except ValueError:
        return None


def _json(entry: Entry, with_workspace: bool) -> dict[str, Any]:
    event = entry.event
    data = {
        "id": str(event.id),
        "at": event.at,
        "action": event.action,
        "sentence": sentence(event).striptags(),
        "actor": event.actor_name,
        "actor_id": event.actor_id,
        "actor_kind": event.actor_kind,
        "channel": event.channel,
        "address": event.address,
        "target": {"kind": event.target_kind, "id": event.target_id, "name": event.target_name},
        "outcome": event.outcome,
        "request_id": event.request_id,
        "job_id": event.job_id,
        "changes": event.changes,
    }
    return data | ({"workspace": entry.slug} if with_workspace else {})


def _require_support() -> None:
    if auth.require_visitor().person.staff != "support":
        raise NotFound
