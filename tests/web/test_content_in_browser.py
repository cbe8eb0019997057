"""Courses, pages and the audit trail in a real browser: accessible, narrow, and without scripts."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from hub.db import Database
from hub.models import course
from tests.browser import axe
from tests.factories import Team, make_course, make_team, row
from tests.factories_jobs import make_job, sign_in
from tests.processes import WebServer

BODY = """# Cells

Some *text* with `code` and a [link](https://there.example/).

```
a line of code that is far too long for a narrow screen, and goes on and on until it is longer than any screen is wide
```

| a table | with columns | and more | and more | and more |
| --- | --- | --- | --- | --- |
| averyveryverylongwordthatcannotbebroken | b | c | d | e |
"""


class Site:
    """A running server with a course of a few pages, and its signed-in admin."""

    def __init__(self, server: WebServer, database: Database) -> None:
        self.server = server
        self.database = database
        self.team: Team = make_team(database)
        self.course_id: uuid.UUID = make_course(database, self.team, pages=2, title="Biology")
        make_job(database, self.team, "running", subject=f"course:{self.course_id}")
        with database.transaction() as session:
            self.page = course.create_page(
                session,
                self.team.workspace.id,
                self.course_id,
                title="Cells",
                body=BODY,
                tags=["biology", "a rather long tag about cells and what is in them"],
                actor=self.team.actor,
            )
        self.at = f"{server.url}/w/{self.team.workspace.slug}"
        with httpx.Client(base_url=server.url) as client:
            sign_in(client, database, self.team.admin)
            self.cookies: list[Any] = [
                {"name": name, "value": value, "url": server.url} for name, value in client.cookies.items()
            ]

    def addresses(self) -> list[str]:
        of_course = f"/courses/{self.course_id}"
        of_page = f"{of_course}/pages/{self.page.id}"
        return [
            "/courses",
            "/courses?q=none",
            "/courses/new",
            of_course,
            f"{of_course}?tag=biology",
            f"{of_course}/edit",
            f"{of_course}/delete",
            f"{of_course}/pages/new",
            of_page,
            f"{of_page}/edit",
            f"{of_page}/delete",
            "/tags",
            "/audit",
            "/audit?who=Person&range=30d",
            "/audit?from=wrong",
            "/audit?who=nobody",
            f"/audit/{self.event_id()}",
        ]

    def event_id(self) -> int:
        return int(row(self.database, "select max(id) as id from audit.event where action = 'page.created'").id)

    def edit_behind(self, **fields: object) -> None:
        """Change the page as somebody else would."""
        with self.database.transaction() as session:
            course.edit_page(
                session,
                self.team.workspace.id,
                self.course_id,
                self.page.id,
                if_match="*",
                fields=fields,
                actor=self.team.actor,
            )


@pytest.fixture
def site(live_server: WebServer, database: Database) -> Site:
    return Site(live_server, database)


@pytest.fixture
def open_page(browser: Any, site: Site) -> Iterator[Any]:
    """Opens a page of a signed-in browser: ``open_page(width=320, color_scheme="dark")``."""
    contexts = []

    def start(width: int = 1280, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        context.add_cookies(site.cookies)
        contexts.append(context)
        return context.new_page()

    yield start
    for context in contexts:
        context.close()


def test_pages_are_accessible_in_both_colours(open_page: Any, site: Site) -> None:
    of_course = f"/courses/{site.course_id}"
    shown = ["/courses", of_course, f"{of_course}/pages/{site.page.id}", "/audit?who=Person&range=30d"]
    forms = ["/courses/new", f"{of_course}/pages/{site.page.id}/edit", "/audit?from=wrong"]
    event = f"/audit/{site.event_id()}"
    for scheme, addresses in (("light", [*shown, *forms, event]), ("dark", [*shown, event])):
        page = open_page(color_scheme=scheme)
        for address in addresses:
            page.goto(site.at + address)
            assert axe(page) == [], (scheme, address)


def test_no_page_scrolls_sideways_on_a_phone_or_breaks_the_policy(open_page: Any, site: Site) -> None:
    page = open_page(width=320)
    breaches: list[str] = []
    page.on("console", lambda message: breaches.append(message.text) if "Content Security" in message.text else None)
    for address in site.addresses():
        page.goto(site.at + address)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), address
    assert breaches == []


def test_headings_have_one_first_level_and_no_gap(open_page: Any, site: Site) -> None:
    page = open_page()
    for address in site.addresses():
        page.goto(site.at + address)
        levels = page.evaluate("[...document.querySelectorAll('main :is(h1,h2,h3,h4,h5,h6)')].map(h => +h.tagName[1])")
        assert levels.count(1) == 1, address
        assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False)), address


def test_a_course_is_made_read_edited_and_deleted_without_scripts(open_page: Any, site: Site, tmp_path: Path) -> None:
    page = open_page(java_script_enabled=False)
    page.goto(f"{site.at}/courses")
    page.get_by_role("link", name="Add a course").click()
    page.get_by_label("Title").fill("Chemistry")
    page.get_by_role("button", name="Create course").click()
    page.get_by_role("link", name="Add a page").click()
    page.get_by_label("Title").fill("Atoms")
    page.get_by_label("Text").fill("**Small** things")
    page.get_by_label("Tags").fill("physics\nchemistry")
    page.get_by_role("button", name="Add page").click()
    assert page.locator("article strong").inner_text() == "Small"
    page.get_by_role("link", name="Edit", exact=True).click()
    page.get_by_label("Tags").fill("chemistry")
    page.get_by_role("button", name="Save").click()
    assert page.locator("main .tags li").all_inner_texts() == ["chemistry"]
    page.get_by_role("link", name="Delete").click()
    page.get_by_role("button", name="Delete page").click()
    assert "This course has no pages" in page.locator("main").inner_text()
    page.get_by_role("link", name="Delete").click()
    page.get_by_role("button", name="Delete course").click()
    assert "“Chemistry” was deleted." in page.locator("#messages").inner_text()


def test_a_conflict_is_resolved_without_losing_a_word(open_page: Any, site: Site) -> None:
    page = open_page()
    page.goto(f"{site.at}/courses/{site.course_id}/pages/{site.page.id}/edit")
    site.edit_behind(body="theirs\n")
    page.get_by_label("Text").fill("mine\n")
    page.get_by_role("button", name="Save").click()
    assert page.locator("#theirs-body").input_value() == "theirs\n"
    assert page.locator("#field-body").input_value() == "mine\n"
    assert axe(page) == []
    page.locator("#field-body").fill("theirs\nand mine\n")
    page.get_by_role("button", name="Save my version").click()
    assert page.locator("article").inner_text().split() == ["theirs", "and", "mine"]


def test_a_mistake_is_focused_and_led_to(open_page: Any, site: Site) -> None:
    page = open_page()
    page.goto(f"{site.at}/courses/new")
    page.get_by_role("button", name="Create course").click()
    assert page.evaluate("document.activeElement.id") == "error-summary"
    page.get_by_role("link", name="Enter a title.").click()
    assert page.evaluate("location.hash") == "#field-title"
    assert page.title().startswith("Error: ")
