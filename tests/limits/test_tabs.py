"""Many tabs of one browser, which has six connections to a host over HTTP/1.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.factories import make_course, start_tagging
from tests.limits.harness import Site
from tests.limits.streams import Streams

TABS = 8
STREAMS_OF_A_BROWSER = 3
LIVE = '[data-live][data-mode="live"]'
POLLING = '[data-live][data-mode="polling"]'


def test_eight_tabs_load_while_streams_are_open_and_all_show_the_end(site: Callable[..., Site], browser: Any) -> None:
    hub = site(replicas=1, workers=0)
    team = hub.team()
    client = hub.client(team.admin)
    job_id = start_tagging(hub.database, hub.settings, team, make_course(hub.database, team, 3)).job_id
    with browser.new_context() as context:
        context.add_cookies(client.cookies())
        tabs = [context.new_page() for _ in range(TABS)]
        for tab in tabs:
            tab.goto(f"{hub.web[0].url}/w/{team.workspace.slug}/jobs/{job_id}", wait_until="load")
            tab.wait_for_selector(f"{LIVE}, {POLLING}")
        live = [tab for tab in tabs if tab.query_selector(LIVE)]
        assert 1 <= len(live) <= STREAMS_OF_A_BROWSER
        # With all streams open, ordinary pages still load.
        tabs[0].goto(f"{hub.web[0].url}/w/{team.workspace.slug}/jobs", wait_until="load")
        client.cancel(team, job_id)
        for tab in tabs[1:]:
            tab.wait_for_selector('[data-live][data-terminal="true"]')
            assert "Cancelled" in tab.inner_text("[data-live]")


def test_a_page_polls_where_the_streams_are_taken(site: Callable[..., Site], streams: Streams, browser: Any) -> None:
    hub = site(replicas=1, workers=0, HUB_STREAMS_PER_PROCESS="1")
    team = hub.team()
    client = hub.client(team.admin)
    job_id = start_tagging(hub.database, hub.settings, team, make_course(hub.database, team, 3)).job_id
    url = f"{hub.web[0].url}/w/{team.workspace.slug}/jobs/{job_id}"
    (taken,) = streams.open(f"{url}/events", client.headers)
    streams.wait(lambda: bool(taken.events))
    with browser.new_context() as context:
        context.add_cookies(client.cookies())
        tab = context.new_page()
        tab.goto(url, wait_until="load")
        tab.wait_for_selector(POLLING)
        client.cancel(team, job_id)
        tab.wait_for_selector('[data-live][data-terminal="true"]')
