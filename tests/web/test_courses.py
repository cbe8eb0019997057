"""Courses over HTTP: lists, creation, import, renaming, deletion, tags."""

from __future__ import annotations

import io
import uuid
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hub.db import Database, count_statements
from tests.factories import Team, add_member, make_course, make_person, make_team, row, rows
from tests.factories_jobs import make_job
from tests.web.acting import Acting


@pytest.fixture
def team(database: Database) -> Team:
    return make_team(database)


@pytest.fixture
def admin(app: Any, database: Database, team: Team) -> Acting:
    return Acting(app, database, team.admin, f"/w/{team.workspace.slug}")


def member_as(app: Any, database: Database, team: Team, role: str) -> Acting:
    return Acting(app, database, add_member(database, team, role), f"/w/{team.workspace.slug}")


def zipped(files: dict[str, bytes | str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


def upload(acting: Acting, data: bytes, name: str = "Biology.zip", **fields: Any) -> Any:
    token = acting._token | {"Accept": "application/json"}
    values = {"file": (io.BytesIO(data), name)} | fields
    return acting.client.post(f"{acting.at}/courses/import", data=values, headers=token)


def test_a_course_is_created_listed_renamed_and_deleted(admin: Acting, database: Database) -> None:
    made = admin.send("POST", "/courses", {"title": "Biology"}, status=201)
    course_id = made.get_json()["id"]
    assert made.headers["Location"].endswith(f"/courses/{course_id}")
    assert [item["title"] for item in admin.json("/courses")["items"]] == ["Biology"]
    assert admin.send("PATCH", f"/courses/{course_id}", {"title": "Life"}, status=200).get_json()["title"] == "Life"
    assert admin.json(f"/courses/{course_id}")["title"] == "Life"
    admin.send("DELETE", f"/courses/{course_id}", status=200)
    assert admin.json(f"/courses/{course_id}", 404)["error"]["code"] == "not_found"
    actions = [event.action for event in rows(database, "select action from audit.event order by id")]
    assert [action for action in actions if action.startswith("course.")] == [
        "course.created",
        "course.renamed",
        "course.deleted",
    ]


def test_the_same_by_forms(admin: Acting) -> None:
    at = admin.form("/courses", title="Biology").headers["Location"].removeprefix(admin.at)
    assert "The course “Biology” was created." in admin.page(at)
    assert 'value="Biology"' in admin.page(f"{at}/edit")
    admin.form(f"{at}/edit", title="Life")
    assert "<h1>Life</h1>" in admin.page(at)
    assert "Delete “Life”?" in admin.page(f"{at}/delete")
    assert admin.form(f"{at}/delete").headers["Location"].endswith("/courses")
    admin.page(at, 404)


def test_a_form_with_a_mistake_comes_back_with_what_was_typed(admin: Acting) -> None:
    page = admin.form("/courses", 422, title="x" * 301).text
    assert "There is a problem" in page
    assert "x" * 301 in page
    assert 'aria-invalid="true"' in page
    assert "<title>Error: " in page


@pytest.mark.parametrize("title", [None, "", " ", 7, ["a"], {}, "a\nb", "x" * 301])
def test_a_title_that_cannot_be_is_refused_by_name(admin: Acting, database: Database, title: object) -> None:
    error = admin.send("POST", "/courses", {"title": title}, status=422).get_json()["error"]
    assert list(error["fields"]) == ["title"]
    assert rows(database, "select from hub.course") == []


@pytest.mark.parametrize("title", ["nul \0", "lone \ud800"])
def test_text_that_no_database_holds_is_refused(admin: Acting, title: str) -> None:
    assert admin.send("POST", "/courses", {"title": title}).status_code in (400, 422)


def test_a_course_page_has_its_pages_and_actions(admin: Acting, database: Database, team: Team) -> None:
    course_id = make_course(database, team, pages=3)
    page = admin.page(f"/courses/{course_id}")
    for title in ("Page 1", "Page 2", "Page 3"):
        assert title in page
    assert f"/courses/{course_id}/tag" in page
    assert "3 pages, 0 of them tagged" in page


def test_a_course_page_tells_of_the_jobs_on_it(admin: Acting, database: Database, team: Team) -> None:
    course_id = make_course(database, team)
    running = make_job(database, team, "running", subject=f"course:{course_id}")
    ended = make_job(database, team, "finished", subject=f"course:{course_id}")
    page = admin.page(f"/courses/{course_id}")
    assert "Being worked on" in page
    assert f"/jobs/{running}" in page
    assert f"/jobs/{ended}" in page


@pytest.mark.parametrize(("role", "may"), [("admin", True), ("member", True), ("viewer", False)])
def test_controls_that_somebody_may_never_use_are_absent(
    app: Any, database: Database, team: Team, role: str, may: bool
) -> None:
    course_id = make_course(database, team)
    somebody = member_as(app, database, team, role)
    page = somebody.page(f"/courses/{course_id}") + somebody.page("/courses")
    assert ("/courses/new" in page) is may
    assert ("/delete" in page) is may
    assert (f"/courses/{course_id}/tag" in page) is (role == "admin")


def test_a_viewer_can_change_nothing(app: Any, database: Database, team: Team) -> None:
    course_id = make_course(database, team)
    viewer = member_as(app, database, team, "viewer")
    for method, path in (
        ("POST", "/courses"),
        ("POST", "/courses/import"),
        ("PATCH", f"/courses/{course_id}"),
        ("DELETE", f"/courses/{course_id}"),
        ("POST", f"/courses/{course_id}/edit"),
        ("POST", f"/courses/{course_id}/delete"),
        ("POST", f"/courses/{course_id}/pages"),
        ("GET", "/courses/new"),
        ("GET", f"/courses/{course_id}/edit"),
        ("GET", f"/courses/{course_id}/delete"),
        ("GET", f"/courses/{course_id}/pages/new"),
    ):
        assert viewer.send(method, path, {} if method != "GET" else None).status_code == 403, (method, path)
    assert row(database, "select count(*) as n from hub.course").n == 1


def test_strangers_and_other_workspaces_find_nothing(app: Any, database: Database, team: Team) -> None:
    course_id = make_course(database, team)
    stranger = Acting(app, database, make_person(database), f"/w/{team.workspace.slug}")
    other = make_team(database)
    elsewhere = Acting(app, database, other.admin, f"/w/{other.workspace.slug}")
    for path in ("/courses", "/tags", f"/courses/{course_id}"):
        assert stranger.json(path, 404)["error"]["code"] == "not_found"
    for method in ("GET", "PATCH", "DELETE"):
        elsewhere.send(method, f"/courses/{course_id}", {"title": "x"} if method == "PATCH" else None, status=404)
    elsewhere.send("POST", f"/courses/{course_id}/pages", {"title": "x"}, status=404)


@pytest.mark.parametrize(
    "bad",
    ["1", "x" * 32, "00000000-0000-0000-0000-00000000000g", "%00", "..%2f", "0192f0a0" + "-0000" * 3 + "-000000000001"],
)
def test_an_id_of_nothing_is_not_found(admin: Acting, bad: str) -> None:
    assert admin.send("GET", f"/courses/{bad}").status_code in (400, 404)


def test_lists_are_walked_by_cursor(admin: Acting, database: Database, team: Team) -> None:
    titles = [f"course {number:02}" for number in range(7)]
    for title in reversed(titles):
        make_course(database, team, pages=1, title=title)
    seen: list[str] = []
    path = "/courses?limit=3"
    while path:
        answer = admin.json(path)
        seen += [item["title"] for item in answer["items"]]
        path = f"/courses?limit=3&cursor={answer['next']}" if answer["next"] else ""
    assert seen == titles
    first = admin.page("/courses?limit=3")
    assert "Next page" in first
    assert "cursor=" in first


def test_titles_are_found_in_any_case_and_taken_literally(admin: Acting, database: Database, team: Team) -> None:
    for title in ("100% Biology", "Änatomy"):
        make_course(database, team, pages=0, title=title)
    for query, found in (("bio", 1), ("0%", 1), ("_", 0), ("äNA", 1)):
        assert len(admin.json(f"/courses?q={query.replace('%', '%25')}")["items"]) == found, query
    assert "No courses match." in admin.page("/courses?q=none")


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=-1",
        "limit=abc",
        "limit=1e9",
        "cursor=abc",
        "cursor=WyJhIl0",
        "cursor=%00",
        "cursor=" + "A" * 3000,
    ]
    + ["q=" + "x" * 201, "cursor=WyJhIiwgImIiXQ", "limit=%F0%9F%98%80"],
)
@pytest.mark.parametrize("path", ["/courses", "/tags", "/courses/{course}"])
def test_bad_list_parameters_are_malformed(
    admin: Acting, database: Database, team: Team, path: str, query: str
) -> None:
    course_id = make_course(database, team, pages=1)
    if query.startswith("q=") and path != "/courses":
        return
    answer = admin.send("GET", f"{path.format(course=course_id)}?{query}")
    assert answer.status_code == (200 if (path, query) == ("/tags", "cursor=WyJhIl0") else 400)


def test_an_absurd_limit_is_cut(admin: Acting, database: Database, team: Team) -> None:
    course_id = make_course(database, team, pages=205)
    assert len(admin.json(f"/courses/{course_id}?limit=100000")["items"]) == 200


def test_pages_of_a_course_are_filtered_by_tag(admin: Acting, database: Database, team: Team) -> None:
    course_id = make_course(database, team, pages=0)
    for title, tags in (("One", ["Cell"]), ("Two", [])):
        admin.send("POST", f"/courses/{course_id}/pages", {"title": title, "tags": tags}, status=201)
    assert [page["title"] for page in admin.json(f"/courses/{course_id}?tag=CELL")["items"]] == ["One"]
    assert [page["title"] for page in admin.json(f"/courses/{course_id}?untagged=1")["items"]] == ["Two"]
    assert "No pages match." in admin.page(f"/courses/{course_id}?tag=other")
    assert admin.json(f"/courses/{course_id}/pages")["items"] == admin.json(f"/courses/{course_id}")["items"]


def test_tags_are_listed_with_their_pages(admin: Acting, database: Database, team: Team) -> None:
    course_id = make_course(database, team, pages=0)
    assert "No tags here yet" in admin.page("/tags")
    admin.send("POST", f"/courses/{course_id}/pages", {"title": "One", "tags": ["b", "a"]}, status=201)
    admin.send("POST", f"/courses/{course_id}/pages", {"title": "Two", "tags": ["B"]}, status=201)
    items = [(item["name"], item["pages"]) for item in admin.json("/tags")["items"]]
    assert items == [("a", 1), ("b", 2)]
    assert ">b</span>" in admin.page("/tags")


def test_a_zip_file_becomes_a_course(admin: Acting, database: Database) -> None:
    answer = upload(admin, zipped({"2.md": "# Two", "1.md": "# One", "x.png": b"\xff"}))
    assert answer.status_code == 201
    made = answer.get_json()
    assert (made["title"], made["pages"]) == ("Biology", 2)
    assert answer.headers["Location"].endswith(made["id"])
    assert [page["title"] for page in admin.json(f"/courses/{made['id']}")["items"]] == ["One", "Two"]
    titled = upload(admin, zipped({"1.md": "x"}), title="Another title").get_json()
    assert titled["title"] == "Another title"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"no zip", 415),
        (b"", 415),
        (zipped({"a.txt": "x"}), 422),
        (zipped({"good.md": "x", "bad.md": b"\xff"}), 422),
        (zipped({"../a.md": "x"}), 422),
        (zipped({f"{number}.md": "" for number in range(5_001)}), 413),
    ],
    ids=["no zip", "empty", "no pages", "not UTF-8", "outside", "too many"],
)
def test_a_refused_import_leaves_nothing_behind(admin: Acting, database: Database, data: bytes, status: int) -> None:
    answer = upload(admin, data)
    assert answer.status_code == status, answer.text
    assert rows(database, "select from hub.course") == rows(database, "select from hub.page") == []
    assert rows(database, "select from audit.event where action like 'course%'") == []


@pytest.mark.parametrize(
    "name", ["nul\0.zip", "lone \udc80.zip", "../../etc/passwd", "..", "x" * 400 + ".zip", " .zip"]
)
def test_a_strange_file_name_is_harmless(admin: Acting, database: Database, name: str) -> None:
    assert upload(admin, zipped({"a.md": "x"}), name.encode("utf-8", "replace").decode()).status_code in (201, 400, 422)
    assert upload(admin, zipped({"a.md": "x"}), "nul\0.zip", title="Named").status_code in (201, 400)
    sources = rows(database, "select changes->>'source' as name from audit.event where action = 'course.imported'")
    assert not any("/" in source.name for source in sources)


def test_an_import_without_a_file_says_so(admin: Acting) -> None:
    assert "Choose a zip file." in admin.form("/courses/import", 422, title="x").text
    assert admin.send("POST", "/courses/import", {"title": "x"}).status_code in (415, 422)


def test_an_import_larger_than_other_requests_is_taken(admin: Acting) -> None:
    noise = uuid.uuid4().hex * 8
    files: dict[str, bytes | str] = {
        f"{number}.md": f"{number}" + "".join(str(uuid.uuid4()) for _ in range(20_000)) for number in range(13)
    }
    data = zipped(files | {"n.md": noise})
    assert len(data) > 4 * 1024 * 1024
    assert upload(admin, data).status_code == 201


def test_a_real_course_is_imported(admin: Acting, test_data: Path) -> None:
    folder = test_data / "courses" / "git-novice"
    data = zipped({f"git-novice/{path.name}": path.read_bytes() for path in folder.glob("*.md")})
    made = upload(admin, data, "git-novice.zip").get_json()
    assert made["pages"] == 17
    assert "Setting Up Git" in admin.page(f"/courses/{made['id']}")


def test_pages_cost_few_statements_however_much_they_show(
    app: Any, admin: Acting, database: Database, team: Team
) -> None:
    few, many = (make_course(database, team, pages=number, title=f"{number} pages") for number in (2, 60))
    for course_id in (few, many):
        make_job(database, team, "finished", subject=f"course:{course_id}")
    statements = count_statements(app.extensions["hub"].db)

    def cost(path: str) -> int:
        statements.clear()
        admin.page(path)
        return len(statements)

    # One finds the session, one the workspace with the membership.
    assert cost("/courses") <= 3
    assert cost("/tags") <= 3
    assert cost(f"/courses/{few}") == cost(f"/courses/{many}") <= 7


def test_markup_in_titles_and_tags_is_inert(admin: Acting) -> None:
    evil = "<script>alert(1)</script>\"' {{7*7}} &amp;"
    made = admin.send("POST", "/courses", {"title": evil}, status=201).get_json()
    admin.send("POST", f"/courses/{made['id']}/pages", {"title": evil, "tags": [evil]}, status=201)
    for path in ("/courses", f"/courses/{made['id']}", "/tags", "/audit"):
        page = admin.page(path)
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
