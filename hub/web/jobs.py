"""Jobs that people start: the list, starting, a job's page with its live view, cancel, run again, failures as CSV."""

from __future__ import annotations

import csv
import io
import re
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from flask import Blueprint, Response, current_app, request, url_for
from flask.blueprints import BlueprintSetupState
from jinja2 import Template
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from hub import words
from hub.db import driver
from hub.errors import Conflict, Invalid, Malformed, NotFound, Refusal, TooMany
from hub.jobs import cancel as cancelling
from hub.jobs import create as creating
from hub.jobs import kinds, view
from hub.models import audit, rate
from hub.queue import reads
from hub.queue.reads import Job
from hub.web import address, auth, errors, filters, respond, stream
from hub.web.auth import Place, passive
from hub.web.state import database, settings

bp = Blueprint("jobs", __name__)

MAX_ROWS = 200
MAX_WORDS = 200
RANGES = {
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
# A cell that begins so would be taken for a formula by spreadsheets, also behind what cannot be seen.
FORMULA = re.compile(r"^[\s\u200b-\u200f\u2060\ufeff]*[=+\-@＝＋－＠]|^[\t\r]")


@bp.record_once
def _give_templates(setup: BlueprintSetupState) -> None:
    setup.app.jinja_env.globals["live_words"] = _live_words
    setup.app.jinja_env.filters["from_iso"] = datetime.fromisoformat


def _live_words() -> dict[str, str]:
    """The words that live.js fills in by itself."""
    mine = {key.removeprefix("jobs.live."): text for key, text in words.WORDS.items() if key.startswith("jobs.live.")}
    return mine | {key: text for key, text in words.WORDS.items() if key.startswith("duration.")}


# The list


@bp.get("/w/<slug>/jobs")
def index(slug: str) -> Response:
    """A workspace's jobs, newest first."""
    cursor, limit = respond.paging()
    with database().transaction() as session:
        place = auth.enter(session, slug, "workspace.see")
        chosen = _filters(session, place)
        connection = driver(session)
        page = reads.page(connection, place.workspace.id, chosen, _before(cursor), limit)
        counts = {} if respond.wants_json() else reads.counts(connection, place.workspace.id, chosen)
    last = respond.encode_cursor(page.jobs[-1].id) if page.more else None
    if respond.wants_json():
        return respond.as_json({"items": [view.snapshot(job, place.zone) for job in page.jobs], "next": last})
    return respond.render(
        "jobs/index.html",
        jobs=page.jobs,
        view=view,
        counts=counts,
        chips=_chips(place),
        kinds={name: view.kind_name(name) for name in sorted(kinds())},
        buckets=reads.BUCKETS,
        most=reads.MAX_COUNT,
        ranges=list(RANGES),
        with_filter=_with_filter,
        older=_with_filter(cursor=last) if last else None,
        newest=_with_filter(cursor=None) if cursor else None,
        icons=filters.asset("icons.svg"),
    )


@bp.get("/w/<slug>/jobs/rows")
@passive
def rows(slug: str) -> Response:
    """The changing cells of the jobs that a list shows, by their ids, and how many are newer than `newest`."""
    ids = _ids(request.args.get("ids", ""))
    newest = _ids(request.args.get("newest", ""))
    with database().transaction() as session:
        place = auth.enter(session, slug, "workspace.see")
        connection = driver(session)
        found = [job for job in reads.these(connection, ids) if job.workspace_id == place.workspace.id]
        newer = reads.newer(connection, place.workspace.id, newest[0]) if newest else 0
    response = respond.render("jobs/_rows.html", jobs=found, newer=newer, view=view, icons=filters.asset("icons.svg"))
    response.headers["Hub-Now"] = respond.iso(filters.now()) or ""
    return response


def _before(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    parts = respond.decode_cursor(cursor)
    if len(parts) != 1 or not re.fullmatch(r"[0-9]{1,19}", parts[0]):
        raise Malformed("bad_cursor")
    return min(int(parts[0]), reads.MAX_ID)


def _ids(text: str) -> list[int]:
    if not text:
        return []
    parts = text.split(",")
    if len(parts) > MAX_ROWS or not all(re.fullmatch(r"[0-9]{1,19}", part) for part in parts):
        raise Malformed("bad_ids")
    return [int(part) for part in parts if int(part) <= reads.MAX_ID]


def _filters(session: Session, place: Place) -> reads.Filters:
    """What the address asks for. Raises Invalid, naming each wrong parameter."""
    asked = {name: value for name, value in request.args.items() if value}
    respond.refuse_unstorable(asked)
    wrong: dict[str, str] = {}
    bucket = _one_of(asked, "state", reads.BUCKETS, wrong)
    span = _one_of(asked, "range", (*RANGES, "all"), wrong)
    if len(asked.get("q", "")) > MAX_WORDS or len(asked.get("kind", "")) > MAX_WORDS:
        wrong["q"] = words.say("jobs.filter.unknown")
    actor = _person(asked.get("by", ""), place, wrong)
    if wrong:
        raise Invalid(wrong)
    since = session.scalar(select(func.statement_timestamp() - RANGES[span])) if span in RANGES else None
    return reads.Filters(
        bucket=bucket,
        kind=asked.get("kind"),
        words=asked.get("q"),
        actor=actor,
        since=since,
        problems="problems" in asked,
    )


def _one_of(asked: dict[str, str], name: str, known: tuple[str, ...], wrong: dict[str, str]) -> str | None:
    value = asked.get(name)
    if value is not None and value not in known:
        wrong[name] = words.say("jobs.filter.unknown")
    return value


def _person(text: str, place: Place, wrong: dict[str, str]) -> UUID | None:
    if not text:
        return None
    if text == "me":
        return place.person.id
    try:
        return UUID(text)
    except ValueError:
        wrong["by"] = words.say("jobs.filter.unknown")
        return None


def _with_filter(**changes: str | None) -> str:
    """This list's address with some parameters changed; None removes one. A changed filter begins at the newest."""
    kept = {name: value for name, value in request.args.items() if value and name != "cursor"} | changes
    query = urlencode({name: value for name, value in kept.items() if value})
    return request.path + (f"?{query}" if query else "")


def _chips(place: Place) -> list[tuple[str, str]]:
    """Each active filter in words, with the address without it."""
    asked = {name: value for name, value in request.args.items() if value}
    told = {
        "state": lambda value: words.say("jobs.filter.state", value=words.say(f"jobs.bucket.{value}")),
        "kind": view.kind_name,
        "q": lambda value: words.say("jobs.filter.about", value=value),
        "by": lambda value: words.say(
            "jobs.filter.by_me_chip" if value == "me" else "jobs.filter.by_chip", value=value
        ),
        "range": lambda value: words.say(f"jobs.filter.range_{value}"),
        "problems": lambda _value: words.say("jobs.filter.problems"),
    }
    return [(tell(asked[name]), _with_filter(**{name: None})) for name, tell in told.items() if name in asked]


# Starting


@bp.get("/w/<slug>/courses/<uuid:course_id>/tag")
def start_tagging(slug: str, course_id: UUID) -> Response:
    """The form that starts to tag a course."""
    return _start_page(slug, Entered("course.tag", args=request.args.to_dict() | {"course_id": str(course_id)}))


@bp.get("/w/<slug>/backups/new")
def back_up(slug: str) -> Response:
    """The form that starts a backup of the workspace."""
    return _start_page(slug, Entered("workspace.backup", args={}))


@bp.get("/w/<slug>/backups/<uuid:backup_id>/restore")
def restore(slug: str, backup_id: UUID) -> Response:
    """The form that restores a backup into a new workspace."""
    return _start_page(slug, Entered("workspace.restore", args={"backup_id": str(backup_id)}))


@bp.get("/w/<slug>/jobs/new/<kind>")
def new(slug: str, kind: str) -> Response:
    """The form that starts a job of any kind; what it is about stands in the address, as in ``?course_id=…``."""
    return _start_page(slug, Entered(kind, args=request.args.to_dict()))


@bp.post("/w/<slug>/jobs")
def create(slug: str) -> Response:
    """Start a job: from JSON, or from the form of a start page."""
    with database().transaction() as session:
        place = auth.enter(session, slug, "job.start")
    try:
        _spend_budget()
        entered = _entered()
        return _start(place, entered.kind, entered.args, entered.key)
    except (Invalid, Conflict, TooMany) as error:
        if respond.wants_json():
            raise
        return _form_again(slug, error)


@dataclass(frozen=True)
class Entered:
    """What somebody asks for, as it came; of a form also what was typed, to be shown again."""

    kind: Any = ""
    args: Any = None
    key: Any = ""


def _spend_budget() -> None:
    """Count the request for its address, in a transaction of its own: a refused one counts too."""
    key = f"create:{address.budget_key(request.remote_addr)}"
    with database().transaction() as session:
        verdict = rate.hit(session, key, limit=settings().jobs_create_per_minute)
    if not verdict.allowed:
        raise TooMany("rate_limited", retry_after=verdict.retry_after)


def _entered() -> Entered:
    """The creation in the request's body. Raises Malformed; Invalid for two keys that differ."""
    body = respond.body()
    args = body.get("args", {}) if request.is_json else _form_args(body)
    return Entered(body.get("kind"), args, _key(body))


def _key(body: dict[str, Any]) -> Any:
    header = request.headers.get("Idempotency-Key")
    in_body = body.get("idempotency_key")
    if header is not None and in_body is not None and header != in_body:
        raise Invalid({"idempotency_key": words.say("jobs.error.two_keys")})
    return header if in_body is None else in_body


def _form_args(body: dict[str, Any]) -> dict[str, Any]:
    """Arguments from a form: ``args.pages`` is a text, ``args.tags[]`` a list, at commas and line ends."""
    args: dict[str, Any] = {}
    for name, value in body.items():
        field = name.removeprefix("args.")
        if field == name:
            continue
        if field.endswith("[]"):
            texts = value if isinstance(value, list) else [value]
            parts = [part.strip() for text in texts for part in re.split(r"[,\n\r]", text)]
            args[field.removesuffix("[]")] = [part for part in parts if part]
        else:
            args[field] = value
    return args


def _start(place: Place, kind: Any, args: Any, key: Any) -> Response:
    with database().transaction() as session:
        made = creating.create(
            session, settings(), workspace=place.workspace, actor=place.actor, kind=kind, args=args, key=key
        )
        job = _load(session, place, made.job_id)
    url = _url(place, job)
    if respond.wants_json():
        snapshot = view.snapshot(job, place.zone)
        return respond.created(url, snapshot) if made.created else respond.as_json(snapshot, Location=url)
    started = f"jobs.started.{job.kind}"
    new = words.say(started if words.has(started) else "jobs.started")
    return respond.see_other(url, new if made.created else words.say("jobs.already_started"))


def _form_again(slug: str, error: Refusal) -> Response:
    """The form that was sent, with what was entered and what is wrong; raises `error` if the form is not ours."""
    try:
        entered = _entered()
    except Refusal:
        raise error from None
    if not isinstance(entered.args, dict) or not isinstance(entered.kind, str):
        raise error
    try:
        response = _start_page(slug, entered, error)
    except NotFound:
        # There is no such form to show again, so the refusal is told by itself.
        raise error from None
    errors.record_refusal(error)
    return response


def _start_page(slug: str, entered: Entered, error: Refusal | None = None) -> Response:
    """The start page with what was entered. After a field error or a limit the same key may be used again."""
    respond.refuse_unstorable(entered.args)
    declared = kinds().get(entered.kind)
    with database().transaction() as session:
        place = auth.enter(session, slug, "job.start")
        if declared is None or declared.form is None:
            raise NotFound
        form = declared.form(session, place.workspace, entered.args)
        active = reads.active_for_subject(driver(session), form.subject)
    response = respond.render(
        "jobs/start.html",
        error.status if error else 200,
        kind=_kind_template(declared.name),
        name=declared.name,
        form=form,
        here=f"{url_for('jobs.new', slug=slug, kind=declared.name)}?{urlencode(_texts(entered.args))}",
        values=entered.args,
        key=entered.key if error and isinstance(entered.key, str) and entered.key else str(uuid.uuid4()),
        active=active,
        view=view,
        error=error,
        message=errors.message(error) if error else "",
        fields=error.fields if isinstance(error, Invalid) else {},
    )
    if isinstance(error, TooMany):
        response.headers["Retry-After"] = str(error.retry_after)
    return response


def _texts(args: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, value in args.items() if isinstance(value, str)}


# One job


@bp.get("/w/<slug>/jobs/<int:job_id>")
def show(slug: str, job_id: int) -> Response:
    """A job's page, or its live snapshot as JSON."""
    with database().transaction() as session:
        place, job = _enter(session, slug, job_id, "workspace.see")
        connection = driver(session)
        attempts = reads.attempts(connection, job.id)
        if respond.wants_json():
            return respond.as_json(view.snapshot(job, place.zone) | {"attempts": [_attempt(a) for a in attempts]})
        label = view.label(job)
        ahead = reads.ahead(connection, job) if label == "waiting" else None
        told = place.may("audit.read")
        history = audit.timeline(session, place.workspace.id, job_id=job.id) if told else None
    response = respond.render(
        "jobs/show.html",
        job=job,
        view=view,
        label=label,
        slots=view.slots(job, place.zone),
        icons=filters.asset("icons.svg"),
        attempts=attempts,
        ahead=ahead,
        history=history,
        kind=_kind_template(job.kind),
        asked=_asked(job),
        listed=job.failures.get("items", []),
        key=str(uuid.uuid4()),
        refreshing=_refreshing(),
    )
    if _refreshing() and not job.terminal:
        response.headers["Refresh"] = "15"
    return response


@bp.get("/w/<slug>/jobs/<int:job_id>/live")
@passive
def live(slug: str, job_id: int) -> Response:
    """The live fragment; 204 if the caller's version `v` is the present one."""
    known = request.args.get("v", "")
    if known and not re.fullmatch(r"[0-9]{1,20}", known):
        raise Malformed("bad_version")
    with database().transaction() as session:
        place, job = _enter(session, slug, job_id, "workspace.see")
    if known and int(known) == job.version:
        response = Response(status=204)
    else:
        text = stream.fragment(current_app.jinja_env, job, place.zone, filters.asset("icons.svg"))
        response = Response(text, mimetype="text/html")
    pulse = stream.pulse(job, settings().queue_lease)
    response.headers["Hub-Now"] = pulse["now"]
    response.headers["Hub-Terminal"] = "true" if job.terminal else "false"
    if pulse["lease_until"]:
        response.headers["Hub-Lease-Until"] = pulse["lease_until"]
        response.headers["Hub-Worker-Age"] = str(pulse["worker_age_s"])
    return response


@bp.get("/w/<slug>/jobs/<int:job_id>/events")
@passive
def events(slug: str, job_id: int) -> Response:
    """The stream of the job's changes, as server-sent events."""
    with database().transaction() as session:
        place, job = _enter(session, slug, job_id, "workspace.see")
    return stream.answer(place, job)


@bp.get("/w/<slug>/jobs/<int:job_id>/cancel")
def confirm_cancel(slug: str, job_id: int) -> Response:
    """The question before a cancel, with what is done and what is not; for htmx only the question."""
    with database().transaction() as session:
        place, job = _enter(session, slug, job_id, "job.start")
    dialog = respond.wants_fragment()
    template = "jobs/_cancel.html" if dialog else "jobs/cancel.html"
    return respond.render(template, job=job, view=view, label=view.label(job), url=_url(place, job), in_dialog=dialog)


@bp.post("/w/<slug>/jobs/<int:job_id>/cancel")
def cancel(slug: str, job_id: int) -> Response:
    """Ask for the job's end; answers with the job as it then is, whatever its state."""
    with database().transaction() as session:
        place, before = _enter(session, slug, job_id, "job.start")
        cancelling.cancel(session, job_id=before.id, actor=place.actor)
        job = _load(session, place, job_id)
    if respond.wants_json():
        return respond.as_json(view.snapshot(job, place.zone))
    return respond.see_other(_url(place, job), words.say(_cancelled_words(before, job)))


def _cancelled_words(before: Job, after: Job) -> str:
    if before.terminal:
        return "jobs.cancel.was_over"
    if before.cancel_requested_at:
        return "jobs.cancel.already"
    return "jobs.cancel.asked" if after.state == "running" else "jobs.cancel.cancelled"


@bp.post("/w/<slug>/jobs/<int:job_id>/run-again")
def run_again(slug: str, job_id: int) -> Response:
    """Start a new job with the choices of one that has ended: a creation like any other, with a key of its own."""
    with database().transaction() as session:
        place, job = _enter(session, slug, job_id, "job.start")
    _spend_budget()
    key = _key(respond.body())
    if not job.terminal:
        raise Conflict("not_ended")
    return _start(place, job.kind, _asked(job), key)


@bp.get("/w/<slug>/jobs/<int:job_id>/failures.csv")
def failures(slug: str, job_id: int) -> Response:
    """The failed items that are kept, as CSV that a spreadsheet opens without running anything."""
    with database().transaction() as session:
        _, job = _enter(session, slug, job_id, "workspace.see")
    listed = job.failures.get("items", [])
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\r\n")
    table.writerow(["id", "title", "code", "reason", "attempt", "at"])
    for item in listed:
        cells = (item["id"], item["title"], item["code"], view.reason(item["code"]), item["attempt"], item["at"])
        table.writerow([_safe(str(cell)) for cell in cells])
    if job.failed > len(listed):
        table.writerow([words.say("jobs.page.failures_csv_cut", count=len(listed), total=job.failed)])
    # The byte order mark tells spreadsheets that this is UTF-8.
    response = Response("\ufeff" + file.getvalue(), mimetype="text/csv")
    response.headers["Content-Disposition"] = f'attachment; filename="hub-job-{job.id}-failures.csv"'
    return response


def _safe(cell: str) -> str:
    return f"'{cell}" if FORMULA.match(cell) else cell


def _enter(session: Session, slug: str, job_id: int, action: str) -> tuple[Place, Job]:
    place = auth.enter(session, slug, action)
    return place, _load(session, place, job_id)


def _load(session: Session, place: Place, job_id: int) -> Job:
    job = reads.get(driver(session), job_id, place.workspace.id)
    if job is None:
        raise NotFound
    return job


def _url(place: Place, job: Job) -> str:
    return url_for("jobs.show", slug=place.workspace.slug, job_id=job.id)


def _asked(job: Job) -> dict[str, Any]:
    """The command that the job was made from."""
    asked = job.args.get("asked", job.args)
    return asked if isinstance(asked, dict) else {}


def _attempt(attempt: reads.Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "outcome": attempt.outcome,
        "code": attempt.code,
        "message": view.reason(attempt.code),
        "done": attempt.done,
    }


def _kind_template(kind: str) -> Template:
    return current_app.jinja_env.select_template([f"jobs/kinds/{kind}.html", "jobs/kinds/_any.html"])


def _refreshing() -> bool:
    return request.args.get("refresh") == "15"
