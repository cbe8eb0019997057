"""course.tag: what it does to pages, what it records, and how it ends."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import psycopg
import pytest

from hub.db import Database
from hub.errors import Stale
from hub.jobs.course_tag import TAG_PAGE
from hub.models import course as courses
from hub.queue import store
from hub.queue.testing import drain
from tests import factories
from tests.factories import row, rows, run
from tests.invariants import Watch
from tests.jobs.conftest import Desk

pytestmark = pytest.mark.usefixtures("watch")


def pages(desk: Desk, columns: str = "id, title, md5(body) as body, version, updated_at") -> list[Any]:
    """The pages in their order."""
    return rows(desk.database, f"select {columns} from hub.page order by course_id, position")


def tags_by_position(desk: Desk) -> dict[int, list[str]]:
    """The names of the tags of each page, in alphabetic order, by its position."""
    query = """
        select p.position, array_remove(array_agg(t.name order by t.name), null) as tags
        from hub.page p left join hub.page_tag pt on pt.page_id = p.id left join hub.tag t on t.id = pt.tag_id
        group by p.position
    """
    return {page.position: page.tags for page in rows(desk.database, query)}


# What happens to pages


ODD = [
    "",
    " two  spaces \n\n",
    "e\u0301 and \u00e9",
    "\U0001f6b0\u202egnp.exe",
    "<b>&amp;'\"",
    "x" * 200_000,
    "%s :name \\",
]


def test_titles_and_bodies_are_left_as_they_are_to_the_byte(desk: Desk) -> None:
    course = desk.course(len(ODD))
    for number, text in enumerate(ODD, 1):
        run(
            desk.database,
            "update hub.page set body = :text, title = left(:text, 300), version = version + 1 where position = :n",
            text=text,
            n=number,
        )
    before = pages(desk, "id, title, body, position, course_id, created_at")
    job_id = desk.start(course, "Cells", "Plants")
    desk.work()
    assert desk.outcome(job_id) == ("succeeded", len(ODD), 0, 0)
    assert pages(desk, "id, title, body, position, course_id, created_at") == before
    assert {tuple(tags) for tags in tags_by_position(desk).values()} == {("Cells", "Plants")}


def test_a_changed_page_has_a_new_version_and_tells_who_changed_it(desk: Desk) -> None:
    course = desk.course(4)
    before = pages(desk)
    job_id = desk.start(course)
    desk.work()
    for old, new in zip(before, pages(desk, "version, updated_at, updated_by"), strict=True):
        assert (new.version, new.updated_by) == (old.version + 1, desk.team.admin.name)
        assert new.updated_at > old.updated_at
    added = rows(desk.database, "select distinct job_id, added_by from hub.page_tag")
    assert [tuple(one) for one in added] == [(job_id, desk.team.admin.name)]


def test_only_missing_tags_are_added(desk: Desk) -> None:
    course = desk.course(2)
    desk.start(course, "a")
    desk.work()
    run(desk.database, "delete from hub.page_tag where page_id = (select id from hub.page where position = 2)")
    second = desk.start(course, "a", "b")
    desk.work()
    assert desk.outcome(second) == ("succeeded", 2, 0, 0)
    by_job = rows(desk.database, "select job_id, count(*) as n from hub.page_tag group by 1 order by 1")
    assert [count.n for count in by_job] == [1, 3]


def test_pages_that_have_the_tags_are_skipped_and_not_touched(desk: Desk) -> None:
    course = desk.course(4)
    desk.start(course, "Übung")
    desk.work()
    before, tags = pages(desk), rows(desk.database, "select t::text from hub.page_tag t order by 1")
    for spelling in ("Übung", "üBUNG", " U\u0308bung "):
        again = desk.start(course, spelling)
        desk.work()
        assert desk.outcome(again) == ("succeeded", 0, 4, 0)
    assert pages(desk) == before
    assert rows(desk.database, "select t::text from hub.page_tag t order by 1") == tags
    assert row(desk.database, "select name from hub.tag").name == "Übung"


def test_half_tagged_courses_are_counted_apart(desk: Desk) -> None:
    course = desk.course(6)
    desk.start(course, "a")
    desk.work()
    run(desk.database, "delete from hub.page_tag where page_id in (select id from hub.page where position > 2)")
    job_id = desk.start(course, "A")
    desk.work()
    assert desk.outcome(job_id) == ("succeeded", 4, 2, 0)
    assert all(tags == ["a"] for tags in tags_by_position(desk).values())


def test_a_course_that_grew_is_tagged_as_it_was_when_the_job_was_made(desk: Desk) -> None:
    course = desk.course(3)
    job_id = desk.start(course)
    run(
        desk.database,
        "insert into hub.page (id, course_id, position, title, body, updated_by) values "
        "(gen_random_uuid(), :course, 4, 'New', '', '')",
        course=course,
    )
    desk.work()
    assert desk.outcome(job_id) == ("succeeded", 3, 0, 0)
    assert tags_by_position(desk)[4] == []


def test_another_workspaces_pages_are_out_of_reach(desk: Desk) -> None:
    other = factories.make_team(desk.database)
    factories.make_course(desk.database, other, 3)
    job_id = desk.start(desk.course(2))
    foreign = row(
        desk.database,
        "select p.id from hub.page p join hub.course c on c.id = p.course_id where c.workspace_id = :id limit 1",
        id=other.workspace.id,
    ).id
    run(desk.database, "update queue.worklist set items[1] = :page", page=foreign)
    desk.work()
    assert desk.outcome(job_id) == ("succeeded", 1, 0, 1)
    assert row(desk.database, "select version from hub.page where id = :id", id=foreign).version == 1


# Failures


def failures(desk: Desk, job_id: int) -> list[tuple[str, str]]:
    """(title, code) of each failure that is told."""
    return [(item["title"], item["code"]) for item in desk.job(job_id).failures["items"]]


def test_a_page_with_too_many_tags_fails_and_the_rest_goes_on(desk: Desk) -> None:
    course = desk.course(3)
    run(
        desk.database,
        "with made as (insert into hub.tag (id, workspace_id, name, key) "
        "select gen_random_uuid(), :workspace, 't' || n, 't' || n from generate_series(1, 100) n returning id, name) "
        "insert into hub.page_tag (page_id, tag_id) select p.id, made.id from made, hub.page p "
        "where p.position = 1 or (p.position = 2 and made.name <> 't7')",
        workspace=desk.team.workspace.id,
    )
    before = pages(desk)
    job_id = desk.start(course, "one more")
    desk.work()
    assert desk.outcome(job_id) == ("succeeded", 2, 0, 1)
    assert failures(desk, job_id) == [("Page 1", "too_many_tags")]
    assert pages(desk)[0] == before[0]
    second = desk.start(course, "T7", "one more")
    desk.work()
    assert desk.outcome(second) == ("succeeded", 1, 0, 2)


def test_a_deleted_page_is_a_failure_of_its_own(desk: Desk) -> None:
    course = desk.course(4)
    job_id = desk.start(course)
    run(desk.database, "delete from hub.page where position = 2")
    desk.work()
    assert desk.outcome(job_id) == ("succeeded", 3, 0, 1)
    assert failures(desk, job_id) == [("", "page_missing")]


@pytest.mark.parametrize("what", ["page", "course"])
def test_what_is_deleted_while_the_job_waits_for_it_is_missing(desk: Desk, what: str) -> None:
    course = desk.course(5)
    job_id = desk.start(course)
    with desk.working_at(3) as holder:
        if what == "page":
            holder.execute("delete from hub.page where position = 3")
        else:
            holder.execute("delete from hub.page")
            holder.execute("delete from hub.course")
    gone = 1 if what == "page" else 3
    assert desk.outcome(job_id) == ("succeeded", 5 - gone, 0, gone)
    assert {code for _, code in failures(desk, job_id)} == {"page_missing"}
    assert desk.job(job_id).subject_name == "Introduction to Biology"


def test_failures_are_all_counted_and_a_hundred_are_told(desk: Desk) -> None:
    course = desk.course(130)
    job_id = desk.start(course)
    run(desk.database, "delete from hub.page where position <= 120")
    desk.work()
    told = desk.job(job_id).failures
    assert desk.outcome(job_id) == ("succeeded", 10, 0, 120)
    assert told["counts"] == {"page_missing": 120}
    assert len(told["items"]) == 100


# Editors


def test_a_page_that_an_editor_changed_meanwhile_is_read_again(desk: Desk) -> None:
    course = desk.course(3)
    job_id = desk.start(course, "job")
    with desk.working_at(2) as editor:
        editor.execute("update hub.page set body = 'edited', version = version + 1 where position = 2")
    assert desk.outcome(job_id) == ("succeeded", 3, 0, 0)
    page = row(desk.database, "select body, version from hub.page where position = 2")
    assert (page.body, page.version) == ("edited", 3)
    assert tags_by_position(desk)[2] == ["job"]


def test_an_editor_who_adds_the_same_tag_first_makes_the_page_a_skipped_one(desk: Desk) -> None:
    course = desk.course(3)
    job_id = desk.start(course, "same")
    with desk.working_at(2) as editor:
        editor.execute("update hub.page set version = version + 1 where position = 2")
        editor.execute(
            "insert into hub.page_tag (page_id, tag_id) select p.id, t.id from hub.page p, hub.tag t where position = 2"
        )
    assert desk.outcome(job_id) == ("succeeded", 2, 1, 0)


# Stands for an editor who is faster: the update of the page at position 2 finds it changed, so many times.
LOSE = """
create schema races;
create sequence races.lost;
create function races.lose() returns trigger language plpgsql security definer as $f$
begin
    if new.position = 2 and nextval('races.lost') <= {times} then
        return null;
    end if;
    return new;
end $f$;
create trigger lose before update on hub.page for each row execute function races.lose();
"""


@pytest.mark.parametrize(("times", "outcome"), [(2, (3, 0, 0)), (3, (2, 0, 1))])
def test_a_race_with_editors_is_tried_three_times_and_then_a_failure_of_that_page(
    desk: Desk, admin_url: str, times: int, outcome: tuple[int, int, int]
) -> None:
    course = desk.course(3)
    job_id = desk.start(course)
    with psycopg.connect(admin_url, autocommit=True) as admin:
        admin.execute(LOSE.format(times=times).encode())
        try:
            desk.work()
        finally:
            admin.execute("drop schema races cascade")
    assert desk.outcome(job_id) == ("succeeded", *outcome)
    assert failures(desk, job_id) == [("Page 2", "edit_conflict")] * outcome[2]
    assert desk.job(job_id).attempt == 1


def test_a_page_that_stays_locked_is_a_conflict_and_no_failed_attempt(desk: Desk) -> None:
    course = desk.course(3)
    job_id = desk.start(course)
    impatient = Database(desk.database.url, application_name="tests", lock_timeout=0.05)
    try:
        with desk.database.autocommit() as holder, holder.transaction():
            holder.execute("select from hub.page where position = 2 for update")
            drain(impatient, desk.settings, "workspace.jobs")
    finally:
        impatient.close()
    assert desk.outcome(job_id) == ("succeeded", 2, 0, 1)
    assert [code for _, code in failures(desk, job_id)] == ["edit_conflict"]
    assert desk.job(job_id).attempt == 1
    assert rows(desk.database, "select from queue.attempt") == []


def append_lines(desk: Desk, course: uuid.UUID, page_id: uuid.UUID, name: str, acknowledged: list[str]) -> None:
    """An editor who adds lines and tags, one after the other, and reads again when somebody was faster."""
    for number in range(12):
        line = f"{name}{number}\n"
        while True:
            with desk.database.transaction() as session:
                seen = courses.read_page(session, desk.team.workspace.id, course, page_id)
            fields = {"body": seen.body + line, "tags": [*seen.tag_names, f"{name} {number}"]}
            try:
                with desk.database.transaction() as session:
                    courses.edit_page(
                        session, desk.team.workspace.id, course, page_id,
                        if_match=seen.etag, fields=fields, actor=desk.team.actor,
                    )  # fmt: skip
            except Stale:
                continue
            acknowledged.append(line)
            break


def test_no_acknowledged_line_or_tag_of_an_editor_is_lost(desk: Desk) -> None:
    course = desk.course(1)
    page_id = pages(desk)[0].id
    text = row(desk.database, "select body from hub.page").body
    acknowledged: list[str] = []
    editors = [threading.Thread(target=append_lines, args=(desk, course, page_id, name, acknowledged)) for name in "ab"]
    for editor in editors:
        editor.start()
    jobs = []
    while any(editor.is_alive() for editor in editors):
        jobs.append(desk.start(course, f"job {len(jobs)}"))
        desk.work()
    for editor in editors:
        editor.join()
    body = row(desk.database, "select body from hub.page").body
    assert sorted(body.removeprefix(text).splitlines(keepends=True)) == sorted(acknowledged)
    assert len(acknowledged) == 24
    expected = {f"{name} {number}" for name in "ab" for number in range(12)}
    expected |= {f"job {number}" for number, job_id in enumerate(jobs) if desk.job(job_id).changed}
    assert set(tags_by_position(desk)[1]) == expected
    for job_id in jobs:
        assert desk.job(job_id).changed + desk.job(job_id).failed == 1


def test_two_jobs_at_one_course_at_once_both_come_to_their_end(desk: Desk) -> None:
    course = desk.course(60)
    first, second = desk.start(course, "one", "both"), desk.start(course, "two", "both")
    workers = [threading.Thread(target=desk.work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    for job_id in (first, second):
        state, changed, skipped, failed = desk.outcome(job_id)
        assert (state, changed + skipped + failed, failed) == ("succeeded", 60, 0)
    assert {tuple(tags) for tags in tags_by_position(desk).values()} == {("both", "one", "two")}


# The actor's right

LOST = {
    "membership disabled": "update hub.membership set enabled = false where person_id = %(actor)s",
    "membership gone": "delete from hub.membership where person_id = %(actor)s",
    "made a member": "update hub.membership set role = 'member' where person_id = %(actor)s",
    "made a viewer": "update hub.membership set role = 'viewer' where person_id = %(actor)s",
    "person disabled": "update hub.person set enabled = false where id = %(actor)s",
    "workspace disabled": "update hub.workspace set enabled = false where id = %(workspace)s",
}


def take_right(desk: Desk, lost: str) -> None:
    """The admin of the team loses the right to run jobs, committed."""
    values = {"actor": desk.team.admin.id, "workspace": desk.team.workspace.id}
    with desk.database.autocommit() as connection:
        connection.execute(LOST[lost].encode(), values)


def told_end(desk: Desk, job_id: int) -> dict[str, Any]:
    """What the terminal event tells."""
    query = "select changes from audit.event where job_id = :id order by id desc limit 1"
    changes: dict[str, Any] = row(desk.database, query, id=job_id).changes
    return changes


@pytest.mark.parametrize("lost", LOST)
def test_a_right_lost_before_the_first_page_ends_the_job_with_nothing_done(desk: Desk, lost: str) -> None:
    job_id = desk.start(desk.course(3))
    before = pages(desk)
    take_right(desk, lost)
    desk.work()
    assert desk.outcome(job_id) == ("failed", 0, 0, 0)
    assert desk.job(job_id).code == told_end(desk, job_id)["code"] == "actor_not_authorized"
    assert pages(desk) == before
    assert desk.events(job_id) == ["job.queued", "job.failed"]


@pytest.mark.parametrize("lost", LOST)
def test_a_right_lost_on_the_way_ends_the_job_after_the_page_in_hand(desk: Desk, lost: str) -> None:
    job_id = desk.start(desk.course(6))
    with desk.working_at(3):
        take_right(desk, lost)
    state, changed, skipped, failed = desk.outcome(job_id)
    assert (state, skipped, failed) == ("failed", 0, 0)
    assert changed in (2, 3)
    assert desk.job(job_id).code == "actor_not_authorized"
    assert sum(bool(tags) for tags in tags_by_position(desk).values()) == changed
    assert rows(desk.database, "select from queue.dead_letter") == []
    assert desk.job(job_id).attempt == 1


def test_another_admins_loss_does_not_concern_the_job(desk: Desk) -> None:
    other = desk.member()
    job_id = desk.start(desk.course(3))
    run(desk.database, "update hub.membership set enabled = false where person_id = :id", id=other.id)
    desk.work()
    assert desk.outcome(job_id) == ("succeeded", 3, 0, 0)


def test_a_right_lost_after_the_last_page_changes_nothing(desk: Desk) -> None:
    job_id = desk.start(desk.course(1))
    with desk.working_at(1):
        take_right(desk, "person disabled")
    assert desk.outcome(job_id) == ("succeeded", 1, 0, 0)


# Versions


def test_the_version_tells_of_every_page_and_never_falls(desk: Desk, watch: Watch) -> None:
    job_id = desk.start(desk.course(5))
    desk.work()
    seen = watch.rows("select new_version, new_done, new_state from $transition where not setting_up order by seq")
    assert [line["new_version"] for line in seen] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [line["new_done"] for line in seen] == [0, 0, 1, 2, 3, 4, 5, 5]
    assert desk.job(job_id).version == 8


def test_progress_is_not_announced_page_by_page(desk: Desk) -> None:
    with psycopg.connect(desk.database.url, autocommit=True) as listener:
        listener.execute("listen hub_job")
        job_id = desk.start(desk.course(300))
        desk.work()
        listener.execute("select pg_notify('hub_job', 'the end')")
        heard = []
        for note in listener.notifies(timeout=30):
            if note.payload == "the end":
                break
            heard.append(note.payload)
    assert heard[0] == heard[-1] == str(job_id)
    assert len(heard) < 60


# Workers that die


def test_a_job_whose_worker_died_twice_goes_on_and_finishes(desk: Desk) -> None:
    job_id = desk.start(desk.course(9))
    statement = store.compose_step(TAG_PAGE)
    for attempt in (1, 2):
        with desk.database.autocommit() as connection:
            (job,) = store.claim(connection, "workspace.jobs", ["course.tag"], claim=attempt, lanes=1, lease=60.0)
            assert job.attempt == attempt
            listed = store.worklist_chunk(connection, job_id, 0)
            for position in range(job.position, job.position + 3):
                values = {
                    "id": job_id, "claim": attempt, "position": position, "page_id": listed[position],
                    "course_id": job.args["course_id"], "tag_ids": [uuid.UUID(tag) for tag in job.args["tag_ids"]],
                    "workspace_id": job.workspace_id, "actor_id": desk.team.admin.id, "actor_name": "x",
                    "most_tags": 100,
                }  # fmt: skip
                assert store.step(connection, statement, values) is not None
            connection.execute("update queue.job set again_at = statement_timestamp()")
    desk.work()
    assert desk.outcome(job_id) == ("succeeded", 9, 0, 0)
    assert desk.job(job_id).attempt == 3
    assert {page.version for page in pages(desk)} == {2}
