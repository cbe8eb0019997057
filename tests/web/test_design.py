"""What every page owes everybody: contrast, structure, room on small screens, no script needed, no rule broken."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests import factories
from tests.browser import AXE
from tests.factories_jobs import PASSWORD, STORED, make_job
from tests.processes import ROOT
from tests.web.visitor import Visitor, rows

CSS = ROOT / "static" / "app.css"
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
# Not pages: files, parts of pages, streams, and answers for machines.
NO_PAGES = {"static", "health.alive", "health.ready", "jobs.events", "jobs.failures", "jobs.live", "jobs.rows"}
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


# The palette


def tokens() -> dict[str, tuple[str, str]]:
    """Each colour of the palette as (light, dark)."""
    found = re.findall(r"--([a-z0-9-]+): (?:light-dark\((#\w{6}), (#\w{6})\)|(#\w{6}));", CSS.read_text())
    return {name: (light or both, dark or both) for name, light, dark, both in found}


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio of two colours."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


STATES = (
    *("waiting", "scheduled", "running", "stopping", "retrying", "finished", "problems"),
    *("failed", "attention", "cancelled", "quiet"),
)
PAIRS = [
    *[(text, ground, 4.5) for text in ("text", "muted", "link") for ground in ("bg", "surface", "hover", "selected")],
    *[("control", ground, 3.0) for ground in ("bg", "surface")],
    *[("focus", ground, 3.0) for ground in ("bg", "surface", "hover", "selected")],
    ("primary-text", "primary", 4.5),
    ("danger-text", "danger", 4.5),
    ("bar", "track", 3.0),
    ("added", "added-fill", 4.5),
    ("removed", "removed-fill", 4.5),
    *[(state, ground, 4.5) for state in STATES for ground in (f"{state}-fill", "bg", "surface", "hover")],
]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_pair_of_colours_can_be_read(theme: int) -> None:
    palette = tokens()
    for front, ground, least in PAIRS:
        ratio = contrast(palette[front][theme], palette[ground][theme])
        assert ratio >= least, (front, ground, round(ratio, 2))


def test_the_sheets_and_scripts_stay_small() -> None:
    assert len(gzip.compress(CSS.read_bytes())) <= 12 * 1024
    own = b"".join(path.read_bytes() for path in sorted((ROOT / "static").glob("*.js")))
    assert len(gzip.compress(own)) <= 25 * 1024


def test_every_state_has_a_shape_of_its_own() -> None:
    sprite = (ROOT / "static" / "icons.svg").read_text()
    shapes = dict(re.findall(r'<symbol id="(state-[a-z-]+)"[^>]*>(.*?)</symbol>', sprite))
    names = [f"state-{label.replace('_', '-')}" for label in STORED]
    assert set(names) <= set(shapes)
    assert len({shapes[name] for name in names}) == len(names)


def test_every_icon_that_is_used_is_in_the_sprite() -> None:
    sprite = set(re.findall(r'id="([a-z-]+)"', (ROOT / "static" / "icons.svg").read_text()))
    used = {icon for path in TEMPLATES for icon in re.findall(r"#([a-z-]+)\"></use>", path.read_text())}
    assert used <= sprite


def test_no_template_breaks_the_policy_or_escapes_escaping() -> None:
    for path in TEMPLATES:
        text = path.read_text()
        assert not re.search(r"\sstyle=|\son[a-z]+=|hx-on|js:|\|\s*safe|<style|<script(?![^>]*src=)", text), path
        assert not re.search(r'hx-trigger="[^"]*\[', text), path


# The pages


class Site:
    """A running web server with a workspace that has something of everything."""

    def __init__(self, app: Any, server: Any, database: Any) -> None:
        team = factories.make_team(database, name="Biology")
        course = factories.make_course(database, team)
        jobs = [make_job(database, team, label) for label in STORED]
        factories.add_member(database, team, "viewer")
        # Signing in once makes the admin's password and an audit event.
        Visitor(app, database, team.admin).json("POST", f"/w/{team.workspace.slug}/courses", {"title": "Empty"})
        self.url, self.admin = server.url, team.admin
        self.parts = {
            "slug": team.workspace.slug,
            "course_id": course,
            "page_id": rows(database, "select id from hub.page limit 1")[0].id,
            "person_id": team.admin.id,
            "job_id": jobs[2],
            "event_id": rows(database, "select max(id) as id from audit.event where workspace_id is not null")[0].id,
        }
        # Staff pages have tests of their own kind of visitor.
        bound = app.url_map.bind("localhost")
        self.paths = sorted(
            bound.build(rule.endpoint, {name: self.parts[name] for name in rule.arguments})
            for rule in app.url_map.iter_rules()
            if "GET" in (rule.methods or ())
            and rule.endpoint not in NO_PAGES
            and not rule.rule.startswith(("/support", "/audit", "/ops"))
            and rule.endpoint not in ("signin.home", "signin.show")
        )
        base = f"/w/{self.parts['slug']}"
        self.paths += [f"{base}/jobs/{job}" for job in jobs] + [f"{base}/nowhere", f"{base}/jobs?state=failed&q=x"]

    def sign_in(self, page: Any) -> None:
        """Sign the admin in by the form."""
        page.goto(f"{self.url}/sign-in")
        page.fill("[name=email]", self.admin.email)
        page.fill("[name=password]", PASSWORD)
        page.click("main button.primary")
        page.wait_for_url(f"{self.url}/w/**")


@pytest.fixture
def site(app: Any, live_server: Any, database: Any) -> Iterator[Site]:
    yield Site(app, live_server, database)


@pytest.mark.parametrize(
    ("theme", "rules"),
    [
        ("light", {"type": "tag", "values": TAGS}),
        # Structure is the same in the dark.
        ("dark", {"type": "rule", "values": ["color-contrast"]}),
    ],
)
def test_axe_finds_nothing_on_any_page(browser: Any, site: Site, theme: str, rules: Any) -> None:
    # axe is a script of the test, which the pages' policy would refuse.
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=theme, bypass_csp=True)
    page = context.new_page()
    site.sign_in(page)
    findings = []
    for path in site.paths:
        page.goto(site.url + path)
        page.add_script_tag(path=AXE)
        found = page.evaluate("rules => axe.run(document, {runOnly: rules, resultTypes: ['violations']})", rules)
        findings += [(path, each["id"], node["html"][:150]) for each in found["violations"] for node in each["nodes"]]
    context.close()
    assert findings == []


def test_every_page_fits_a_small_screen_and_keeps_to_the_policy_and_its_origin(browser: Any, site: Site) -> None:
    context = browser.new_context(viewport={"width": 320, "height": 640})
    page = context.new_page()
    violations: list[str] = []
    strangers: list[str] = []
    page.on("console", lambda message: violations.append(message.text) if "Content Security" in message.text else None)
    page.on("request", lambda request: strangers.append(request.url) if not request.url.startswith(site.url) else None)
    page.on("pageerror", lambda error: violations.append(str(error)))
    site.sign_in(page)
    for path in site.paths:
        page.goto(site.url + path)
        overflow = page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert overflow <= 0, path
        assert page.locator("h1").count() == 1, path
        assert page.locator("main#main").count() == 1, path
        assert page.title().endswith("– Hub"), path
    context.close()
    assert (violations, strangers) == ([], [])


def test_the_keyboard_comes_first_to_the_skip_link(page: Any, site: Site) -> None:
    site.sign_in(page)
    page.goto(site.url + site.paths[0])
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.textContent") == "Skip to main content"
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "main"


def test_the_menu_opens_without_a_script_on_a_small_screen(browser: Any, site: Site) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 640}, java_script_enabled=False)
    page = context.new_page()
    site.sign_in(page)
    page.goto(f"{site.url}/w/{site.parts['slug']}/")
    jobs = page.locator("nav.main-nav a", has_text="Jobs")
    assert not jobs.is_visible()
    page.locator("nav.main-nav summary").click()
    jobs.click()
    page.wait_for_url("**/jobs")
    context.close()


def test_a_form_that_was_refused_puts_the_reader_on_the_summary(page: Any, live_server: Any, database: Any) -> None:
    page.goto(f"{live_server.url}/sign-in")
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


def test_what_the_system_asks_for_is_kept(browser: Any, site: Site) -> None:
    context = browser.new_context(reduced_motion="reduce", forced_colors="active")
    page = context.new_page()
    site.sign_in(page)
    page.goto(f"{site.url}/w/{site.parts['slug']}/jobs")
    widths = page.evaluate(
        "() => [...document.querySelectorAll('.badge')].map((badge) => getComputedStyle(badge).borderTopWidth)"
    )
    page.goto(f"{site.url}/w/{site.parts['slug']}/jobs/{site.parts['job_id']}")
    moving = page.evaluate("() => document.getAnimations().length")
    context.close()
    assert widths and set(widths) == {"1px"}
    assert moving == 0
