"""Admission: who may start which job now; what a refusal leaves behind; one job for each key."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as budget
from hypothesis import strategies as st

from hub.errors import Conflict, Invalid, Refusal, TooMany
from hub.jobs.create import UNKNOWN_WAIT
from hub.queue import Kind, kind, store
from tests import factories
from tests.factories import row, rows, run, tag_command
from tests.jobs.conftest import Desk
from tests.queue.test_store import STEP

Limited = Callable[..., Desk]


def order(course: uuid.UUID, *tags: str, key: str = "key", **args: Any) -> dict[str, Any]:
    """An order of course.tag."""
    return {"kind": "course.tag", "args": tag_command(course, *tags) | args, "key": key}


def refused(desk: Desk, expected: type[Refusal], **values: Any) -> Any:
    """The refusal of an order, which leaves everything as it was."""
    before = desk.image()
    with pytest.raises(expected) as caught:
        desk.create(**values)
    assert desk.image() == before
    return caught.value


# What is written


def test_a_job_its_worklist_its_tags_and_its_event_are_one_transaction(desk: Desk) -> None:
    course = desk.course(2500)
    created = desk.create(**order(course, "Cells", "Plants"))
    assert created.created
    job = desk.job(created.job_id)
    assert (job.state, job.total, job.subject, job.subject_name) == (
        "queued",
        2500,
        f"course:{course}",
        "Introduction to Biology",
    )
    listed = rows(desk.database, "select chunk, cardinality(items) as items from queue.worklist order by chunk")
    assert [tuple(chunk) for chunk in listed] == [(0, 1000), (1, 1000), (2, 500)]
    assert [tag.name for tag in rows(desk.database, "select name from hub.tag order by 1")] == ["Cells", "Plants"]
    event = row(desk.database, "select * from audit.event")
    assert (event.action, event.actor_id, event.target_id) == ("job.queued", desk.team.admin.id, str(created.job_id))
    assert event.changes["total"] == 2500


def test_the_worklist_goes_by_the_pages_order(desk: Desk) -> None:
    course = desk.course(50)
    run(desk.database, "update hub.page set position = 100 - position")
    desk.start(course)
    listed = row(desk.database, "select items from queue.worklist").items
    expected = [page.id for page in rows(desk.database, "select id from hub.page order by position")]
    assert list(listed) == expected


def test_untagged_pages_only(desk: Desk) -> None:
    course = desk.course(6)
    desk.start(course, "old")
    desk.work()
    run(desk.database, "delete from hub.page_tag where page_id in (select id from hub.page where position in (2, 5))")
    job_id = desk.start(course, "new", pages="untagged")
    desk.work()
    assert desk.outcome(job_id) == ("succeeded", 2, 0, 0)
    tagged = rows(
        desk.database,
        "select p.position from hub.page p join hub.page_tag pt on pt.page_id = p.id "
        "join hub.tag t on t.id = pt.tag_id where t.name = 'new' order by 1",
    )
    assert [page.position for page in tagged] == [2, 5]


# Idempotency


def test_one_key_makes_one_job_however_often_and_whatever_became_of_it(limited: Limited) -> None:
    desk = limited(jobs_max_pending_per_actor=1)
    course = desk.course()
    first = desk.create(**order(course))
    again = {"job_id": first.job_id, "created": False}
    before = desk.image()
    assert vars(desk.create(**order(course))) == again
    refused(desk, TooMany, **order(course, key="another"))
    assert vars(desk.create(**order(course))) == again
    assert desk.image() == before
    desk.work()
    assert vars(desk.create(**order(course))) == again
    desk.create(**order(course, key="another"))
    assert vars(desk.create(**order(course))) == again


def test_the_same_key_with_another_command_is_a_mismatch(desk: Desk) -> None:
    course = desk.course()
    first = desk.create(**order(course, "a"))
    for other in (order(course, "b"), order(course, "a", pages="untagged"), order(desk.course(), "a")):
        refusal = refused(desk, Conflict, **other)
        assert (refusal.code, refusal.data["job_id"]) == ("idempotency_mismatch", first.job_id)


def test_a_mismatch_is_told_also_at_capacity_and_after_the_end(limited: Limited) -> None:
    desk = limited(jobs_max_pending_per_actor=1)
    course = desk.course()
    desk.create(**order(course, "a"))
    assert refused(desk, Conflict, **order(course, "b")).code == "idempotency_mismatch"
    desk.work()
    assert refused(desk, Conflict, **order(course, "b")).code == "idempotency_mismatch"


@pytest.mark.parametrize(
    "same",
    [
        {"tags": ["Red  apple", "b"]},
        {"tags": [" Red apple ", "b", "B"]},
        {"tags": ["Red\u00a0apple", "b"]},
        {"pages": "all"},
    ],
)
def test_the_command_counts_and_not_its_spelling(desk: Desk, same: dict[str, Any]) -> None:
    course = desk.course()
    first = desk.create(**order(course, "Red apple", "b"))
    plain = {"kind": "course.tag", "key": "key", "args": {"course_id": str(course).upper(), "tags": ["Red apple", "b"]}}
    assert desk.create(**plain).job_id == first.job_id
    plain["args"] |= same
    assert desk.create(**plain).job_id == first.job_id


def test_composed_and_decomposed_letters_are_the_same_command(desk: Desk) -> None:
    course = desk.course()
    first = desk.create(**order(course, "\u00dcbung"))
    assert desk.create(**order(course, "U\u0308bung")).job_id == first.job_id


def test_another_letter_case_is_another_command(desk: Desk) -> None:
    """A tag that is new gets its name as it is written, so the letter case is part of what was asked for."""
    course = desk.course()
    desk.create(**order(course, "Cells"))
    assert refused(desk, Conflict, **order(course, "cells")).code == "idempotency_mismatch"


def test_keys_of_another_actor_and_another_workspace_are_other_keys(desk: Desk) -> None:
    course = desk.course()
    first = desk.create(**order(course))
    second = desk.create(**order(course), actor=desk.member())
    other = factories.make_team(desk.database)
    third = desk.create(**order(factories.make_course(desk.database, other)), team=other)
    assert first.created and second.created and third.created
    assert len({first.job_id, second.job_id, third.job_id}) == 3


def test_the_same_key_for_another_kind_is_a_mismatch(desk: Desk) -> None:
    """Every kind of people's jobs shares the keys of its workspace and actor."""
    course = desk.course()
    first = desk.create(**order(course))
    other = kind.find("course.tag")
    assert other is not None
    name = "test.other"
    kind.register(Kind(**{name: getattr(other, name) for name in Kind.__dataclass_fields__} | {"name": name}))
    try:
        refusal = refused(desk, Conflict, **order(course) | {"kind": name})
    finally:
        kind._kinds.pop(name)
    assert (refusal.code, refusal.data["job_id"]) == ("idempotency_mismatch", first.job_id)


def test_one_key_from_forty_threads_makes_one_job(desk: Desk) -> None:
    course = desk.course()
    answers = at_once(40, lambda number: desk.create(**order(course)))
    assert len({answer.job_id for answer in answers}) == 1
    assert sorted(answer.created for answer in answers) == [False] * 39 + [True]


def test_two_commands_with_one_key_at_once_make_one_job(desk: Desk) -> None:
    course = desk.course()

    def ask(number: int) -> object:
        try:
            return desk.create(**order(course, "ab"[number % 2])).created
        except Conflict as refusal:
            return refusal.code

    answers = at_once(20, ask)
    assert answers.count(True) == 1
    assert answers.count("idempotency_mismatch") == 10


def test_a_refused_creation_binds_no_key(limited: Limited) -> None:
    desk = limited(jobs_max_pending_per_actor=1)
    first = desk.start()
    course = desk.course()
    refused(desk, TooMany, **order(course, "a", key="k"))
    desk.cancel(first)
    assert desk.create(**order(course, "b", key="k")).created


# Capacity


def at_once(count: int, act: Callable[[int], Any]) -> list[Any]:
    """What `act` answers to each of `count` threads that begin together."""
    barrier = threading.Barrier(count)
    answers: list[Any] = []

    def one(number: int) -> None:
        barrier.wait()
        answers.append(act(number))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return answers


def test_a_fourth_pending_job_of_an_actor_is_refused_until_one_ends(desk: Desk) -> None:
    jobs = [desk.start() for _ in range(3)]
    course = desk.course()
    refusal = refused(desk, TooMany, **order(course))
    assert (refusal.code, refusal.retry_after) == ("actor_pending_limit", UNKNOWN_WAIT)
    assert desk.create(**order(course), actor=desk.member()).created
    desk.cancel(jobs[1])
    assert desk.create(**order(course)).created


def test_an_eleventh_pending_job_of_a_workspace_is_refused_until_one_ends(desk: Desk) -> None:
    for _ in range(3):
        admin = desk.member()
        for _ in range(3):
            desk.start(actor=admin)
    desk.start()
    course = desk.course()
    assert refused(desk, TooMany, **order(course)).code == "workspace_pending_limit"
    other = factories.make_team(desk.database)
    assert desk.create(**order(factories.make_course(desk.database, other)), team=other).created
    desk.work()
    assert desk.create(**order(course)).created


def test_the_hundred_and_first_job_of_a_day_is_refused_for_as_long_as_is_told(limited: Limited) -> None:
    desk = limited(jobs_max_created_per_day=100)
    course = desk.course(1)
    for number in range(100):
        job_id = desk.start(course)
        if number % 2:
            desk.cancel(job_id)
        desk.work()
    moved = "update queue.request set created_at = created_at - interval '23 hours'"
    run(desk.database, moved)
    refusal = refused(desk, TooMany, **order(course))
    oldest = row(
        desk.database,
        "select extract(epoch from min(created_at) + interval '24 hours' - statement_timestamp()) as left "
        "from queue.request",
    ).left
    assert refusal.code == "daily_limit"
    assert oldest <= refusal.retry_after <= oldest + 60
    run(
        desk.database,
        "update queue.request set created_at = created_at - make_interval(secs => :s)",
        s=refusal.retry_after,
    )
    assert desk.create(**order(course)).created


@pytest.mark.parametrize("lower", [1, 2, 5])
def test_a_limit_that_was_lowered_counts_back_to_when_its_place_frees(limited: Limited, lower: int) -> None:
    desk = limited()
    for hours in (20, 15, 10, 5, 1):
        desk.cancel(desk.start())
        run(
            desk.database,
            "update queue.request set created_at = statement_timestamp() - make_interval(hours => :hours) "
            "where job_id = (select max(job_id) from queue.request)",
            hours=hours,
        )
    desk = limited(jobs_max_created_per_day=lower)
    refusal = refused(desk, TooMany, **order(desk.course()))
    age = {1: 1, 2: 5, 5: 20}[lower]
    assert (24 - age) * 3600 - 60 <= refusal.retry_after <= (24 - age) * 3600
    desk.settings = factories.with_limits(desk.settings, jobs_max_created_per_day=100)


def test_a_pending_limit_tells_when_the_first_job_should_end_by_its_speed(limited: Limited) -> None:
    desk = limited(jobs_max_pending_per_actor=1)
    desk.start(desk.course(100))
    with desk.database.autocommit() as connection:
        (job,) = store.claim(connection, "workspace.jobs", ["course.tag"], claim=1, lanes=1, lease=60)
        for position in range(20):
            store.step(connection, STEP, {"id": job.id, "claim": 1, "position": position})
        connection.execute(
            "update queue.job set started_at = statement_timestamp() - interval '100 s', "
            "progressed_at = statement_timestamp(), version = version + 1"
        )
    assert refused(desk, TooMany, **order(desk.course())).retry_after == pytest.approx(400, abs=20)


@pytest.mark.parametrize("limit", ["jobs_max_pending_per_actor", "jobs_max_pending_per_workspace"])
def test_forty_threads_at_a_limit_of_five_make_five_jobs(limited: Limited, limit: str) -> None:
    desk = limited(**{"jobs_max_pending_per_actor": 100, "jobs_max_pending_per_workspace": 100, limit: 5})
    course = desk.course()

    def ask(number: int) -> object:
        try:
            return desk.create(**order(course, f"tag {number}", key=f"key-{number}")).created
        except TooMany as refusal:
            return refusal.code

    answers = at_once(40, ask)
    assert answers.count(True) == 5
    assert row(desk.database, "select count(*) from queue.job").count == 5
    assert row(desk.database, "select count(*) from hub.tag").count == 5


def test_forty_threads_at_a_daily_limit_of_five_make_five_jobs(limited: Limited) -> None:
    desk = limited(jobs_max_pending_per_actor=100, jobs_max_pending_per_workspace=100, jobs_max_created_per_day=5)
    course = desk.course()

    def ask(number: int) -> object:
        try:
            return desk.create(**order(course, key=f"key-{number}")).created
        except TooMany as refusal:
            return refusal.code

    answers = at_once(40, ask)
    assert answers.count(True) == 5
    assert answers.count("daily_limit") == 35


def test_creations_in_other_workspaces_do_not_wait(desk: Desk) -> None:
    other = factories.make_team(desk.database)
    course = factories.make_course(desk.database, other)
    with desk.database.transaction() as session:
        session.execute(
            factories.text("select from hub.workspace where id = :id for no key update"), {"id": desk.team.workspace.id}
        )
        assert desk.create(**order(course), team=other).created


# Limits of the arguments


def test_a_hundred_thousand_pages_are_taken_on_in_one_go_and_one_more_is_refused(desk: Desk) -> None:
    course = desk.course(100_001)
    refusal = refused_quickly(desk, Invalid, **order(course))
    assert list(refusal.fields) == ["course_id"]
    assert "100,000" in refusal.fields["course_id"]
    run(desk.database, "delete from hub.page where position = 100001")
    job_id = desk.start(course)
    assert desk.job(job_id).total == 100_000
    assert row(desk.database, "select sum(cardinality(items)) as items from queue.worklist").items == 100_000
    desk.cancel(job_id)
    assert rows(desk.database, "select from queue.worklist") == []


def refused_quickly(desk: Desk, expected: type[Refusal], **values: Any) -> Any:
    """As `refused`, without an image of a hundred thousand pages."""
    with pytest.raises(expected) as caught:
        desk.create(**values)
    counted = (
        "select (select count(*) from queue.job) + (select count(*) from queue.worklist) + "
        "(select count(*) from hub.tag) + (select count(*) from audit.event) as n"
    )
    assert row(desk.database, counted).n == 0
    return caught.value


def test_a_course_without_pages_to_tag_is_refused(desk: Desk) -> None:
    assert list(refused(desk, Invalid, **order(desk.course(0))).fields) == ["pages"]
    course = desk.course(2)
    desk.start(course)
    desk.work()
    assert list(refused(desk, Invalid, **order(course, pages="untagged")).fields) == ["pages"]


def test_another_workspaces_course_is_not_known(desk: Desk) -> None:
    other = factories.make_team(desk.database)
    course = factories.make_course(desk.database, other)
    assert list(refused(desk, Invalid, **order(course)).fields) == ["course_id"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kind": "course.burn"}, "kind"),
        ({"kind": "\x00"}, "kind"),
        ({"kind": None}, "kind"),
        ({"kind": ["course.tag"]}, "kind"),
        ({"key": ""}, "idempotency_key"),
        ({"key": "x" * 201}, "idempotency_key"),
        ({"key": "two words"}, "idempotency_key"),
        ({"key": "tab\t"}, "idempotency_key"),
        ({"key": "newline\n"}, "idempotency_key"),
        ({"key": "ü"}, "idempotency_key"),
        ({"key": "\x00"}, "idempotency_key"),
        ({"key": None}, "idempotency_key"),
        ({"key": 5}, "idempotency_key"),
        ({"args": None}, "args"),
        ({"args": []}, "args"),
        ({"args": "text"}, "args"),
    ],
)
def test_a_wrong_field_is_named(desk: Desk, change: dict[str, Any], field: str) -> None:
    assert list(refused(desk, Invalid, **order(desk.course()) | change).fields) == [field]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"course_id": "none"}, "course_id"),
        ({"course_id": None}, "course_id"),
        ({"course_id": 12}, "course_id"),
        ({"course_id": str(uuid.UUID(int=0))}, "course_id"),
        ({"course_id": "\x00" * 36}, "course_id"),
        ({"tags": []}, "tags"),
        ({"tags": "biology"}, "tags"),
        ({"tags": None}, "tags"),
        ({"tags": {"a": 1}}, "tags"),
        ({"tags": [""]}, "tags"),
        ({"tags": [5]}, "tags"),
        ({"tags": ["x" * 81]}, "tags"),
        ({"tags": ["a\x00"]}, "tags"),
        ({"tags": ["\ud800"]}, "tags"),
        ({"tags": [f"tag {n}" for n in range(21)]}, "tags"),
        ({"pages": "some"}, "pages"),
        ({"pages": None}, "pages"),
        ({"pages": ["all"]}, "pages"),
        ({"workspace_id": str(uuid.UUID(int=1))}, "workspace_id"),
        ({"actor_id": str(uuid.UUID(int=1))}, "actor_id"),
    ],
)
def test_a_wrong_argument_is_named(desk: Desk, change: dict[str, Any], field: str) -> None:
    refusal = refused(desk, Invalid, **order(desk.course(), **change))
    assert list(refusal.fields) == [field]
    assert refusal.fields[field]


def test_twenty_tags_and_a_key_of_two_hundred_characters_are_taken(desk: Desk) -> None:
    course = desk.course()
    names = [f"tag {n}".ljust(80, "x") for n in range(20)]
    assert desk.create(**order(course, *names, key="~" * 200)).created
    desk.work()
    assert row(desk.database, "select count(*) from hub.page_tag").count == 60


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None, categories=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.sampled_from(["course_id", "tags", "pages", "other"])


@given(kind=JSON, args=st.dictionaries(FIELDS, JSON) | JSON, key=JSON)
@budget(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_is_sent_is_refused_by_field_and_leaves_nothing(desk: Desk, kind: Any, args: Any, key: Any) -> None:
    for name in (kind, "course.tag"):
        with pytest.raises(Invalid) as caught:
            desk.create(kind=name, args=args, key=key)
        assert caught.value.fields
        assert all(caught.value.fields.values())
    assert rows(desk.database, "select from queue.job") == rows(desk.database, "select from hub.tag") == []


def test_a_trail_that_cannot_be_written_stops_the_creation(desk: Desk, admin_url: str) -> None:
    course = desk.course()
    before = desk.image()
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute("revoke execute on function audit.record from hub_app")
        try:
            with pytest.raises(Exception, match="permission denied"):
                desk.create(**order(course))
        finally:
            connection.execute("grant execute on function audit.record to hub_app")
    assert desk.image() == before
