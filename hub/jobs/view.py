"""What people see of a job: label, sentence, live snapshot, the slots of the live panel.

Pure functions of the stored row, the viewer's zone and the language. There is no clock here, so a page, a poll and a
stream say the same of the same version; what depends on the clock is ticked in the page from stored times.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from hub import words
from hub.jobs import people
from hub.queue.reads import Job

LABELS = (
    "waiting",
    "scheduled",
    "running",
    "stopping",
    "retrying",
    "finished",
    "finished_with_problems",
    "failed",
    "needs_attention",
    "cancelled",
)
MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
# A speed is told after so many seconds and items of this attempt; the time left only when the speed can be trusted.
SPEED_AFTER = 10.0
SPEED_ITEMS = 5
LEFT_AFTER = 20.0
LEFT_ITEMS = 10
LEFT_SHARE = 0.05


def label(job: Job) -> str:
    """The key of the job's label, one of LABELS: the one answer for list, page, stream and JSON."""
    if job.state == "queued":
        return _queued_label(job)
    if job.state == "running":
        return "stopping" if job.cancel_requested_at else "running"
    if job.state == "succeeded":
        return "finished_with_problems" if job.failed else "finished"
    if job.state == "failed":
        return "needs_attention" if job.dead_letter else "failed"
    return "cancelled"


def _queued_label(job: Job) -> str:
    if job.again_at is None:
        return "waiting"
    if job.attempt:
        return "retrying"
    # A job that a stopping worker gave back has been started before; it waits like a fresh one.
    return "waiting" if job.started_at else "scheduled"


def bucket(job: Job) -> str:
    """The group of labels that lists filter by: one of `hub.queue.reads.BUCKETS`."""
    groups = {"scheduled": "waiting", "stopping": "running", "finished_with_problems": "finished"}
    return groups.get(label(job), label(job))


def title(job: Job) -> str:
    """The job's name, such as “Tag a course: Introduction to Biology”."""
    return people.title(job.kind, job.subject_name)


def kind_name(kind: str) -> str:
    """The kind's name for people."""
    return people.kind_name(kind)


def of_kind(kind: str, key: str, **values: Any) -> str:
    """The kind's own words for `key`, else those for any kind."""
    own = f"jobs.{kind}.{key}"
    return words.say(own if words.has(own) else f"jobs.any.{key}", **values)


def sentence(job: Job, zone: tzinfo) -> str:
    """What is to be said of the job under its label, in plain words; times in `zone`."""
    name = label(job)
    if name in ("waiting", "scheduled"):
        return words.say(f"jobs.sentence.{name}", at=moment(job.again_at, zone))
    if name == "running":
        key = "jobs.sentence.running_again" if job.attempt > 1 else "jobs.sentence.running"
        at = moment(job.created_at, zone)
        return words.say(key, name=job.actor_name, at=at, attempt=job.attempt, most=job.max_attempts)
    if name == "stopping":
        at = moment(job.cancel_requested_at, zone)
        asked = words.say("jobs.sentence.stopping", name=job.cancel_by_name, at=at)
        return f"{asked} {of_kind(job.kind, 'stop_after')}"
    if name == "retrying":
        at = moment(job.again_at, zone)
        return words.say("jobs.sentence.retrying", attempt=job.attempt, most=job.max_attempts, at=at)
    return " ".join(_ended(job, name, zone))


def _ended(job: Job, name: str, zone: tzinfo) -> list[str]:
    parts = []
    if name == "finished":
        parts = [_all_done(job)]
    elif name == "finished_with_problems":
        parts = [of_kind(job.kind, "problems", count=job.total or job.done, failed=job.failed)]
    elif name == "failed":
        parts = [words.say("jobs.sentence.failed", reason=f"{reason(job.code)}."), _kept(job)]
    elif name == "needs_attention":
        why = f"{reason(job.code)}."
        parts = [words.say("jobs.sentence.needs_attention", count=job.attempt, attempts=job.attempt, reason=why)]
        parts.append(_kept(job))
    else:
        at = moment(job.cancel_requested_at or job.finished_at, zone)
        parts = [words.say("jobs.sentence.cancelled", name=job.cancel_by_name or "Hub", at=at)]
        parts += [_kept(job)] if job.started_at else [words.say("jobs.sentence.never_started"), _kept(job)]
    if job.cancel_requested_at and job.state != "cancelled":
        at = moment(job.cancel_requested_at, zone)
        parts.append(words.say("jobs.sentence.too_late", name=job.cancel_by_name, at=at))
    if job.closing_failed:
        parts.append(words.say("jobs.sentence.closing_failed"))
    return parts


def _all_done(job: Job) -> str:
    key = "all_done" if job.total else "done"
    if job.attempt > 1:
        return of_kind(job.kind, f"{key}_tries", count=job.total, tries=job.attempt)
    return of_kind(job.kind, key, count=job.total, duration=duration(_took(job)))


def _kept(job: Job) -> str:
    return of_kind(job.kind, "kept", count=job.changed) if job.changed else of_kind(job.kind, "nothing")


def _took(job: Job) -> float:
    """Seconds of the attempt that ended the job."""
    if job.finished_at is None or job.started_at is None:
        return 0.0
    return (job.finished_at - job.started_at).total_seconds()


def reason(code: str | None) -> str:
    """Why something failed, in plain words without a full stop, for the key of a reason."""
    key = f"jobs.code.{code}"
    return words.say(key) if words.has(key) else words.say("jobs.code.other", code=code or "")


def advice(code: str) -> str:
    """What a person can do about a failed item."""
    key = f"jobs.advice.{code}"
    return words.say(key if words.has(key) else "jobs.advice.other")


def percent(job: Job) -> int | None:
    """The share that is done, rounded down; at most 99 until the job has gone through everything and ended."""
    if not job.total:
        return None
    if job.state == "succeeded":
        return 100
    return min(99, job.done * 100 // job.total)


def speed(job: Job) -> float | None:
    """Items a second in this attempt so far, as of its latest item; None while that tells too little."""
    if job.state != "running" or job.started_at is None or job.progressed_at is None:
        return None
    seconds = (job.progressed_at - job.started_at).total_seconds()
    items = job.done - job.done_before
    return items / seconds if seconds >= SPEED_AFTER and items >= SPEED_ITEMS else None


def time_left(job: Job) -> float | None:
    """Seconds that the rest should take at this speed; None while that cannot be told."""
    pace = speed(job)
    if pace is None or job.total is None or job.started_at is None or job.progressed_at is None:
        return None
    seconds = (job.progressed_at - job.started_at).total_seconds()
    enough = max(LEFT_ITEMS, LEFT_SHARE * job.total)
    if seconds < LEFT_AFTER or job.done - job.done_before < enough:
        return None
    return (job.total - job.done) / pace


def snapshot(job: Job, zone: tzinfo = UTC) -> dict[str, Any]:
    """The live snapshot: what may be seen of a job, as JSON. Times are RFC 3339 in UTC; those in `sentence` in `zone`.

    `errors` counts the items' failures by code, and comes first with the job's own reason if it failed.
    """
    return {
        "id": job.id,
        "kind": job.kind,
        "state": job.state,
        "label": words.say(f"jobs.label.{label(job)}"),
        "label_key": label(job),
        "title": title(job),
        "sentence": sentence(job, zone),
        "version": job.version,
        "progress": {
            "total": job.total,
            "done": job.done,
            "changed": job.changed,
            "skipped": job.skipped,
            "failed": job.failed,
            "unit": of_kind(job.kind, "unit"),
        }
        | ({} if job.bytes is None else {"bytes": job.bytes}),
        "cancel_requested": (
            {"at": _iso(job.cancel_requested_at), "by": job.cancel_by_name} if job.cancel_requested_at else None
        ),
        "actor": job.actor_name,
        "actor_id": str(job.actor_id),
        "subject": job.subject,
        "subject_name": job.subject_name,
        "created_at": _iso(job.created_at),
        "started_at": _iso(job.started_at),
        "finished_at": _iso(job.finished_at),
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "next_attempt_at": _iso(job.again_at) if job.state == "queued" else None,
        "code": job.code,
        "errors": _errors(job),
        "result": job.result,
    }


def _errors(job: Job) -> list[dict[str, Any]]:
    own = [{"code": job.code, "message": reason(job.code), "count": 1, "examples": []}] if job.code else []
    return own + [
        {"code": group.code, "message": group.reason, "count": group.count, "examples": group.examples}
        for group in failures(job)
    ]


@dataclass(frozen=True)
class Failure:
    """Items that failed for one reason: how many, and the first of them as ``{"id", "title"}``."""

    code: str
    reason: str
    count: int
    examples: list[dict[str, str]]


def failures(job: Job) -> list[Failure]:
    """The job's failed items by reason, the most frequent first."""
    counts: dict[str, int] = job.failures.get("counts", {})
    items: list[dict[str, Any]] = job.failures.get("items", [])
    return [
        Failure(
            code,
            reason(code),
            count,
            [{"id": item["id"], "title": item["title"]} for item in items if item["code"] == code][:10],
        )
        for code, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    ]


@dataclass(frozen=True)
class Slots:
    """What the slots of `jobs/_live.html` show. None means: not there.

    `bar_max` and `bar_value` draw the bar (no value: unknown how far); `since` and `until` are times that the page
    ticks from; `say` is for the announcer.
    """

    id: int
    version: int
    label: str
    terminal: bool
    say: str
    sentence: str
    bar: bool
    bar_max: int | None
    bar_value: int | None
    figure: str | None
    since: datetime | None
    since_text: str
    took: str | None
    again: bool
    speed: str | None
    left: str | None
    attempt: str | None
    counts: list[str]
    failed: int
    until: datetime | None
    hint: str | None


def slots(job: Job, zone: tzinfo) -> Slots:
    """The contents of the live panel for this version of the row."""
    name = label(job)
    running = job.state == "running"
    return Slots(
        id=job.id,
        version=job.version,
        label=name,
        terminal=job.terminal,
        say=_say(job, name),
        sentence=sentence(job, zone),
        bar=running or name in ("retrying", "finished", "finished_with_problems"),
        bar_max=job.total or None,
        bar_value=job.done if job.total else (1 if job.terminal else None),
        figure=_figure(job, name),
        since=job.started_at if running else None,
        since_text=words.say("jobs.fact.since", at=moment(job.started_at, zone)) if running else "",
        took=duration(_took(job)) if job.terminal and job.started_at else None,
        again=job.attempt > 1,
        speed=_speed_text(job),
        left=_left_text(job) if name == "running" else None,
        attempt=_attempt_text(job),
        counts=_counts(job),
        failed=job.failed,
        until=job.again_at if name in ("retrying", "scheduled") else None,
        hint=of_kind(job.kind, "hint_retrying") if name == "retrying" else None,
    )


def _say(job: Job, name: str) -> str:
    if name in ("waiting", "scheduled"):
        return words.say(f"jobs.say.{name}")
    if name == "stopping":
        return f"{words.say('jobs.label.stopping')}. {of_kind(job.kind, 'stop_after')}"
    if name == "retrying":
        return words.say("jobs.say.retrying", attempt=job.attempt, most=job.max_attempts)
    if name == "running":
        return _say_running(job)
    parts = [words.say(f"jobs.say.{name}")]
    if name == "finished_with_problems":
        parts.append(of_kind(job.kind, "problems_say", count=job.total, failed=job.failed))
    elif job.total:
        parts.append(of_kind(job.kind, "figure_still", done=job.done, count=job.total))
    return " ".join(parts)


def _say_running(job: Job) -> str:
    if job.attempt > 1 and job.done == job.done_before:
        return words.say("jobs.say.attempt", attempt=job.attempt, most=job.max_attempts)
    if not job.total or not job.done:
        return words.say("jobs.say.running")
    parts = [of_kind(job.kind, "figure_still", done=job.done, count=job.total)]
    if job.failed:
        parts.append(words.say("jobs.say.failed_so_far", count=job.failed))
    return " ".join(parts)


def _figure(job: Job, name: str) -> str | None:
    if name in ("waiting", "scheduled") and not job.done:
        return None
    if job.total is None:
        return of_kind(job.kind, "figure_unknown") if name == "running" else None
    keys = {
        "running": "figure",
        "stopping": "figure_stopping",
        "retrying": "figure_retrying",
        "finished": "figure_ended",
        "finished_with_problems": "figure_ended",
    }
    return of_kind(job.kind, keys.get(name, "figure_partly"), done=job.done, count=job.total, percent=percent(job))


def _counts(job: Job) -> list[str]:
    numbers = {"changed": job.changed, "skipped": job.skipped, "failed": job.failed}
    told = [of_kind(job.kind, key, count=count) for key, count in numbers.items() if count]
    return told + ([of_kind(job.kind, "bytes", size=size(job.bytes))] if job.bytes else [])


def _attempt_text(job: Job) -> str | None:
    if job.attempt < 2:
        return None
    return words.say("jobs.fact.attempt_value", attempt=job.attempt, most=job.max_attempts)


def _speed_text(job: Job) -> str | None:
    pace = speed(job)
    if pace is None or label(job) != "running":
        return None
    if pace * 60 >= 1:
        return of_kind(job.kind, "speed", count=round(pace * 60))
    return of_kind(job.kind, "speed_slow", count=max(2, round(1 / pace / 60)))


def _left_text(job: Job) -> str | None:
    if not job.total:
        return None
    seconds = time_left(job)
    return words.say("jobs.left.unknown") if seconds is None else left_words(seconds)


def left_words(seconds: float) -> str:
    """A time left, as roughly as it is known: never in seconds, never more exact than about a tenth."""
    minutes = seconds / 60
    if minutes < 1:
        return words.say("jobs.left.minute")
    if minutes <= 10:
        return words.say("jobs.left.minutes", count=round(minutes))
    if minutes < 57.5:
        return words.say("jobs.left.minutes", count=5 * round(minutes / 5))
    halves = max(2, round(minutes / 30))
    if halves > 8:
        return words.say("jobs.left.long")
    if halves == 2:
        return words.say("jobs.left.hour")
    return words.say("jobs.left.hours_half" if halves % 2 else "jobs.left.hours", count=halves // 2)


def duration(seconds: float) -> str:
    """A length of time in words: “42 seconds”, “3 min 12 s”, “2 h 5 min”, “3 days”; never negative."""
    whole = max(0, int(seconds))
    if whole == 0:
        return words.say("duration.less")
    if whole < 60:
        return words.say("duration.seconds", count=whole)
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        if rest == 0:
            return words.say("duration.minutes", count=minutes)
        return words.say("duration.minutes_seconds", minutes=minutes, seconds=rest)
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return words.say("duration.hours_minutes", hours=hours, minutes=minutes)
    return words.say("duration.days", count=hours // 24)


def size(count: int) -> str:
    """A number of bytes in words: “812 bytes”, “3.4 MB”; in powers of 1,000."""
    if count < 1000:
        return words.say("size.bytes", count=count)
    units = ("kB", "MB", "GB", "TB")
    power = min(len(units), (len(str(count)) - 1) // 3)
    value = count / 1000**power
    return words.say("size.large", number=f"{value:.0f}" if value >= 100 else f"{value:.1f}", unit=units[power - 1])


def moment(at: datetime | None, zone: tzinfo) -> str:
    """A time to the second with its zone: “30 Nov 2026, 15:02:11 CET”."""
    if at is None:
        return ""
    local = at.astimezone(zone)
    name = local.tzname() or "UTC"
    shown = name if name[0].isalpha() else f"UTC{name[:3]}:{name[3:] or '00'}"
    return f"{local.day} {MONTHS[local.month - 1]} {local.year}, {local:%H:%M:%S} {shown}"


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")
