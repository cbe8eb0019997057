"""Backups on pages and as JSON: the list, the download with its ranges, checks, deletion, retention, and rights."""

from __future__ import annotations

import hashlib
import io
import zipfile
from typing import Any
from uuid import UUID

import pytest

from hub.config import Settings
from hub.db import Database
from hub.models.base import new_id
from hub.queue.testing import drain
from tests import factories
from tests.factories import Team, run
from tests.web.visitor import Visitor, events, rows


@pytest.fixture
def team(database: Database) -> Team:
    team = factories.make_team(database, slug="bio")
    factories.make_course(database, team, pages=3)
    return team


@pytest.fixture
def admin(app: Any, database: Database, team: Team) -> Visitor:
    return Visitor(app, database, team.admin)


@pytest.fixture
def made(admin: Visitor, database: Database, settings: Settings) -> str:
    """The id of a finished backup that the admin has asked for."""
    return back_up(admin, database, settings)


def back_up(admin: Visitor, database: Database, settings: Settings, key: str = "b1") -> str:
    order = {"kind": "workspace.backup", "args": {}, "idempotency_key": key}
    answer = admin.json("POST", "/w/bio/jobs", order)
    assert answer.status_code == 201, answer.text
    drain(database, settings, "workspace.jobs")
    job = admin.json("GET", answer.headers["Location"]).json
    assert job["state"] == "succeeded", job
    backup_id: str = job["result"]["backup_id"]
    return backup_id


def test_a_finished_backup_is_listed_and_shown_with_what_it_holds(admin: Visitor, made: str) -> None:
    (item,) = admin.json("GET", "/w/bio/backups").json["items"]
    assert (item["id"], item["state"], item["check"]) == (made, "available", "ok")
    assert item["counts"]["pages"] == 3
    assert admin.json("GET", f"/w/bio/backups/{made}").json["sha256"] == item["sha256"]
    assert "Good" in admin.get("/w/bio/backups").text
    assert item["sha256"] in admin.get(f"/w/bio/backups/{made}").text


def test_the_list_is_paged(admin: Visitor, database: Database, settings: Settings) -> None:
    made = {back_up(admin, database, settings, key=f"b{number}") for number in range(3)}
    first = admin.json("GET", "/w/bio/backups?limit=2").json
    rest = admin.json("GET", f"/w/bio/backups?limit=2&cursor={first['next']}").json
    assert {item["id"] for item in first["items"] + rest["items"]} == made
    assert rest["next"] is None
    assert admin.json("GET", "/w/bio/backups?cursor=bad").status_code == 400


def test_a_download_is_the_whole_file_and_is_told_once(admin: Visitor, database: Database, made: str) -> None:
    item = admin.json("GET", f"/w/bio/backups/{made}").json
    answer = admin.get(f"/w/bio/backups/{made}/download")
    assert answer.status_code == 200
    assert hashlib.sha256(answer.data).hexdigest() == item["sha256"]
    assert int(answer.headers["Content-Length"]) == item["bytes"] == len(answer.data)
    assert answer.headers["Content-Disposition"].startswith('attachment; filename="hub-bio-')
    assert zipfile.ZipFile(io.BytesIO(answer.data)).testzip() is None
    assert len(events(database, "backup.downloaded")) == 1


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [("bytes=0-9", 0, 10), ("bytes=10-", 10, None), ("bytes=-5", -5, None), ("bytes=4-99999999", 4, None)],
)
def test_a_part_of_the_file_is_sent_when_asked_for(
    admin: Visitor, made: str, asked: str, start: int, end: int | None
) -> None:
    whole = admin.get(f"/w/bio/backups/{made}/download").data
    answer = admin.get(f"/w/bio/backups/{made}/download", Range=asked)
    assert (answer.status_code, answer.data) == (206, whole[start:end])
    first = start % len(whole)
    last = first + len(answer.data) - 1
    assert answer.headers["Content-Range"] == f"bytes {first}-{last}/{len(whole)}"


def test_an_interrupted_download_goes_on_only_with_the_same_file(admin: Visitor, database: Database, made: str) -> None:
    path = f"/w/bio/backups/{made}/download"
    whole = admin.get(path)
    rest = admin.get(path, Range="bytes=7-", **{"If-Range": whole.headers["ETag"]})
    assert (rest.status_code, rest.data) == (206, whole.data[7:])
    other = admin.get(path, Range="bytes=7-", **{"If-Range": '"another"'})
    assert (other.status_code, other.data) == (200, whole.data)
    # The first, and the one that began anew; what went on is no new download.
    assert len(events(database, "backup.downloaded")) == 2


@pytest.mark.parametrize("asked", ["bytes=99999999-", "bytes=999999999999999999999-"])
def test_a_part_that_does_not_exist_is_refused_with_the_size(admin: Visitor, made: str, asked: str) -> None:
    size = admin.json("GET", f"/w/bio/backups/{made}").json["bytes"]
    answer = admin.get(f"/w/bio/backups/{made}/download", Range=asked)
    assert (answer.status_code, answer.headers["Content-Range"]) == (416, f"bytes */{size}")


@pytest.mark.parametrize("asked", ["bytes=", "bytes=a-b", "pages=1-2", "bytes=5-1", "bytes=0-1,3-4", "=", "bytes"])
def test_what_is_no_range_gets_the_whole(admin: Visitor, made: str, asked: str) -> None:
    answer = admin.get(f"/w/bio/backups/{made}/download", Range=asked)
    assert answer.status_code == 200


def test_a_check_finds_a_file_that_was_changed(
    admin: Visitor, database: Database, settings: Settings, made: str
) -> None:
    assert admin.json("POST", f"/w/bio/backups/{made}/verify").json["check"] == "ok"
    (path,) = (settings.data_dir / "blobs").rglob("*.zip")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    answer = admin.form(f"/w/bio/backups/{made}/verify")
    assert answer.status_code == 303
    assert "The backup is damaged." in admin.get(f"/w/bio/backups/{made}").text
    assert [event.outcome for event in events(database, "backup.verified")] == ["done", "failed"]


def test_deleting_warns_of_the_only_good_one(admin: Visitor, database: Database, settings: Settings, made: str) -> None:
    other = back_up(admin, database, settings, key="b2")

    def warned(backup_id: str) -> bool:
        return "This is the only good backup" in admin.get(f"/w/bio/backups/{backup_id}/delete").text

    assert not warned(made) and not warned(other)
    run(database, "update hub.backup set check_result = 'damaged' where id = :id", id=other)
    assert warned(made) and not warned(other)


def test_deleting_asks_first_and_removes_the_file(
    admin: Visitor, database: Database, settings: Settings, made: str
) -> None:
    assert "Delete the backup" in admin.get(f"/w/bio/backups/{made}/delete").text
    assert admin.form(f"/w/bio/backups/{made}/delete").status_code == 303
    assert admin.json("GET", "/w/bio/backups").json["items"] == []
    assert list((settings.data_dir / "blobs").rglob("*.zip")) == []
    assert len(events(database, "backup.deleted")) == 1
    assert admin.json("GET", f"/w/bio/backups/{made}").json["state"] == "deleted"
    for method, path in (("GET", "download"), ("POST", "verify"), ("POST", "delete")):
        assert admin.json(method, f"/w/bio/backups/{made}/{path}").status_code == 404


def test_retention_is_changed_and_wrong_values_are_named(admin: Visitor, database: Database) -> None:
    assert admin.form("/w/bio/backups/retention", keep="5", days="30").status_code == 303
    assert admin.json("GET", "/w/bio/backups").json["retention"] == {"keep": 5, "days": 30}
    assert len(events(database, "backup.retention_changed")) == 1
    again = admin.form("/w/bio/backups/retention", keep="0", days="many")
    assert again.status_code == 422 and 'href="#field-keep"' in again.text and 'value="many"' in again.text
    answer = admin.json("POST", "/w/bio/backups/retention", {"keep": True, "days": 1.5})
    assert set(answer.json["error"]["fields"]) == {"keep", "days"}
    assert admin.json("GET", "/w/bio/backups").json["retention"] == {"keep": 5, "days": 30}


def test_a_backup_is_restored_into_a_new_workspace_from_its_own_form(
    admin: Visitor, database: Database, settings: Settings, made: str
) -> None:
    form = admin.get(f"/w/bio/backups/{made}/restore").text
    assert 'name="args.name"' in form
    key = form.split('name="idempotency_key" value="')[1].split('"')[0]
    fields = {"kind": "workspace.restore", "idempotency_key": key, "args.backup_id": made}
    refused = admin.form("/w/bio/jobs", **fields, **{"args.name": " "})
    assert refused.status_code == 422 and 'href="#field-name"' in refused.text
    started = admin.form("/w/bio/jobs", **fields, **{"args.name": "Biology again"})
    assert started.status_code == 303, started.text
    drain(database, settings, "workspace.jobs")
    page = admin.get(started.location).text
    (restored,) = rows(database, "select slug from hub.workspace where name = 'Biology again'")
    assert f'href="/w/{restored.slug}/"' in page
    assert admin.get(f"/w/{restored.slug}/").status_code == 200


def test_the_start_page_tells_what_a_backup_holds(admin: Visitor, made: str) -> None:
    page = admin.get("/w/bio/backups/new").text
    assert "Back up now" in page and "The last good backup is of" in page


def test_both_start_pages_tell_the_way_back_and_what_there_is(admin: Visitor, made: str) -> None:
    for path, way in (("new", "/w/bio/backups"), (f"{made}/restore", f"/w/bio/backups/{made}")):
        page = admin.get(f"/w/bio/backups/{path}").text
        crumbs = page.split('<nav class="crumbs"')[1].split("</nav>")[0]
        assert f'href="{way}"' in crumbs
        told = [page.index(f"<dt>{what}</dt>") for what in ("Courses", "Pages", "Tags", "Members")]
        assert told == sorted(told)
    assert ' (restored)"' in page
    assert ". The newest 10 are kept" in admin.get("/w/bio/backups/new").text


def test_a_damaged_backup_is_not_offered_for_restoring(admin: Visitor, database: Database, made: str) -> None:
    assert f"/{made}/restore" in admin.get(f"/w/bio/backups/{made}").text
    run(database, "update hub.backup set check_result = 'damaged'")
    assert f"/{made}/restore" not in admin.get(f"/w/bio/backups/{made}").text
    assert "cannot be restored" in admin.get(f"/w/bio/backups/{made}/restore").text


def test_a_backup_is_called_by_the_time_that_the_rest_of_the_page_tells(
    admin: Visitor, database: Database, made: str
) -> None:
    run(database, "update hub.workspace set time_zone = 'Asia/Tokyo'")
    run(database, "update hub.backup set snapshot_at = '2026-11-30 20:00:00Z'")
    for path in ("", "/delete", "/restore"):
        page = admin.get(f"/w/bio/backups/{made}{path}").text
        assert "1 Dec 2026, 05:00:00 JST" in page and "2026-11-30 20:00" not in page, path


def test_a_narrower_retention_tells_how_many_backups_will_go(
    admin: Visitor, database: Database, settings: Settings, made: str
) -> None:
    for key in ("b2", "b3"):
        back_up(admin, database, settings, key)
    for keep, going in ((4, 0), (3, 1), (1, 3)):
        answer = admin.json("POST", "/w/bio/backups/retention", {"keep": keep, "days": 30})
        assert answer.json["will_expire"] == going
    admin.form("/w/bio/backups/retention", keep="2", days="30")
    assert "will delete 2 of the backups" in admin.get("/w/bio/backups").text
    back_up(admin, database, settings, "b4")
    assert len(rows(database, "select from hub.backup where state = 'expired'")) == 2


def test_the_head_of_a_download_tells_what_the_download_would(admin: Visitor, settings: Settings, made: str) -> None:
    at = f"/w/bio/backups/{made}/download"
    whole = admin.get(at)
    head = admin.client.head(at)
    assert (head.status_code, head.data) == (200, b"")
    assert head.headers["Content-Length"] == whole.headers["Content-Length"]
    (file,) = (settings.data_dir / "blobs" / "backups").rglob("*.zip")
    file.unlink()
    assert (admin.get(at).status_code, admin.client.head(at).status_code) == (404, 404)


def test_a_viewer_neither_lists_nor_opens_backups(app: Any, database: Database, team: Team, made: str) -> None:
    visitor = Visitor(app, database, factories.add_member(database, team, "viewer"))
    for path in ("", f"/{made}", f"/{made}/download"):
        assert visitor.json("GET", f"/w/bio/backups{path}").status_code == 403, path
        assert visitor.get(f"/w/bio/backups{path}").status_code == 403, path
    (job,) = visitor.json("GET", "/w/bio/jobs").json["items"]
    assert "/w/bio/backups" not in visitor.get(f"/w/bio/jobs/{job['id']}").text


@pytest.mark.parametrize("role", ["viewer", "member"])
def test_others_neither_start_nor_read_nor_change_backups(
    app: Any, database: Database, team: Team, made: str, role: str
) -> None:
    visitor = Visitor(app, database, factories.add_member(database, team, role))
    if role == "member":
        assert len(visitor.json("GET", "/w/bio/backups").json["items"]) == 1
        assert "Download" not in visitor.get(f"/w/bio/backups/{made}").text
    assert visitor.get("/w/bio/backups/new").status_code == 403
    for method, path in (
        ("GET", "download"),
        ("POST", "verify"),
        ("GET", "delete"),
        ("POST", "delete"),
        ("GET", "restore"),
    ):
        assert visitor.json(method, f"/w/bio/backups/{made}/{path}").status_code == 403, path
    assert visitor.json("POST", "/w/bio/backups/retention", {"keep": 1, "days": 1}).status_code == 403


def test_strangers_and_other_workspaces_learn_nothing(
    app: Any, client: Any, database: Database, team: Team, made: str
) -> None:
    other = factories.make_team(database, slug="other")
    stranger = Visitor(app, database, other.admin)
    for slug in ("bio", "other"):
        for method, path in (
            ("GET", ""),
            ("GET", "/download"),
            ("POST", "/verify"),
            ("POST", "/delete"),
            ("GET", "/restore"),
        ):
            assert stranger.json(method, f"/w/{slug}/backups/{made}{path}").status_code == 404, path
    assert stranger.json("GET", "/w/bio/backups").status_code == 404
    assert client.get(f"/w/bio/backups/{made}/download", headers={"Accept": "application/json"}).status_code == 401
    signed_out = client.get(f"/w/bio/backups/{made}/download", headers={"Accept": "text/html"})
    assert signed_out.status_code in (302, 303) and "/sign-in" in signed_out.location


def test_guessed_and_odd_ids_are_not_found(admin: Visitor) -> None:
    for guess in (new_id(), UUID(int=0), "not-an-id", "1"):
        assert admin.json("GET", f"/w/bio/backups/{guess}").status_code == 404, guess
        assert admin.get(f"/w/bio/backups/{guess}/download").status_code == 404, guess


def test_changes_need_the_token(admin: Visitor, made: str) -> None:
    for path in (f"{made}/verify", f"{made}/delete", "retention"):
        answer = admin.client.post(f"/w/bio/backups/{path}", headers={"Accept": "application/json"})
        assert (answer.status_code, answer.json["error"]["code"]) == (400, "csrf_failed")


def test_the_list_asks_the_database_as_often_for_many_as_for_one(
    app: Any, admin: Visitor, database: Database, settings: Settings, made: str
) -> None:
    from hub.db import count_statements

    seen = count_statements(app.extensions["hub"].db)
    admin.get("/w/bio/backups")
    for_one = len(seen)
    for number in range(2, 6):
        back_up(admin, database, settings, key=f"b{number}")
    seen.clear()
    admin.get("/w/bio/backups")
    assert len(seen) <= for_one <= 8
