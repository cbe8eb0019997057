"""The `hub` command: what it does, what it prints, and how it says no."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hub.models.person import check_password
from tests import cluster, factories
from tests.processes import ROOT
from tests.web.visitor import Visitor, events, rows

PASSWORD = "a long enough password"


def test_a_workspace_is_added_disabled_and_enabled(hub: Any, database: Any) -> None:
    added = hub("workspace", "add", "biology", "--name", "Biology", "--json")
    assert added.code == 0
    assert (added.data["slug"], added.data["name"]) == ("biology", "Biology")
    assert hub("workspace", "disable", "biology").code == 0
    assert rows(database, "select enabled from hub.workspace") == [(False,)]
    assert hub("workspace", "enable", "biology", "--json").data == {
        "slug": "biology",
        "enabled": True,
        "changed": True,
    }
    assert [(event.action, event.channel) for event in events(database)] == [
        ("workspace.created", "cli"),
        ("workspace.disabled", "cli"),
        ("workspace.enabled", "cli"),
    ]


def test_a_person_is_added_with_a_role_and_can_then_sign_in(hub: Any, database: Any) -> None:
    hub("workspace", "add", "biology")
    added = hub(
        *("user", "add", "Ann@Hub.Example", "--name", "Ann", "--workspace", "biology", "--role", "admin"),
        *("--password-stdin", "--json"),
        stdin=f"{PASSWORD}\n",
    )
    assert added.code == 0, added.err
    assert (added.data["email"], added.data["role"]) == ("ann@hub.example", "admin")
    person = rows(database, "select * from hub.person")[0]
    assert check_password(person, PASSWORD)
    assert PASSWORD not in added.out + added.err


def test_somebody_who_is_here_gets_a_role_in_another_workspace_without_a_password(hub: Any, database: Any) -> None:
    factories.make_person(database, email="ann@hub.example")
    hub("workspace", "add", "biology")
    assert hub("user", "add", "ann@hub.example", "--workspace", "biology", "--role", "viewer").code == 0
    assert rows(database, "select role from hub.membership") == [("viewer",)]


def test_acts_name_their_person_in_the_audit_trail(hub: Any, database: Any) -> None:
    factories.make_person(database, email="olaf@hub.example", name="Olaf")
    assert hub("workspace", "add", "biology", "--as", "olaf@hub.example").code == 0
    event = events(database, "workspace.created")[0]
    assert (event.actor_name, event.actor_kind, event.channel) == ("Olaf", "person", "cli")


def test_a_disabled_person_loses_every_session_at_once(hub: Any, app: Any, database: Any) -> None:
    visitor = Visitor(app, database, factories.make_person(database, email="ann@hub.example"))
    assert hub("user", "disable", "ann@hub.example").code == 0
    assert visitor.json("GET", "/account").status_code == 401
    assert hub("user", "enable", "ann@hub.example").code == 0
    # Access is back, but an old session is not.
    assert visitor.json("GET", "/account").status_code == 401


def test_the_last_admin_stays(hub: Any, database: Any) -> None:
    team = factories.make_team(database)
    refused = hub("user", "disable", team.admin.email)
    assert (refused.code, refused.err) == (1, "hub: A workspace needs at least one admin. Nothing was changed.\n")
    assert rows(database, "select enabled from hub.person") == [(True,)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("workspace", "add", "Not A Slug"), "slug: Use 1 to 63 small letters"),
        (("workspace", "add", "taken"), "There is a workspace “taken” already"),
        (("workspace", "disable", "nowhere"), "There is no workspace “nowhere”"),
        (("user", "disable", "nobody@hub.example"), "no enabled person with the address nobody@hub.example"),
        (("workspace", "add", "new", "--as", "nobody@hub.example"), "no enabled person"),
        (("user", "add", "no-address", "--password-stdin"), "email: Enter an e-mail address"),
        (("user", "add", "ann@hub.example", "--password-stdin"), "password: A password has 12 to 200 characters"),
        (("user", "add", "here@hub.example", "--password-stdin"), "password"),
    ],
)
def test_what_cannot_be_is_told_in_one_sentence(
    hub: Any, database: Any, arguments: tuple[str, ...], sentence: str
) -> None:
    factories.make_team(database, slug="taken")
    before = rows(database, "select count(*) from audit.event")
    refused = hub(*arguments, stdin="short")
    assert refused.code == 1
    assert refused.out == ""
    assert refused.err.startswith("hub: ") and refused.err.count("\n") == 1
    assert sentence in refused.err
    assert rows(database, "select count(*) from audit.event") == before


def test_text_that_is_no_utf8_is_told_in_one_sentence(hub: Any) -> None:
    for arguments in (("user", "disable", "a\udcff@hub.example"), ("workspace", "add", "x", "--name", "a\udcff")):
        refused = hub(*arguments)
        assert refused.code == 1
        assert refused.err.startswith("hub: ") and refused.err.count("\n") == 1


def test_an_address_is_taken_once(hub: Any, database: Any) -> None:
    factories.make_person(database, email="ann@hub.example")
    refused = hub("user", "add", "ANN@hub.example", "--password-stdin", stdin=PASSWORD)
    assert refused.code == 1
    assert "ann@hub.example is here already" in refused.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("workspace", "add"),
        ("user", "add", "ann@hub.example"),
        ("user", "add", "ann@hub.example", "--role", "admin", "--password-stdin"),
        ("user", "add", "ann@hub.example", "--role", "owner", "--workspace", "w"),
        ("worker", "--lanes", "many"),
        ("db", "init"),
    ],
)
def test_wrong_usage_is_code_2(hub: Any, arguments: tuple[str, ...]) -> None:
    refused = hub(*arguments)
    assert refused.code == 2
    assert "Error: " in refused.err


def test_a_wrong_setting_is_named(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_QUEUE_LEASE", "soon")
    refused = hub("settings")
    assert (refused.code, refused.err) == (1, "hub: HUB_QUEUE_LEASE: cannot be read: 'soon'\n")


def test_settings_are_listed_with_reasons_and_without_secrets(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_SECRET_KEY", "hunter2" * 10)
    shown = hub("settings")
    assert shown.code == 0
    assert "HUB_QUEUE_LEASE=60 s" in shown.out
    assert "hunter2" not in shown.out + hub("settings", "--json").out


def test_a_database_that_is_away_is_one_sentence(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_DATABASE_URL", "postgresql://hub_app@/hub?host=/nowhere/at/all")
    for arguments in (("workspace", "add", "x"), ("db", "status"), ("web",), ("worker",)):
        refused = hub(*arguments)
        assert refused.code == 1, arguments
        assert refused.err.startswith("hub: The database says: ") and refused.err.count("\n") == 1


def test_a_folder_becomes_a_course(hub: Any, database: Any, tmp_path: Path) -> None:
    factories.make_team(database, slug="bio")
    (tmp_path / "one.md").write_text("# One\n\ntext\n")
    (tmp_path / "two.md").write_text("# Two\n")
    imported = hub("course", "import", str(tmp_path), "--workspace", "bio", "--title", "Cells", "--json")
    assert imported.code == 0, imported.err
    assert imported.data["pages"] == 2
    assert rows(database, "select title from hub.course") == [("Cells",)]


def test_an_import_that_fails_leaves_nothing(hub: Any, database: Any, tmp_path: Path) -> None:
    factories.make_team(database, slug="bio")
    (tmp_path / "one.md").write_text("# One\n")
    (tmp_path / "two.md").write_bytes(b"\xff\xfe")
    refused = hub("course", "import", str(tmp_path), "--workspace", "bio")
    assert refused.code == 1
    assert "two.md" in refused.err
    assert rows(database, "select count(*) from hub.course") == [(0,)]


def test_whoever_is_named_may_import_only_where_they_may_edit(hub: Any, database: Any, tmp_path: Path) -> None:
    team = factories.make_team(database, slug="bio")
    viewer = factories.add_member(database, team, "viewer")
    (tmp_path / "one.md").write_text("# One\n")
    for person, code in ((viewer, 1), (factories.make_person(database, staff="support"), 1), (team.admin, 0)):
        tried = hub("course", "import", str(tmp_path), "--workspace", "bio", "--as", person.email)
        assert tried.code == code, tried.err
    assert rows(database, "select count(*) from hub.course") == [(1,)]


def test_a_person_gets_a_new_password_and_is_signed_out(app: Any, hub: Any, database: Any) -> None:
    visitor = Visitor(app, database, factories.make_person(database))
    refused = hub("user", "password", visitor.person.email, "--password-stdin", stdin="short\n")
    assert refused.code == 1 and "password" in refused.err
    changed = hub("user", "password", visitor.person.email, "--password-stdin", stdin="a much longer password\n")
    assert changed.code == 0, changed.err
    assert visitor.json("GET", "/account").status_code == 401
    assert [event.action for event in events(database)][-1:] == ["person.password_changed"]


def test_check_says_what_is_well(hub: Any) -> None:
    found = hub("check", "--json")
    assert found.code == 0
    looked_at = {finding["name"] for finding in found.data}
    assert {"database", "schema", "clock", "data folder", "queues", "workers", "listening", "schedules"} <= looked_at
    plain = hub("check").out.splitlines()
    assert len(plain) == len(found.data) and all(line.startswith(("ok  ", "look ")) for line in plain)


def test_check_says_what_is_not(hub: Any, monkeypatch: pytest.MonkeyPatch, server: Any, database_name: str) -> None:
    monkeypatch.setenv("HUB_DATABASE_URL", server.url("hub_admin", database_name))
    found = hub("check")
    assert found.code == 1
    assert "FAIL schema: The database role hub_admin may do more" in found.out
    monkeypatch.setenv("HUB_DATABASE_URL", "postgresql://hub_app@/hub?host=/nowhere/at/all")
    found = hub("check")
    assert found.code == 1
    assert "FAIL database" in found.out


def test_db_init_prints_sql_for_an_administrator(hub: Any) -> None:
    printed = hub("db", "init", "--print", "--database", 'odd"name')
    assert printed.code == 0
    assert 'grant connect on database "odd""name"' in printed.out


def test_db_upgrade_and_status(hub: Any, monkeypatch: pytest.MonkeyPatch, own_database: Any) -> None:
    monkeypatch.setenv("HUB_DATABASE_URL", own_database.url)
    monkeypatch.setenv("HUB_MIGRATE_DATABASE_URL", cluster.as_role(own_database.url, "hub_migrate"))
    status = hub("db", "status", "--json")
    assert status.code == 0
    assert status.data["hub"] == status.data["hub_needed"]
    assert hub("db", "upgrade", "--json").data == status.data
    with psycopg.connect(cluster.as_role(own_database.url, "hub_admin"), autocommit=True) as admin:
        admin.execute("update queue.schema_revision set revision = 0")
    assert hub("db", "status").code == 1


def test_web_and_worker_refuse_a_role_that_may_do_too_much(
    hub: Any, monkeypatch: pytest.MonkeyPatch, server: Any, database_name: str
) -> None:
    monkeypatch.setenv("HUB_DATABASE_URL", server.url("hub_migrate", database_name))
    for command in ("web", "worker"):
        refused = hub(command)
        assert refused.code == 1
        assert "may do more than Hub's web and worker should" in refused.err


def test_the_command_starts_without_importing_what_it_does_not_need() -> None:
    code = "import sys, hub.cli; print([m for m in ('flask', 'sqlalchemy', 'psycopg', 'alembic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
