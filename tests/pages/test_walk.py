"""A walk through the app by its links: every kind of page loads, keeps the rules, and pleases axe in both themes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest

from hub.config import Settings
from hub.db import Database
from hub.jobs.create import create
from hub.models import audit
from hub.queue.testing import drain
from tests import factories
from tests.browser import axe
from tests.factories import Team
from tests.factories_jobs import make_job

# Links that differ only in these lead to the same kind of page.
VARIABLE = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|(?<=/)\d+(?=/|$)")
# A download is no page.
FILES = (".csv", ".zip", "/download")


def kind_of(url: str) -> str:
    """The page's address with its variable parts blotted out, and the names of its parameters."""
    parts = urlsplit(url)
    names = sorted({pair.partition("=")[0] for pair in parts.query.split("&") if pair})
    return VARIABLE.sub("*", parts.path) + "?" + "&".join(names)


def walk(page: Any, start: str, visit: Callable[[str], None]) -> list[str]:
    """Go to one page of each kind that links lead to from `start`, and `visit` each; returns the kinds."""
    origin = urlsplit(start)[:2]
    waiting, seen = [start], {kind_of(start)}
    while waiting:
        url = waiting.pop(0)
        answer = page.goto(url)
        assert answer.status == 200, url
        visit(url)
        links = page.eval_on_selector_all("a[href]", "links => links.map((link) => link.getAttribute('href'))")
        for link in (urljoin(url, href).partition("#")[0] for href in links):
            if urlsplit(link)[:2] == origin and not urlsplit(link).path.endswith(FILES) and kind_of(link) not in seen:
                seen.add(kind_of(link))
                waiting.append(link)
    return sorted(seen)


def check_rules(page: Any, url: str) -> None:
    """What holds for every page, whatever it is about."""
    assert page.locator("h1").count() == 1, url
    assert page.locator("main").count() == 1 and page.locator("html[lang]").count() == 1, url
    assert page.title().endswith("Hub"), url
    html = page.content()
    assert not re.search(r"<[^>]+\s(style|on\w+|hx-on[^=]*)=", html), url
    assert not re.search(r"<script(?![^>]+src=)[^>]*>|<style", html), url
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), url
    levels = [int(level) for level in re.findall(r"<h([1-6])\b", html)]
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False)), (url, levels)


@pytest.fixture
def filled(database: Database, team: Team, settings: Settings) -> Team:
    """A workspace with something on every page."""
    with database.transaction() as session:
        order = {"kind": "workspace.backup", "args": {}, "key": "walk"}
        create(session, settings, workspace=team.workspace, actor=audit.Actor(team.admin.id, "Anna"), **order)
    drain(database, settings, "workspace.jobs")
    course = factories.make_course(database, team, pages=3)
    factories.add_member(database, team, "viewer")
    for label in ("running", "finished_with_problems", "waiting"):
        make_job(database, team, label, subject=f"course:{course}")
    return team


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_every_page_that_links_lead_to_is_sound(
    enter: Callable[..., Any], filled: Team, scheme: str, width: int
) -> None:
    page = enter(width=width, color_scheme=scheme)

    def visit(url: str) -> None:
        check_rules(page, url)
        assert axe(page) == [], url

    kinds = walk(page, f"{page.base}/", visit)
    for part in (
        "/jobs?",
        "/jobs/*?",
        "/courses?",
        "/courses/*?",
        "/courses/*/tag?",
        "/audit?",
        "/members?",
        "/backups?",
        "/backups/*/restore?",
    ):
        assert any(kind.endswith(part) for kind in kinds), part


def test_every_page_that_a_viewer_is_led_to_opens(enter: Callable[..., Any], database: Database, filled: Team) -> None:
    page = enter(person=factories.add_member(database, filled, "viewer"))
    walk(page, f"{page.base}/", lambda url: check_rules(page, url))
