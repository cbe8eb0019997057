"""What every answer carries."""

from __future__ import annotations

import io
import json
import logging
import re
from typing import Any

import pytest

from hub.log import JsonFormatter
from tests import factories
from tests.web.visitor import HTML, JSON, Visitor

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
ADDRESSES = ["/sign-in", "/healthz", "/readyz", "/nowhere", "/workspaces", "/static/app.css", "/account/theme"]


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("accept", [HTML, JSON])
def test_the_policy_is_on_every_answer(client: Any, database: Any, address: str, accept: dict[str, str]) -> None:
    answer = client.get(address, headers=accept)
    assert answer.headers["Content-Security-Policy"] == CSP
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "same-origin"
    assert "geolocation=()" in answer.headers["Permissions-Policy"]
    assert re.fullmatch("[0-9a-f]{16}", answer.headers["X-Request-ID"])


def test_private_pages_are_not_stored_and_vary(app: Any, database: Any) -> None:
    answer = Visitor(app, database, factories.make_person(database)).get("/account")
    assert answer.headers["Cache-Control"] == "no-store"
    assert {"Cookie", "HX-Request", "Accept"} <= set(answer.vary)


def test_static_files_may_be_kept_for_ever_at_addresses_that_change_with_them(client: Any, database: Any) -> None:
    page = client.get("/sign-in").text
    sheet = re.search(r'href="(/static/app\.css\?v=[0-9a-f]{12})"', page)
    assert sheet
    assert client.get(sheet[1]).headers["Cache-Control"] == "public, max-age=31536000, immutable"


def test_https_is_remembered_only_over_https(client: Any, database: Any) -> None:
    assert "Strict-Transport-Security" not in client.get("/sign-in").headers
    secure = client.get("/sign-in", base_url="https://localhost")
    assert secure.headers["Strict-Transport-Security"].startswith("max-age=31536000")


def test_no_page_carries_inline_style_or_script(app: Any, database: Any) -> None:
    team = factories.make_team(database)
    visitor = Visitor(app, database, team.admin)
    slug = team.workspace.slug
    pages = ["/sign-in", "/workspaces", "/account", f"/w/{slug}/", f"/w/{slug}/members", f"/w/{slug}/nowhere"]
    pages.append(f"/w/{slug}/members/{team.admin.id}")
    for address in pages:
        page = visitor.get(address).text
        assert not re.search(r"<[^>]*\s(style|on[a-z]+|hx-on[^=]*)=", page), address
        assert not re.search(r"<script(?![^>]*src=)", page), address
        assert "<style" not in page and "javascript:" not in page, address


def test_no_redirect_names_a_host(client: Any, database: Any) -> None:
    answer = client.get("/account", headers=HTML | {"Host": "evil.example", "X-Forwarded-Host": "evil.example"})
    assert answer.location.startswith("/sign-in")


@pytest.mark.parametrize(("asked", "led_to"), [("/w/demo?a=1", "/w/demo/?a=1"), ("/w//demo/jobs", "/w/demo/jobs")])
def test_a_corrected_address_stays_on_this_site(client: Any, database: Any, asked: str, led_to: str) -> None:
    answer = client.get(asked, headers=HTML | {"Host": "evil.example"})
    assert (answer.status_code, answer.location) == (308, led_to)


def test_each_request_leaves_one_line_without_its_query(client: Any, database: Any) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())
    access = logging.getLogger("hub.access")
    level = access.level
    access.addHandler(handler)
    access.setLevel(logging.INFO)
    try:
        answer = client.get("/healthz?secret=hunter2")
    finally:
        access.removeHandler(handler)
        access.setLevel(level)
    line = json.loads(written.getvalue())
    assert (line["method"], line["path"], line["status"]) == ("GET", "/healthz", 200)
    assert line["ms"] >= 0
    assert line["request_id"] == answer.headers["X-Request-ID"]
    assert "hunter2" not in written.getvalue()
