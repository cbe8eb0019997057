"""`hub backup`: to a file and back, and through a worker."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hub.db import Database
from tests import factories
from tests.factories import Team, rows, run
from tests.models.test_archive import rebuilt

Command = Callable[..., Any]


@pytest.fixture
def team(database: Database) -> Team:
    team = factories.make_team(database, slug="biology", name="Biology")
    factories.make_course(database, team, 5)
    factories.add_member(database, team, "viewer")
    return team


@pytest.fixture
def file(hub: Command, team: Team, tmp_path: Path) -> Path:
    """A backup of the team in a file."""
    path = tmp_path / "biology.zip"
    assert hub("backup", "create", "--workspace", "biology", "--file", str(path)).code == 0
    return path


def counted(database: Database) -> list[int]:
    """How many rows there are of everything that a backup holds."""
    tables = ("workspace", "membership", "tag", "course", "page", "page_tag")
    return [rows(database, f"select count(*) as n from hub.{table}")[0].n for table in tables]


def test_a_workspace_goes_into_a_file_and_comes_back(hub: Command, database: Database, file: Path, team: Team) -> None:
    verified = hub("backup", "verify", str(file), "--json")
    assert (verified.code, verified.data["ok"], verified.data["records"]) == (0, True, 9)
    assert verified.data["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    restored = hub("backup", "restore", str(file), "--name", "Biology 2", "--json")
    assert restored.code == 0, restored.err
    assert (restored.data["slug"], restored.data["left_out"]) == ("biology-2", {})
    found = rows(database, "select slug, name, enabled, restored_by_job from hub.workspace order by slug")
    assert [tuple(one) for one in found] == [("biology", "Biology", True, None), ("biology-2", "Biology 2", True, None)]
    assert counted(database) == [2, 4, 0, 2, 10, 0]
    told = rows(database, "select action, channel from audit.event order by id")
    assert [tuple(event) for event in told] == [("backup.exported", "cli"), ("workspace.restored", "cli")]


def test_the_sentences_say_what_was_done(hub: Command, file: Path) -> None:
    assert "Biology" in hub("backup", "verify", str(file)).out
    assert "/w/copy/" in hub("backup", "restore", str(file), "--name", "Copy").out


def test_a_file_that_is_there_is_not_overwritten(hub: Command, file: Path) -> None:
    before = file.read_bytes()
    refused = hub("backup", "create", "--workspace", "biology", "--file", str(file))
    assert (refused.code, "already" in refused.err) == (1, True)
    assert file.read_bytes() == before


def test_what_a_killed_command_left_is_written_over(hub: Command, team: Team, tmp_path: Path) -> None:
    left = tmp_path / "x.zip.part"
    left.write_bytes(b"left behind" * 100_000)
    assert hub("backup", "create", "--workspace", "biology", "--file", str(tmp_path / "x.zip")).code == 0
    assert hub("backup", "verify", str(tmp_path / "x.zip")).code == 0
    assert not left.exists()


def test_a_file_that_another_command_is_writing_is_left_alone(hub: Command, team: Team, tmp_path: Path) -> None:
    draft = tmp_path / "x.zip.part"
    with draft.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        refused = hub("backup", "create", "--workspace", "biology", "--file", str(tmp_path / "x.zip"))
    assert refused.code == 1 and "x.zip" in refused.err
    assert [path.name for path in tmp_path.iterdir()] == ["x.zip.part"]


def test_a_file_that_cannot_be_written_is_told(hub: Command, team: Team, tmp_path: Path) -> None:
    refused = hub("backup", "create", "--workspace", "biology", "--file", str(tmp_path / "no" / "x.zip"))
    assert (refused.code, "file:" in refused.err) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_named_and_not_restored(hub: Command, database: Database, file: Path) -> None:
    content = bytearray(file.read_bytes())
    with zipfile.ZipFile(io.BytesIO(content)) as opened:
        content[opened.getinfo("data/pages.jsonl").header_offset + 80] ^= 1
    file.write_bytes(content)
    before = counted(database)
    verified = hub("backup", "verify", str(file), "--json")
    assert (verified.code, verified.data["ok"], verified.data["entry"]) == (1, False, "data/pages.jsonl")
    restored = hub("backup", "restore", str(file), "--name", "Copy")
    assert (restored.code, "data/pages.jsonl" in restored.err) == (1, True)
    assert counted(database) == before


def test_a_hash_that_differs_is_told(hub: Command, file: Path) -> None:
    assert hub("backup", "verify", str(file), "--sha256", "0" * 64, "--json").data["code"] == "structure"


def parts_of(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as opened:
        return {name: opened.read(name) for name in opened.namelist() if name != "manifest.json"}


def with_row(parts: dict[str, bytes], table: str, **changes: Any) -> dict[str, bytes]:
    """The parts with the first row of a table changed."""
    path = f"data/{table}.jsonl"
    first, *rest = parts[path].splitlines()
    row = json.loads(first) | changes
    return parts | {path: b"".join(line + b"\n" for line in [json.dumps(row).encode(), *rest])}


HOSTILE: dict[str, Callable[[dict[str, bytes]], dict[str, bytes]]] = {
    "no pages": lambda parts: {path: part for path, part in parts.items() if "pages.jsonl" not in path},
    "another table": lambda parts: parts | {"data/person.jsonl": b"{}\n"},
    "a file that nothing names": lambda parts: parts | {f"files/e3/{hashlib.sha256(b'').hexdigest()}": b""},
    "a file under another's hash": lambda parts: parts | {f"files/e3/{hashlib.sha256(b'').hexdigest()}": b"x"},
    "no JSON": lambda parts: parts | {"data/pages.jsonl": b"pages\n"},
    "an empty record": lambda parts: parts | {"data/pages.jsonl": b"\n"},
    "a list": lambda parts: parts | {"data/pages.jsonl": b"[]\n"},
    "deep nesting": lambda parts: parts | {"data/pages.jsonl": b"[" * 100_000 + b"\n"},
    "two workspaces": lambda parts: parts | {"data/workspace.jsonl": parts["data/workspace.jsonl"] * 2},
    "no workspace": lambda parts: parts | {"data/workspace.jsonl": b""},
    "a page twice": lambda parts: parts | {"data/pages.jsonl": parts["data/pages.jsonl"] * 2},
    "a page of another course": lambda parts: with_row(parts, "pages", course_id="0" * 32),
    "a page with more": lambda parts: with_row(parts, "pages", workspace_id="x"),
    "a page with NUL": lambda parts: with_row(parts, "pages", body="a\0b"),
    "a page with half a character": lambda parts: with_row(parts, "pages", body="\ud800"),
    "a page too large": lambda parts: with_row(parts, "pages", body="x" * 1_000_001),
    "a title too long": lambda parts: with_row(parts, "pages", title="x" * 301),
    "a version below one": lambda parts: with_row(parts, "pages", version=0),
    "a version that is text": lambda parts: with_row(parts, "pages", version="1"),
    "a time that is none": lambda parts: with_row(parts, "pages", updated_at="soon"),
    "a time before time": lambda parts: with_row(parts, "pages", updated_at="0000-01-01T00:00:00Z"),
    "a time that some zones cannot tell": lambda parts: with_row(parts, "pages", updated_at="9999-12-31T23:59:59Z"),
    "a time zone that is none": lambda parts: with_row(parts, "workspace", time_zone="Mars/Olympus"),
    "a time zone that is a path": lambda parts: with_row(parts, "workspace", time_zone="../../etc/hostname"),
    "a role that is none": lambda parts: with_row(parts, "members", role="owner"),
    "a tag under a key not its own": lambda parts: (
        parts
        | {
            "data/tags.jsonl": json.dumps(
                {"id": "1" * 32, "name": "Cells", "key": "plants", "created_at": "2026-11-30T00:00:00Z"}
            ).encode()
            + b"\n"
        }
    ),
    "a tag on no page": lambda parts: (
        parts
        | {
            "data/page_tags.jsonl": json.dumps(
                {"page_id": "1" * 32, "tag_id": "2" * 32, "added_by": "", "added_at": "2026-11-30T00:00:00Z"}
            ).encode()
            + b"\n"
        }
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_hub_would_not_write_is_refused_and_nothing_is_written(
    hub: Command, database: Database, file: Path, team: Team, case: str
) -> None:
    before = counted(database)
    workspace = {"id": str(team.workspace.id), "slug": "biology", "name": "Biology"}
    file.write_bytes(rebuilt(list(HOSTILE[case](parts_of(file)).items()), workspace=workspace))
    refused = hub("backup", "restore", str(file), "--name", "Copy")
    assert refused.code == 1
    assert refused.err.startswith("hub: file: ") and "data/" in refused.err or "files/" in refused.err
    assert counted(database) == before


def test_a_name_in_a_file_does_not_command_the_terminal(hub: Command, file: Path, team: Team) -> None:
    workspace = {"id": str(team.workspace.id), "slug": "biology", "name": "Bio\x1b[2J\x07logy"}
    file.write_bytes(rebuilt(list(parts_of(file).items()), workspace=workspace))
    verified = hub("backup", "verify", str(file))
    assert verified.code == 0 and "logy" in verified.out
    assert "\x1b" not in verified.out and "\x07" not in verified.out


def test_the_same_parts_unchanged_are_restored(hub: Command, database: Database, file: Path, team: Team) -> None:
    workspace = {"id": str(team.workspace.id), "slug": "biology", "name": "Biology"}
    file.write_bytes(rebuilt(list(parts_of(file).items()), workspace=workspace))
    assert hub("backup", "restore", str(file), "--name", "Copy").code == 0


def test_only_operators_restore_files(hub: Command, database: Database, file: Path, team: Team) -> None:
    for staff, code in ((None, 1), ("support", 1), ("operator", 0)):
        person = factories.make_person(database, staff=staff)
        assert hub("backup", "restore", str(file), "--name", "Copy", "--as", person.email).code == code
    assert hub("backup", "restore", str(file), "--name", "Copy", "--as", team.admin.email).code == 1


def test_a_file_of_elsewhere_needs_an_admin_who_is_known_here(hub: Command, database: Database, file: Path) -> None:
    run(database, "delete from hub.page")
    run(database, "delete from hub.course")
    run(database, "delete from hub.membership")
    run(database, "delete from hub.workspace")
    run(database, "update hub.person set email = 'x' || email")
    refused = hub("backup", "restore", str(file), "--name", "Copy")
    assert (refused.code, refused.err.startswith("hub: admin: ")) == (1, True)
    assert counted(database) == [0, 0, 0, 0, 0, 0]
    person = factories.make_person(database)
    restored = hub("backup", "restore", str(file), "--name", "Copy", "--admin", person.email, "--json")
    assert restored.data["left_out"] == {"unknown_people": 2}
    assert [one.role for one in rows(database, "select role from hub.membership")] == ["admin"]


def test_a_job_makes_a_stored_backup_and_another_restores_it(
    hub: Command, database: Database, team: Team, worker_process: Any
) -> None:
    worker_process()
    made = hub("backup", "create", "--workspace", "biology", "--as", team.admin.email, "--json")
    assert (made.code, made.data["state"]) == (0, "succeeded"), made.out
    stored = ("--backup", made.data["backup_id"], "--workspace", "biology")
    restored = hub("backup", "restore", *stored, "--name", "Copy", "--as", team.admin.email, "--json")
    assert (restored.code, restored.data["slug"]) == (0, "copy"), restored.out
    assert counted(database) == [2, 4, 0, 2, 10, 0]


def test_a_job_that_nobody_would_do_is_not_started(hub: Command, database: Database, team: Team) -> None:
    refused = hub("backup", "create", "--workspace", "biology", "--as", team.admin.email)
    assert (refused.code, "worker" in refused.err) == (1, True)
    assert rows(database, "select from queue.job") == []
    started = hub("backup", "create", "--workspace", "biology", "--as", team.admin.email, "--no-wait", "--json")
    assert (started.code, started.data["state"]) == (0, "queued")


def test_who_may_not_is_refused(hub: Command, database: Database, team: Team, tmp_path: Path) -> None:
    assert hub("backup", "create", "--workspace", "biology").code == 2
    viewer = factories.add_member(database, team, "viewer")
    for order in (["--no-wait"], ["--file", str(tmp_path / "x.zip")]):
        assert hub("backup", "create", "--workspace", "biology", "--as", viewer.email, *order).code == 1
    assert list(tmp_path.iterdir()) == []
