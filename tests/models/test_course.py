"""Courses, pages and tags: what an edit changes, and what it must not."""

from __future__ import annotations

import threading
import unicodedata
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from hub.db import Database, count_statements
from hub.errors import Invalid, NotFound, PreconditionRequired, Stale
from hub.models import content, course, tag, workspace
from hub.models.base import new_id
from hub.models.course import PageView
from tests.factories import Team, make_course, make_team, row, rows, run

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)


@pytest.fixture
def team(database: Database) -> Team:
    return make_team(database)


@pytest.fixture
def course_id(database: Database, team: Team) -> uuid.UUID:
    return make_course(database, team, pages=0, title="Biology")


def add(database: Database, team: Team, course_id: uuid.UUID, title: str = "Cells", **fields: Any) -> PageView:
    with database.transaction() as session:
        values = {"body": "# Cells\n\nSmall.\n", "tags": [], "actor": team.actor} | fields
        return course.create_page(session, team.workspace.id, course_id, title=title, **values)


def edit(database: Database, team: Team, page: PageView, if_match: str | None = None, **fields: object) -> PageView:
    with database.transaction() as session:
        return course.edit_page(
            session,
            team.workspace.id,
            page.course_id,
            page.id,
            if_match=if_match or page.etag,
            fields=fields,
            actor=team.actor,
        )


def read(session: Session, team: Team, page: PageView) -> PageView:
    return course.read_page(session, team.workspace.id, page.course_id, page.id)


def test_pages_come_in_the_order_they_were_added(database: Database, team: Team, course_id: uuid.UUID) -> None:
    titles = ["b", "a", "c"]
    for title in titles:
        add(database, team, course_id, title)
    with database.transaction() as session:
        listed = course.list_pages(session, course_id)
        rest = course.list_pages(session, course_id, after=(listed[0].position, listed[0].id))
    assert [page.title for page in listed] == titles
    assert rest == listed[1:]


def test_an_edit_of_the_tags_leaves_title_and_body_byte_for_byte(
    database: Database, team: Team, course_id: uuid.UUID
) -> None:
    body = "tab\there, trailing space \n\n\ne\u0301 and \u00e9, \U0001f9ec, no end of line"
    page = add(database, team, course_id, "e\u0301 stays decomposed", body=body)
    tagged = edit(database, team, page, tags=["Biology"])
    assert (tagged.title, tagged.body, tagged.tag_names) == (page.title, body, ["Biology"])
    assert tagged.version == page.version + 1


def test_line_ends_are_stored_as_lf(database: Database, team: Team, course_id: uuid.UUID) -> None:
    page = add(database, team, course_id, body="one\r\ntwo\rthree\n")
    assert page.body == "one\ntwo\nthree\n"


def test_an_edit_without_a_difference_writes_nothing(database: Database, team: Team, course_id: uuid.UUID) -> None:
    page = add(database, team, course_id, tags=["Biology", "Cells"])
    before = row(database, "select count(*) as events, max(xid) from audit.event")
    same = edit(database, team, page, title=" Cells ", body="# Cells\r\n\r\nSmall.\r\n", tags=["CELLS", "biology"])
    assert same == page
    assert row(database, "select count(*) as events, max(xid) from audit.event") == before


def test_tags_that_stay_keep_who_put_them_there(database: Database, team: Team, course_id: uuid.UUID) -> None:
    page = add(database, team, course_id, tags=["a", "b"])
    run(database, "update hub.page_tag set job_id = 12, added_by = 'Maria' where page_id = :id", id=page.id)
    edited = edit(database, team, page, tags=["B", "c"])
    assert [(one.name, one.job_id, one.added_by) for one in edited.tags] == [
        ("b", 12, "Maria"),
        ("c", None, team.admin.name),
    ]
    assert edited.version == page.version + 1


def test_a_stale_edit_is_refused_with_the_present_page(database: Database, team: Team, course_id: uuid.UUID) -> None:
    page = add(database, team, course_id)
    newer = edit(database, team, page, title="Newer")
    with pytest.raises(Stale) as caught:
        edit(database, team, page, body="mine", tags=["new tag"])
    assert caught.value.data["page"] == newer
    assert rows(database, "select from hub.tag") == []


@pytest.mark.parametrize("header", ["*", " * ", '"other", {etag}', '{etag},"other"', 'W/"other" , {etag}'])
def test_if_match_may_be_a_star_or_a_list(database: Database, team: Team, course_id: uuid.UUID, header: str) -> None:
    page = add(database, team, course_id)
    assert edit(database, team, page, header.format(etag=page.etag), title="New").title == "New"


@pytest.mark.parametrize("header", ['"other"', "W/{etag}", "nonsense", '"*"', "{bare}", '"{bare}x"'])
def test_if_match_of_something_else_is_stale(database: Database, team: Team, course_id: uuid.UUID, header: str) -> None:
    page = add(database, team, course_id)
    with pytest.raises(Stale):
        edit(database, team, page, header.format(etag=page.etag, bare=page.etag.strip('"')), title="New")


@pytest.mark.parametrize("header", [None, "", "  "])
def test_an_edit_must_say_what_it_is_based_on(
    database: Database, team: Team, course_id: uuid.UUID, header: str | None
) -> None:
    page = add(database, team, course_id)
    with pytest.raises(PreconditionRequired), database.transaction() as session:
        course.delete_page(session, team.workspace.id, course_id, page.id, if_match=header, actor=team.actor)


@given(st.text(max_size=80))
def test_any_if_match_header_is_judged_without_an_error(header: str) -> None:
    present = course.etag(uuid.UUID(int=7), 3)
    if present not in header and header.strip() != "*":
        assert not course.matches(header, present)


def test_every_wrong_field_is_named_at_once(database: Database, team: Team, course_id: uuid.UUID) -> None:
    page = add(database, team, course_id)
    with pytest.raises(Invalid) as caught:
        edit(database, team, page, title="", body=b"bytes", tags=[1])
    assert set(caught.value.fields) == {"title", "body", "tags"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("title", None),
        ("title", "   "),
        ("title", "x" * 301),
        ("title", "two\nlines"),
        ("title", "\u200b"),
        ("title", "\u200b \u2060\ufeff\u2800\u3164\ufe0f"),
        ("title", "two\u2028lines"),
        ("title", "two\u2029lines"),
        ("title", "nul\0"),
        ("title", "lone \ud800"),
        ("body", ["text"]),
        ("body", "nul\0"),
        ("body", "lone \udfff"),
        ("body", "é" * 500_001),
        ("tags", "biology"),
        ("tags", {"a": 1}),
        ("tags", [""]),
        ("tags", ["\u200b"]),
        ("tags", ["\u3164\u2800"]),
        ("tags", ["two\u2028lines"]),
        ("tags", ["x" * 81]),
        ("tags", ["a\nb"]),
        ("tags", ["lone \ud800"]),
        ("tags", [f"tag {n}" for n in range(101)]),
    ],
)
def test_what_cannot_be_stored_is_refused_by_field(
    database: Database, team: Team, course_id: uuid.UUID, field: str, value: object
) -> None:
    page = add(database, team, course_id)
    with pytest.raises(Invalid) as caught:
        edit(database, team, page, **{field: value})
    assert list(caught.value.fields) == [field]
    with database.transaction() as session:
        assert read(session, team, page) == page


def test_the_limits_themselves_can_be_stored(database: Database, team: Team, course_id: uuid.UUID) -> None:
    tags = [f"{n:03} ".ljust(80, "x") for n in range(100)]
    page = add(database, team, course_id, "t" * 300, body="é" * 500_000, tags=tags)
    assert (len(page.title), len(page.body), page.tag_names) == (300, 500_000, tags)


def test_another_workspaces_course_is_not_found(database: Database, team: Team, course_id: uuid.UUID) -> None:
    page = add(database, team, course_id)
    other = make_team(database)
    with database.transaction() as session:
        for act in (
            lambda: course.find_course(session, other.workspace.id, course_id),
            lambda: course.read_page(session, other.workspace.id, course_id, page.id),
            lambda: course.rename_course(session, other.workspace.id, course_id, "Mine", other.actor),
            lambda: course.delete_course(session, other.workspace.id, course_id, other.actor),
            lambda: course.create_page(session, other.workspace.id, course_id, title="x", actor=other.actor),
            lambda: course.delete_page(
                session, other.workspace.id, course_id, page.id, if_match="*", actor=other.actor
            ),
        ):
            with pytest.raises(NotFound):
                act()


def test_a_page_under_another_course_is_not_found(database: Database, team: Team, course_id: uuid.UUID) -> None:
    page = add(database, team, course_id)
    second = make_course(database, team)
    with pytest.raises(NotFound), database.transaction() as session:
        course.read_page(session, team.workspace.id, second, page.id)


def test_deleting_a_course_takes_its_pages_and_leaves_the_tags(
    database: Database, team: Team, course_id: uuid.UUID
) -> None:
    add(database, team, course_id, tags=["kept"])
    add(database, team, course_id)
    with database.transaction() as session:
        assert course.delete_course(session, team.workspace.id, course_id, team.actor) == 2
    assert rows(database, "select from hub.page") == rows(database, "select from hub.page_tag") == []
    assert row(database, "select name from hub.tag").name == "kept"


def test_lists_tell_pages_and_tagged_pages_in_one_statement(
    database: Database, team: Team, course_id: uuid.UUID
) -> None:
    for number in range(3):
        add(database, team, course_id, tags=["a", "b"] if number else [])
    make_course(database, team, pages=5, title="anatomy")
    statements = count_statements(database)
    with database.transaction() as session:
        listed = course.list_courses(session, team.workspace.id)
        found = course.list_courses(session, team.workspace.id, query="BIO")
        rest = course.list_courses(session, team.workspace.id, after=(listed[0].sort_key, listed[0].id), limit=1)
    assert [(line.title, line.pages, line.tagged) for line in listed] == [("anatomy", 5, 0), ("Biology", 3, 2)]
    assert found == rest == listed[1:]
    assert len(statements) == 3


def test_pages_and_their_tags_are_one_statement(database: Database, team: Team, course_id: uuid.UUID) -> None:
    for number in range(4):
        add(database, team, course_id, tags=["a", f"only {number}"] if number else [])
    statements = count_statements(database)
    with database.transaction() as session:
        listed = course.list_pages(session, course_id)
        tagged = course.list_pages(session, course_id, tag=" A ")
        untagged = course.list_pages(session, course_id, untagged=True)
    assert [page.tag_names for page in listed] == [[], ["a", "only 1"], ["a", "only 2"], ["a", "only 3"]]
    assert (tagged, untagged) == (listed[1:], listed[:1])
    assert len(statements) == 3


def test_tags_are_listed_with_the_number_of_their_pages(database: Database, team: Team, course_id: uuid.UUID) -> None:
    for names in (["b", "a"], ["b"]):
        add(database, team, course_id, tags=names)
    with database.transaction() as session:
        all_tags = tag.of_workspace(session, team.workspace.id)
        in_course = tag.of_course(session, course_id)
    assert [(line.name, line.pages) for line in all_tags] == [("a", 1), ("b", 2)]
    assert [(line.name, line.pages) for line in in_course] == [("b", 2), ("a", 1)]


def test_a_tag_is_the_same_in_any_case_and_composition(database: Database, team: Team, course_id: uuid.UUID) -> None:
    spellings = ["Zellatmung  Übung", "ZELLATMUNG ÜBUNG", "zellatmung u\u0308bung "]
    for spelling in spellings:
        add(database, team, course_id, tags=[spelling])
    assert row(database, "select name, key from hub.tag") == ("Zellatmung Übung", "zellatmung übung")


@given(NAMES)
def test_a_key_is_its_own_key(name: str) -> None:
    assert tag.tag_key(tag.tag_key(name)) == tag.tag_key(name)


@given(NAMES)
def test_case_and_normal_form_do_not_change_a_key(name: str) -> None:
    for form in ("NFC", "NFD"):
        assert tag.tag_key(unicodedata.normalize(form, name)) == tag.tag_key(name)
    assert tag.tag_key(name.casefold()) == tag.tag_key(name)


@given(NAMES)
def test_a_tag_name_is_either_refused_or_kept_as_it_is_from_then_on(name: str) -> None:
    try:
        kept = tag.tag_name(name)
    except Invalid:
        return
    assert tag.tag_name(kept) == kept
    assert 1 <= len(kept) <= 80
    assert tag.tag_key(kept) == tag.tag_key(name)


@given(st.text())
def test_line_ends_are_lf_however_they_were(text: str) -> None:
    assert content.line_ends(text) == text.replace("\r\n", "\r").replace("\r", "\n")


def test_concurrent_editors_lose_no_acknowledged_change(database: Database, team: Team, course_id: uuid.UUID) -> None:
    page = add(database, team, course_id, body="")
    acknowledged: list[str] = []

    def append(name: str) -> None:
        for number in range(15):
            line = f"{name}{number}\n"
            while True:
                with database.transaction() as session:
                    seen = read(session, team, page)
                try:
                    edit(database, team, seen, body=seen.body + line, tags=[*seen.tag_names, f"{name} {number}"])
                except Stale:
                    continue
                acknowledged.append(line)
                break

    threads = [threading.Thread(target=append, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with database.transaction() as session:
        final = read(session, team, page)
    assert len(acknowledged) == 45
    assert sorted(final.body.splitlines(keepends=True)) == sorted(acknowledged)
    assert len(final.tags) == 45
    assert final.version == page.version + 45


def test_editors_with_the_same_new_tags_in_other_orders_do_not_deadlock(
    database: Database, team: Team, course_id: uuid.UUID
) -> None:
    names = [f"tag {number}" for number in range(30)]
    failures: list[Exception] = []

    def make(order: list[str]) -> None:
        try:
            add(database, team, course_id, tags=order)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=make, args=(order,)) for order in (names, names[::-1]) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert row(database, "select count(*) as n from hub.tag").n == 30


def test_a_page_added_while_its_course_is_deleted_leaves_nothing(
    database: Database, team: Team, course_id: uuid.UUID
) -> None:
    waiting: list[str] = []

    def add_late() -> None:
        try:
            add(database, team, course_id, tags=["late"])
        except NotFound:
            waiting.append("not found")

    with database.transaction() as session:
        course.delete_course(session, team.workspace.id, course_id, team.actor)
        adder = threading.Thread(target=add_late)
        adder.start()
    adder.join(30)
    assert waiting == ["not found"]
    assert rows(database, "select from hub.page") == rows(database, "select from hub.tag") == []


def test_an_editor_does_not_wait_for_the_workspaces_row(database: Database, team: Team, course_id: uuid.UUID) -> None:
    page = add(database, team, course_id)
    with database.transaction() as session:
        workspace.lock(session, team.workspace.id)
        assert edit(database, team, page, tags=["new"]).tag_names == ["new"]


def test_each_mutation_is_told_once_and_without_content(database: Database, team: Team, course_id: uuid.UUID) -> None:
    canary = "canary-5f1c"
    page = add(database, team, course_id, body=canary, tags=["a"])
    page = edit(database, team, page, title="Cell", body=canary * 2, tags=["b"])
    with database.transaction() as session:
        course.rename_course(session, team.workspace.id, course_id, "Life", team.actor)
        course.rename_course(session, team.workspace.id, course_id, "Life", team.actor)
        course.delete_page(session, team.workspace.id, course_id, page.id, if_match=page.etag, actor=team.actor)
        course.delete_course(session, team.workspace.id, course_id, team.actor)
    events = rows(database, "select action, target_id, changes, event::text as whole from audit.event order by id")
    assert [event.action for event in events] == [
        "page.created",
        "page.edited",
        "course.renamed",
        "page.deleted",
        "course.deleted",
    ]
    assert events[1].changes == {
        "title": ["Cells", "Cell"],
        "tags": [["a"], ["b"]],
        "body_characters": [len(canary), 2 * len(canary)],
    }
    assert not any(canary in event.whole for event in events)


def test_a_change_and_its_event_stand_or_fall_together(database: Database, team: Team, course_id: uuid.UUID) -> None:
    with pytest.raises(RuntimeError), database.transaction() as session:
        course.create_course(session, team.workspace.id, "Gone", team.actor)
        raise RuntimeError
    assert rows(database, "select from audit.event") == []
    assert row(database, "select id from hub.course").id == course_id


def test_an_absent_page_is_not_found_rather_than_stale(database: Database, team: Team, course_id: uuid.UUID) -> None:
    with pytest.raises(NotFound), database.transaction() as session:
        course.edit_page(
            session, team.workspace.id, course_id, new_id(), if_match="*", fields={"title": "x"}, actor=team.actor
        )
