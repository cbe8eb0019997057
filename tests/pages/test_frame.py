"""The frame of all pages in a browser: sign-in, menu, focus, what the system asks for, and pages no link leads to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hub.db import Database
from tests import factories
from tests.browser import axe
from tests.factories import Team
from tests.factories_jobs import STORED, make_job
from tests.processes import WebServer


def test_axe_finds_nothing_where_no_link_leads(enter: Callable[..., Any], database: Database, team: Team) -> None:
    page = enter()
    base = page.base
    jobs = [f"{base}/jobs/{make_job(database, team, label)}" for label in STORED]
    course = factories.make_course(database, team)
    empty = factories.make_team(database)
    factories.run(
        database,
        "insert into hub.membership (workspace_id, person_id, role) values (:workspace, :person, 'viewer')",
        workspace=empty.workspace.id,
        person=team.admin.id,
    )
    elsewhere = base.replace(team.workspace.slug, empty.workspace.slug)
    paths = [f"{base}/nowhere", f"{base}/jobs?state=failed&q=x", f"{base}/courses/{course}/delete", *jobs]
    for path in [*paths, f"{elsewhere}/", f"{elsewhere}/jobs", f"{elsewhere}/members"]:
        page.goto(path)
        assert axe(page) == [], path


def test_axe_finds_nothing_on_states_in_the_dark(enter: Callable[..., Any], database: Database, team: Team) -> None:
    for label in STORED:
        make_job(database, team, label)
    page = enter(color_scheme="dark")
    for path in ("jobs", "nowhere"):
        page.goto(f"{page.base}/{path}")
        assert axe(page) == [], path


def test_axe_finds_nothing_on_the_pages_of_support(enter: Callable[..., Any], database: Database, team: Team) -> None:
    page = enter(person=factories.make_person(database, staff="support"))
    origin = page.base.partition("/w/")[0]
    page.goto(f"{origin}/workspaces")
    assert axe(page) == []
    page.get_by_role("link", name="Open as support").first.click()
    assert axe(page) == []
    page.get_by_role("button", name="Open support view").click()
    page.locator("#error-summary").wait_for()
    page.fill("[name=reason]", "Ticket 4711")
    page.get_by_role("button", name="Open support view").click()
    page.wait_for_url(f"{page.base}/")
    assert page.locator(".support-banner").is_visible()
    assert axe(page) == []


def test_the_keyboard_comes_first_to_the_skip_link(enter: Callable[..., Any]) -> None:
    page = enter()
    page.goto(f"{page.base}/")
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.textContent") == "Skip to main content"
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "main"


def test_the_menu_opens_without_a_script_on_a_small_screen(enter: Callable[..., Any]) -> None:
    page = enter(width=360, java_script_enabled=False)
    page.goto(f"{page.base}/")
    jobs = page.locator("nav.main-nav a", has_text="Jobs")
    assert not jobs.is_visible()
    page.locator("nav.main-nav summary").click()
    jobs.click()
    page.wait_for_url("**/jobs")


def test_a_form_that_was_refused_puts_the_reader_on_the_summary(
    page: Any, pages_server: WebServer, database: Database
) -> None:
    page.goto(f"{pages_server.url}/sign-in")
    assert axe(page) == []
    page.fill("[name=email]", "nobody@hub.example")
    page.click("main button.primary")
    summary = page.locator("#error-summary")
    summary.wait_for()
    assert page.evaluate("() => document.activeElement.id") == "error-summary"
    assert page.title().startswith("Error: ")
    field = page.locator("#field-email")
    assert (field.get_attribute("aria-invalid"), field.get_attribute("aria-describedby")) == ("true", "error-email")
    summary.locator("a").first.click()
    assert page.evaluate("() => document.activeElement.id") == "field-email"


def test_the_password_is_shown_on_request(page: Any, pages_server: WebServer, database: Database) -> None:
    page.goto(f"{pages_server.url}/sign-in")
    field, button = page.locator("#field-password"), page.get_by_role("button", name="Show password")
    button.click()
    assert (field.get_attribute("type"), button.get_attribute("aria-pressed")) == ("text", "true")
    button.click()
    assert (field.get_attribute("type"), button.get_attribute("aria-pressed")) == ("password", "false")


def test_what_the_system_asks_for_is_kept(enter: Callable[..., Any], database: Database, team: Team) -> None:
    job_id = make_job(database, team, "running")
    page = enter(reduced_motion="reduce", forced_colors="active")
    page.goto(f"{page.base}/jobs")
    borders = "() => [...document.querySelectorAll('.badge')].map((badge) => getComputedStyle(badge).borderTopWidth)"
    assert set(page.evaluate(borders)) == {"1px"}
    page.goto(f"{page.base}/jobs/{job_id}")
    assert page.evaluate("() => document.getAnimations().length") == 0


def test_the_chosen_colours_hold_against_the_system(enter: Callable[..., Any]) -> None:
    page = enter(color_scheme="light")
    page.goto(f"{page.base.partition('/w/')[0]}/account")
    page.select_option("[name=theme]", "dark")
    page.locator("form", has=page.locator("[name=theme]")).get_by_role("button").click()
    page.locator(".message-good").wait_for()
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(17, 22, 28)"
    assert axe(page) == []


def test_filters_apply_themselves_and_keep_the_focus(enter: Callable[..., Any], database: Database, team: Team) -> None:
    make_job(database, team, "finished")
    page = enter()
    page.goto(f"{page.base}/jobs?range=30d")
    page.select_option("#filter-range", "7d")
    page.wait_for_url("**range=7d**")
    page.wait_for_load_state()
    assert page.evaluate("() => document.activeElement.id") == "filter-range"


def test_a_session_that_ended_leads_back_to_the_same_page(
    enter: Callable[..., Any], database: Database, team: Team
) -> None:
    page = enter()
    page.goto(f"{page.base}/jobs?range=7d")
    factories.run(database, "delete from hub.session")
    page.reload()
    page.fill("[name=email]", team.admin.email)
    page.fill("[name=password]", "a password for tests")
    page.click("main button.primary")
    page.wait_for_url("**/jobs?range=7d")
