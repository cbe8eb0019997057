"""The live page of a job in a real browser: whatever happens to stream, server or session, it never lies."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from hub.db import Database
from tests import factories, processes
from tests.browser import axe
from tests.factories import Team
from tests.factories_jobs import STORED, change_job, finish_job, make_job
from tests.processes import WebServer

Enter = Callable[..., Any]


def requests_of(page: Any) -> list[str]:
    """The requests that the page makes from now on, without static files."""
    seen: list[str] = []
    page.on("request", lambda request: "/static/" in request.url or seen.append(request.url))
    return seen


def panel(page: Any) -> Any:
    return page.locator("[data-live]")


def in_mode(page: Any, mode: str) -> None:
    expect(panel(page)).to_have_attribute("data-mode", mode)


def open_job(page: Any, job_id: int) -> Any:
    page.goto(f"{page.base}/jobs/{job_id}")
    return page


@pytest.fixture
def running(database: Database, team: Team) -> int:
    return make_job(database, team, "running")


def test_progress_and_end_appear_by_themselves_and_then_all_is_quiet(
    enter: Enter, database: Database, running: int
) -> None:
    page = open_job(enter(), running)
    in_mode(page, "live")
    expect(page.get_by_text("102 of 240 pages (42%)")).to_be_visible()
    change_job(database, running, "changed = changed + 18")
    expect(page.get_by_text("120 of 240 pages (50%)")).to_be_visible()
    change_job(database, running, "cancel_requested_at = statement_timestamp()")
    expect(panel(page).get_by_text("Stopping", exact=True)).to_be_visible()
    expect(page.locator("#cancel")).to_have_count(0)
    finish_job(database, running)
    expect(panel(page).get_by_text("Finished with problems")).to_be_visible()
    expect(page.get_by_role("button", name="Run again")).to_be_visible()
    in_mode(page, "ended")
    seen = requests_of(page)
    page.wait_for_timeout(6_000)
    assert seen == []


def test_a_waiting_job_is_seen_to_start_and_end(enter: Enter, database: Database, team: Team) -> None:
    waiting = make_job(database, team, "waiting")
    page = open_job(enter(), waiting)
    expect(panel(page).get_by_text("Waiting for a free worker.")).to_be_visible()
    change_job(
        database,
        waiting,
        "state = 'running', claim = 1, attempt = 1, started_at = statement_timestamp(),"
        " again_at = statement_timestamp() + interval '1 minute',"
        " deadline_at = statement_timestamp() + interval '5 minutes'",
    )
    expect(panel(page).get_by_text("Running", exact=True)).to_be_visible()
    expect(page.get_by_text("job was ahead of it")).to_be_hidden()
    finish_job(database, waiting)
    expect(panel(page).get_by_text("Finished", exact=True)).to_be_visible()


def test_without_a_stream_it_polls_and_says_so(enter: Enter, database: Database, running: int) -> None:
    page = enter()
    page.route("**/events", lambda route: route.abort())
    open_job(page, running)
    expect(panel(page)).to_contain_text(re.compile(r"Updating every \d+ seconds"))
    finish_job(database, running)
    expect(panel(page).get_by_text("Finished with problems")).to_be_visible()


def test_with_everything_blocked_it_says_lost_and_comes_back(enter: Enter, database: Database, running: int) -> None:
    page = open_job(enter(), running)
    in_mode(page, "live")
    page.route("**/events", lambda route: route.abort())
    page.route("**/live?*", lambda route: route.abort())
    page.get_by_role("button", name="Pause updates").click()
    page.get_by_role("button", name="Resume updates").click()
    expect(panel(page)).to_contain_text("Lost connection to Hub. The job is not affected. Showing")
    finish_job(database, running)
    page.unroute("**/live?*")
    page.get_by_role("button", name="Try now").click()
    expect(panel(page).get_by_text("Finished with problems")).to_be_visible()


def test_killing_the_server_under_it_does_not_keep_it_from_the_true_end(
    enter: Enter,
    database: Database,
    running: int,
    environ: dict[str, str],
    web_server: Callable[..., WebServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = web_server()
    page = open_job(enter(server=server), running)
    in_mode(page, "live")
    # Master and workers at once, as when a machine dies.
    os.killpg(server.pid, signal.SIGKILL)
    expect(panel(page)).not_to_have_attribute("data-mode", "live")
    finish_job(database, running)
    monkeypatch.setattr(processes, "free_port", lambda: server.port)
    web_server()
    expect(panel(page).get_by_text("Finished with problems")).to_be_visible(timeout=40_000)
    in_mode(page, "ended")


def test_a_lost_session_is_told_and_nothing_more_is_asked(enter: Enter, database: Database, running: int) -> None:
    page = open_job(enter(), running)
    in_mode(page, "live")
    factories.run(database, "delete from hub.session")
    expect(page.locator("#hub-alert")).to_contain_text("You have been signed out. Your job keeps running.")
    expect(page.get_by_role("link", name="Sign in")).to_be_visible()
    seen = requests_of(page)
    page.wait_for_timeout(3_000)
    assert seen == []


def test_a_lost_membership_is_told(enter: Enter, database: Database, running: int) -> None:
    page = open_job(enter(), running)
    in_mode(page, "live")
    factories.run(database, "update hub.membership set enabled = false")
    expect(panel(page)).to_contain_text("This job can no longer be shown to you.")


def test_paused_means_no_request_at_all_and_is_remembered(enter: Enter, database: Database, running: int) -> None:
    page = open_job(enter(), running)
    in_mode(page, "live")
    page.get_by_role("button", name="Pause updates").click()
    expect(panel(page)).to_contain_text("Updates are paused.")
    page.reload()
    in_mode(page, "paused")
    seen = requests_of(page)
    change_job(database, running, "changed = changed + 1")
    page.wait_for_timeout(3_000)
    assert seen == []
    page.get_by_role("button", name="Resume updates").click()
    expect(page.get_by_text("103 of 240 pages (42%)")).to_be_visible()
    in_mode(page, "live")


def test_offline_is_told_and_ends_by_itself(enter: Enter, database: Database, running: int) -> None:
    page = open_job(enter(), running)
    in_mode(page, "live")
    page.context.set_offline(True)
    expect(panel(page)).to_contain_text("You are offline. The job is not affected.")
    finish_job(database, running)
    page.context.set_offline(False)
    expect(panel(page).get_by_text("Finished with problems")).to_be_visible()


def test_updates_move_no_focus_close_nothing_and_replace_no_control(
    enter: Enter, database: Database, running: int
) -> None:
    page = open_job(enter(), running)
    in_mode(page, "live")
    page.get_by_text("Technical details").click()
    page.locator("#cancel").focus()
    page.evaluate("() => { window.held = document.activeElement; }")
    for done in range(1, 6):
        change_job(database, running, "changed = changed + 1")
        expect(page.get_by_text(f"{102 + done} of 240 pages")).to_be_visible()
    assert page.evaluate("() => document.activeElement === window.held && window.held.isConnected")
    assert page.locator("details.technical").get_attribute("open") is not None


def test_a_control_in_use_is_replaced_once_it_is_left_and_without_asking_again(
    enter: Enter, database: Database, running: int
) -> None:
    page = open_job(enter(), running)
    in_mode(page, "live")
    page.locator("#cancel").focus()
    seen = requests_of(page)
    finish_job(database, running)
    in_mode(page, "ended")
    page.wait_for_timeout(3_000)
    expect(page.locator("#cancel")).to_be_focused()
    assert [url for url in seen if url.endswith("/live") or url.endswith(f"/jobs/{running}")] == [
        f"{page.base}/jobs/{running}"
    ]
    page.locator("#cancel").blur()
    expect(page.get_by_role("button", name="Run again")).to_be_visible()


def test_an_older_picture_never_replaces_a_newer_one(enter: Enter, database: Database, running: int) -> None:
    page = enter()
    old = page.request.get(f"{page.base}/jobs/{running}/live").text()
    page.route("**/events", lambda route: route.abort())
    open_job(page, running)
    change_job(database, running, "changed = changed + 18")
    expect(page.get_by_text("120 of 240 pages (50%)")).to_be_visible()
    page.route("**/live?*", lambda route: route.fulfill(status=200, body=old, content_type="text/html"))
    with page.expect_response("**/live?*"):
        pass
    expect(page.get_by_text("120 of 240 pages (50%)")).to_be_visible()


def test_tabs_share_three_streams_and_all_load(enter: Enter, database: Database, running: int) -> None:
    page = enter()
    tabs = [page] + [page.context.new_page() for _ in range(8)]
    for tab in tabs:
        tab.goto(f"{page.base}/jobs/{running}")
        expect(tab.get_by_text("102 of 240 pages (42%)")).to_be_visible()
    held = page.evaluate("async () => (await navigator.locks.query()).held.length")
    assert held <= 3


def test_the_page_speaks_of_states_and_not_on_loading(enter: Enter, database: Database, running: int) -> None:
    page = open_job(enter(), running)
    in_mode(page, "live")
    status = page.locator("#hub-status")
    expect(status).to_have_text("")
    assert page.locator("[aria-live], [role=status], [role=alert], [role=log]").count() == 2
    change_job(database, running, "cancel_requested_at = statement_timestamp()")
    expect(status).to_have_text("Stopping. It stops after the page it is working on.")
    finish_job(database, running)
    expect(status).to_have_text("Finished with problems. 3 of 240 pages could not be tagged.")


def test_a_wrong_clock_of_the_visitor_changes_nothing(enter: Enter, running: int) -> None:
    page = enter()
    page.add_init_script("const real = Date.now; Date.now = () => real() - 600000;")
    open_job(page, running)
    expect(page.locator("[data-since]")).to_have_text(re.compile(r"^1 min \d+ s$"))


def test_a_silent_worker_is_told(enter: Enter, database: Database, team: Team) -> None:
    quiet = make_job(database, team, "running", again_at=12)
    page = open_job(enter(), quiet)
    page.get_by_role("button", name="Pause updates").click()
    page.get_by_role("button", name="Resume updates").click()
    expect(panel(page)).to_contain_text(re.compile(r"No sign of life from the worker for \d+ seconds"))


def test_cancel_needs_only_the_keyboard(enter: Enter, database: Database, team: Team) -> None:
    waiting = make_job(database, team, "waiting")
    page = open_job(enter(), waiting)
    page.locator("#cancel").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.get_by_role("button", name="Keep running")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.locator("#cancel")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Keep running")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(panel(page).get_by_text("Cancelled", exact=True)).to_be_visible()
    expect(page.locator("#messages")).to_contain_text("Cancelled. Nothing was changed.")


def test_a_message_of_stopping_gives_way_to_the_end(enter: Enter, database: Database, running: int) -> None:
    page = open_job(enter(), running)
    page.locator("#cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()
    expect(page.locator("#messages")).to_contain_text("Stopping.")
    finish_job(database, running)
    expect(page.locator("#messages")).not_to_contain_text("Stopping")
    expect(page.locator("#messages")).to_contain_text("Finished with problems")


def test_a_double_click_starts_one_job(enter: Enter, database: Database, team: Team) -> None:
    course = factories.make_course(database, team)
    page = enter()
    page.goto(f"{page.base}/courses/{course}/tag")
    page.get_by_label("Tags to add").fill("biology")
    page.get_by_role("button", name="Start tagging").dblclick()
    expect(panel(page)).to_be_visible()
    assert factories.row(database, "select count(*) as n from queue.job").n == 1


def test_without_scripts_everything_works_by_reloading(enter: Enter, database: Database, team: Team) -> None:
    course = factories.make_course(database, team)
    page = enter(java_script_enabled=False)
    page.goto(f"{page.base}/courses/{course}/tag")
    page.get_by_label("Tags to add").fill("biology")
    page.get_by_role("button", name="Start tagging").click()
    expect(page.get_by_text("Tagging started. You can leave this page; it carries on.")).to_be_visible()
    expect(page.get_by_text("This page does not update by itself.")).to_be_visible()
    page.get_by_role("link", name="Refresh every 15 seconds").click()
    expect(page.get_by_text("This page refreshes every 15 seconds.")).to_be_visible()
    page.get_by_role("link", name="Cancel job…").click()
    expect(page.get_by_role("heading", name="Cancel this job?")).to_be_visible()
    page.get_by_role("button", name="Cancel job").click()
    expect(panel(page).get_by_text("Cancelled", exact=True)).to_be_visible()
    page.get_by_role("button", name="Run again").click()
    expect(panel(page).get_by_text("Waiting", exact=True)).to_be_visible()
    assert factories.row(database, "select count(*) as n from queue.job").n == 2


def test_the_list_updates_its_rows_in_place_and_offers_new_ones(enter: Enter, database: Database, team: Team) -> None:
    ids = [make_job(database, team, "running") for _ in range(3)]
    page = enter()
    page.goto(f"{page.base}/jobs")
    order = "() => [...document.querySelectorAll('tr[data-row]')].map((row) => row.dataset.row)"
    before = page.evaluate(order)
    finish_job(database, ids[0])
    make_job(database, team, "waiting")
    row = page.locator(f'tr[data-row="{ids[0]}"]')
    expect(row).to_contain_text("Finished with problems")
    expect(row).to_contain_text("240 of 240 pages")
    expect(page.locator("[data-new-jobs]")).to_be_visible()
    assert page.evaluate(order) == before
    page.get_by_role("link", name="Show them").click()
    expect(page.locator("tr[data-row]")).to_have_count(4)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_any_state(enter: Enter, database: Database, team: Team, scheme: str) -> None:
    made = {label: make_job(database, team, label) for label in STORED}
    course = factories.make_course(database, team)
    page = enter(color_scheme=scheme)
    paths = [f"/jobs/{job_id}" for job_id in made.values()]
    paths += ["/jobs", "/jobs?state=failed&q=nothing", f"/jobs/{made['running']}/cancel", f"/courses/{course}/tag"]
    for path in paths:
        page.goto(page.base + path)
        assert axe(page) == [], path


@pytest.mark.parametrize("width", [320, 360])
def test_narrow_pages_do_not_scroll_sideways(enter: Enter, database: Database, team: Team, width: int) -> None:
    job_id = make_job(database, team, "finished_with_problems", subject_name="An-unbroken-" + "name" * 60)
    page = enter(width=width)
    for path in (f"/jobs/{job_id}", "/jobs", f"/jobs/{job_id}/cancel"):
        page.goto(page.base + path)
        assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), path
