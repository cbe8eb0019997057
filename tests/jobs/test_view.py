"""The words for a job's stored state: one label for each row, the same for the same version."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from hub import words
from hub.jobs import view
from hub.queue.reads import Job

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
OSLO = ZoneInfo("Europe/Oslo")


def job(**columns: Any) -> Job:
    """A job of a course's 240 pages as it stands fresh in the queue, but for `columns`."""
    values: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(Job)) | {
        "id": 7,
        "queue": "workspace.jobs",
        "kind": "course.tag",
        "state": "queued",
        "priority": 1,
        "attempt": 0,
        "max_attempts": 5,
        "attempt_seconds": 300.0,
        "version": 3,
        "total": 240,
        "changed": 0,
        "skipped": 0,
        "failed": 0,
        "done_before": 0,
        "created_at": NOON,
        "closing_failed": False,
        "workspace_id": UUID(int=1),
        "actor_id": UUID(int=2),
        "actor_name": "Maria Olsen",
        "subject_name": "Introduction to Biology",
        "idempotency_key": "key",
        "args": {},
        "failures": {"counts": {}, "items": []},
        "dead_letter": False,
        "read_at": NOON,
    }
    values |= columns
    values.setdefault("done", 0)
    values["done"] = values["changed"] + values["skipped"] + values["failed"]
    return Job(**values)


def running(**columns: Any) -> Job:
    """The same, taken by a worker a minute after noon."""
    defaults = {"state": "running", "attempt": 1, "started_at": NOON + timedelta(minutes=1)}
    return job(**(defaults | columns))


def ended(state: str, **columns: Any) -> Job:
    """The same, ended 451 seconds after it was started."""
    times = {"started_at": NOON, "finished_at": NOON + timedelta(seconds=451)}
    return job(**({"state": state, "attempt": 1} | times | columns))


LABELS: list[tuple[Job, str]] = [
    (job(), "waiting"),
    (job(attempt=2, started_at=NOON), "waiting"),
    (job(again_at=NOON), "scheduled"),
    (job(again_at=NOON, started_at=NOON), "waiting"),
    (job(again_at=NOON, attempt=1, started_at=NOON), "retrying"),
    (running(), "running"),
    (running(again_at=NOON), "running"),
    (running(cancel_requested_at=NOON, cancel_by_name="Jon"), "stopping"),
    (ended("succeeded", changed=240), "finished"),
    (ended("succeeded", changed=237, failed=3), "finished_with_problems"),
    (ended("succeeded", changed=240, cancel_requested_at=NOON, cancel_by_name="Jon"), "finished"),
    (ended("failed", code="actor_not_authorized"), "failed"),
    (ended("failed", code="worker_lost", dead_letter=True), "needs_attention"),
    (ended("cancelled", cancel_requested_at=NOON, cancel_by_name="Jon"), "cancelled"),
    (ended("cancelled", started_at=None, cancel_requested_at=NOON, cancel_by_name="Jon"), "cancelled"),
]


@pytest.mark.parametrize(("stored", "label"), LABELS)
def test_every_stored_state_has_one_label_and_all_its_words(stored: Job, label: str) -> None:
    assert view.label(stored) == label
    assert view.snapshot(stored)["label"] == words.say(f"jobs.label.{label}")
    slots = view.slots(stored, OSLO)
    assert slots.sentence and slots.say and slots.terminal == stored.terminal


@pytest.mark.parametrize(("stored", "_label"), LABELS)
def test_a_kind_without_words_of_its_own_is_told_with_general_ones(stored: Job, _label: str) -> None:
    other = dataclasses.replace(stored, kind="workspace.something")
    assert view.slots(other, UTC).sentence and view.title(other) == "workspace.something: Introduction to Biology"


@pytest.mark.parametrize(
    ("stored", "sentence"),
    [
        (job(), "Waiting for a free worker."),
        (job(again_at=NOON), "Starts 30 Nov 2026, 13:00:00 CET."),
        (running(), "Asked for by Maria Olsen, 30 Nov 2026, 13:00:00 CET."),
        (
            job(again_at=NOON, attempt=2, started_at=NOON),
            "Attempt 2 of 5 did not finish. Next try 30 Nov 2026, 13:00:00 CET.",
        ),
        (ended("succeeded", changed=240), "All 240 pages done in 7 min 31 s."),
        (ended("succeeded", changed=240, attempt=2), "All 240 pages done, in 2 attempts."),
        (
            ended("succeeded", changed=237, failed=3),
            "All 240 pages were worked through. 3 could not be tagged.",
        ),
        (
            ended("failed", code="actor_not_authorized", changed=102),
            "The person who asked for it may no longer do this here. 102 pages were tagged and stay tagged.",
        ),
        (
            ended("failed", code="worker_lost", dead_letter=True, attempt=5),
            "Hub stopped trying after 5 attempts. The worker stopped responding. Nothing was changed.",
        ),
        (
            ended("cancelled", changed=1, cancel_requested_at=NOON, cancel_by_name="Jon"),
            "Stopped by Jon, 30 Nov 2026, 13:00:00 CET. 1 page was tagged and stays tagged.",
        ),
        (
            ended("cancelled", started_at=None, cancel_requested_at=NOON, cancel_by_name="Jon"),
            "Stopped by Jon, 30 Nov 2026, 13:00:00 CET. It had not started. Nothing was changed.",
        ),
    ],
)
def test_the_sentence_says_what_happened(stored: Job, sentence: str) -> None:
    assert view.sentence(stored, OSLO) == sentence


def test_a_cancel_request_that_came_too_late_is_told_as_such() -> None:
    stored = ended("succeeded", changed=240, cancel_requested_at=NOON, cancel_by_name="Jon")
    assert view.sentence(stored, UTC).endswith(
        "Jon asked to stop it, 30 Nov 2026, 12:00:00 UTC, but by then everything was done."
    )


@pytest.mark.parametrize(
    ("stored", "percent"),
    [
        (running(changed=102), 42),
        (running(changed=239), 99),
        (running(changed=240), 99),
        (ended("succeeded", changed=240), 100),
        (ended("cancelled", changed=240), 99),
        (job(total=None), None),
        (job(total=0), None),
    ],
)
def test_percent_is_rounded_down_and_full_only_at_the_end(stored: Job, percent: int | None) -> None:
    assert view.percent(stored) == percent


def paced(seconds: float, done: int, before: int = 0, total: int = 240) -> Job:
    started = NOON + timedelta(minutes=1)
    return running(changed=done, done_before=before, total=total, progressed_at=started + timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("stored", "speed", "left"),
    [
        (paced(9, 100), None, "Working out the time left"),
        (paced(60, 4), None, "Working out the time left"),
        (paced(15, 20), "80 pages a minute", "Working out the time left"),
        (paced(60, 32), "32 pages a minute", "About 6 minutes"),
        (paced(60, 132, before=100), "32 pages a minute", "About 3 minutes"),
        (paced(1200, 12, total=100), "1 page every 2 minutes", "About 2½ hours"),
        (paced(60, 230), "230 pages a minute", "Less than a minute"),
    ],
)
def test_speed_and_time_left_are_told_once_they_can_be_trusted(stored: Job, speed: str | None, left: str) -> None:
    slots = view.slots(stored, UTC)
    assert (slots.speed, slots.left) == (speed, left)


@pytest.mark.parametrize(
    ("minutes", "text"),
    [
        (0.9, "Less than a minute"),
        (1, "About 1 minute"),
        (4.4, "About 4 minutes"),
        (10, "About 10 minutes"),
        (12, "About 10 minutes"),
        (53, "About 55 minutes"),
        (58, "About 1 hour"),
        (90, "About 1½ hours"),
        (120, "About 2 hours"),
        (240, "About 4 hours"),
        (260, "More than 4 hours"),
    ],
)
def test_time_left_is_rounded_to_what_is_known(minutes: float, text: str) -> None:
    assert view.left_words(minutes * 60) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "less than a second"),
        (1, "1 second"),
        (42.9, "42 seconds"),
        (60, "1 minute"),
        (192, "3 min 12 s"),
        (7500, "2 h 5 min"),
        (260_000, "3 days"),
    ],
)
def test_durations_are_words(seconds: float, text: str) -> None:
    assert view.duration(seconds) == text


def test_the_bar_is_there_when_it_tells_something() -> None:
    assert not view.slots(job(), UTC).bar
    assert view.slots(running(total=None), UTC).bar_value is None
    shown = view.slots(running(changed=95, skipped=4, failed=3), UTC)
    assert (shown.bar_max, shown.bar_value) == (240, 102)
    assert shown.counts == ["95 tagged", "4 already up to date", "3 failed"]
    assert not view.slots(ended("cancelled", changed=103), UTC).bar


def test_the_live_snapshot_has_the_promised_fields_and_no_arguments() -> None:
    items = [{"id": "p1", "title": "Cells", "code": "edit_conflict", "attempt": 1, "at": "2026-11-30T12:00:00Z"}]
    stored = running(failed=2, args={"secret": 1}, failures={"counts": {"edit_conflict": 2}, "items": items})
    snapshot = view.snapshot(stored)
    assert {
        "id", "kind", "state", "label", "sentence", "version", "progress", "cancel_requested", "actor", "subject",
        "created_at", "started_at", "finished_at", "attempt", "max_attempts", "next_attempt_at", "errors", "result",
    } <= set(snapshot)  # fmt: skip
    assert snapshot["progress"] == {
        "total": 240,
        "done": 2,
        "changed": 0,
        "skipped": 0,
        "failed": 2,
        "unit": "pages",
    }
    assert snapshot["errors"] == [
        {
            "code": "edit_conflict",
            "message": "The page kept changing while it was being tagged",
            "count": 2,
            "examples": [{"id": "p1", "title": "Cells"}],
        }
    ]
    assert "args" not in snapshot and "secret" not in repr(snapshot)
    assert snapshot["created_at"] == "2026-11-30T12:00:00Z"


def test_a_lease_renewal_changes_nothing_that_is_shown() -> None:
    before, after = running(again_at=NOON), running(again_at=NOON + timedelta(minutes=1), deadline_at=NOON)
    assert view.slots(before, UTC) == view.slots(after, UTC)
    assert view.snapshot(before) == view.snapshot(after)
