"""The format of backups: what is written is read back, and whatever else is brought is refused with its reason."""

from __future__ import annotations

import hashlib
import io
import json
import random
import struct
import tracemalloc
import uuid
import zipfile
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.models import archive
from hub.models.archive import Archive, Unreadable, Writer

TOLD: dict[str, Any] = {
    "app_version": "0.1",
    "schema_revision": 1,
    "created_at": "2026-11-30T10:00:00Z",
    "workspace": {"id": str(uuid.UUID(int=7)), "slug": "team", "name": "Team"},
    "excluded": [{"what": "passwords", "why": "…"}],
}


def made(tables: dict[str, Iterable[bytes]], **told: Any) -> bytes:
    """An archive of these tables."""
    writer = Writer()
    pieces = list(writer.readme("Read me."))
    for name, rows in tables.items():
        pieces += writer.table(name, rows)
    counts = {entry.path[5:-6]: entry.rows for entry in writer.entries if entry.rows is not None}
    pieces += writer.finish(TOLD | {"counts": counts} | told)
    whole = b"".join(pieces)
    assert (writer.size, writer.sha256) == (len(whole), hashlib.sha256(whole).hexdigest())
    return whole


def rows_of(number: int) -> list[bytes]:
    return [json.dumps({"id": n, "body": random.Random(n).random()}).encode() for n in range(number)]


GOOD = made({"courses": rows_of(3), "pages": rows_of(400), "tags": []})


def signed(content: bytes) -> bytes:
    """A zip file with the comment that makes it whole, as somebody could put there who changes a backup."""
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        had = len(file.comment)
    content = content[: len(content) - had - 2] + struct.pack("<H", 64)
    return content + hashlib.sha256(content).hexdigest().encode()


Part = tuple[str, bytes]


def zipped(*parts: Part) -> bytes:
    """A zip file of these parts."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as into:
        for path, content in parts:
            into.writestr(path, content)
    return file.getvalue()


def rebuilt(parts: list[Part], **changes: Any) -> bytes:
    """A signed zip file of these parts, with a manifest that fits them but for `changes`."""
    entries = [
        {
            "path": path,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "rows": content.count(b"\n") if path.startswith("data/") else None,
        }
        for path, content in parts
    ]
    counts = {entry["path"][5:-6]: entry["rows"] for entry in entries if entry["rows"] is not None}
    manifest = TOLD | {"format": "hub-backup", "format_version": 1, "entries": entries, "counts": counts} | changes
    return signed(zipped(*parts, ("manifest.json", json.dumps(manifest).encode())))


def refusal(content: bytes, sha256: str | None = None) -> tuple[str, str | None]:
    """Why a file is not read."""
    with pytest.raises(Unreadable) as refused:
        archive.check(io.BytesIO(content), sha256)
    return refused.value.code, refused.value.entry


def test_what_is_written_is_read_back() -> None:
    file = io.BytesIO(GOOD)
    seen: list[int] = []
    manifest = archive.check(file, hashlib.sha256(GOOD).hexdigest(), seen.append)
    assert manifest.counts == {"courses": 3, "pages": 400, "tags": 0}
    assert sum(seen) == 403
    read = Archive(file)
    assert read.tables() == ["courses", "pages", "tags"]
    assert list(read.rows("pages")) == rows_of(400)
    assert list(read.rows("tags")) == []


def test_every_zip_program_can_read_it_and_the_manifest_comes_last() -> None:
    with zipfile.ZipFile(io.BytesIO(GOOD)) as file:
        assert file.testzip() is None
        assert file.namelist()[-1] == "manifest.json"
        assert {info.date_time[0] for info in file.infolist()} == {1980}
        manifest = json.loads(file.read("manifest.json"))
    assert set(manifest["entries"][0]) == {"path", "bytes", "sha256", "rows"}


def test_equal_contents_make_equal_bytes() -> None:
    assert made({"courses": rows_of(3), "pages": rows_of(400), "tags": []}) == GOOD


@given(st.lists(st.binary(max_size=300).filter(lambda row: b"\n" not in row)))
def test_any_rows_come_back(rows: list[bytes]) -> None:
    content = made({"pages": rows})
    assert archive.check(io.BytesIO(content)).counts == {"pages": len(rows)}
    assert list(Archive(io.BytesIO(content)).rows("pages")) == rows


def test_a_file_is_kept_under_its_hash() -> None:
    content = bytes(range(256)) * 1000
    digest = hashlib.sha256(content).hexdigest()
    writer = Writer()
    pieces = [*writer.file(digest, [content], packed=True), *writer.finish(TOLD | {"counts": {}})]
    read = archive.check(io.BytesIO(b"".join(pieces)))
    assert [(entry.path, entry.sha256) for entry in read.entries] == [(f"files/{digest[:2]}/{digest}", digest)]


# Damage


def test_a_flipped_bit_anywhere_is_found() -> None:
    entries = {"README.txt", "data/courses.jsonl", "data/pages.jsonl", "data/tags.jsonl", "manifest.json"}
    for place in range(len(GOOD)):
        content = bytearray(GOOD)
        content[place] ^= 1 << (place % 8)
        code, entry = refusal(bytes(content))
        assert code in ("damaged", "structure"), (place, code)
        assert entry in entries or (code == "structure" and entry is None), (place, entry)


def test_a_byte_in_an_entrys_content_names_that_entry() -> None:
    with zipfile.ZipFile(io.BytesIO(GOOD)) as file:
        info = file.getinfo("data/pages.jsonl")
    start = info.header_offset + 30 + len(info.filename) + 20
    for place in range(start, start + info.compress_size - 1, 97):
        content = bytearray(GOOD)
        content[place] ^= 0x10
        assert refusal(bytes(content)) == ("damaged", "data/pages.jsonl")


@pytest.mark.parametrize("length", [0, 1, 30, 64, 100, len(GOOD) // 2, len(GOOD) - 65, len(GOOD) - 1])
def test_a_cut_file_is_found(length: int) -> None:
    assert refusal(GOOD[:length]) == ("structure" if length > 40 else "not_an_archive", None)


def test_what_is_added_or_exchanged_is_found_by_the_known_hash() -> None:
    other = made({"courses": rows_of(3), "pages": rows_of(401), "tags": []})
    archive.check(io.BytesIO(other))
    assert refusal(other, hashlib.sha256(GOOD).hexdigest()) == ("structure", None)
    assert refusal(GOOD + b"x")[0] == "structure"


@given(st.binary(max_size=2000))
def test_anything_else_is_no_archive(content: bytes) -> None:
    assert refusal(content)[0] in ("not_an_archive", "structure")


# Ill will: whoever changes an archive can make it whole again

README: Part = ("README.txt", b"x")
PAGES: Part = ("data/pages.jsonl", b"{}\n{}\n")
EMPTY_FILE = "files/e3/" + hashlib.sha256(b"").hexdigest()

HOSTILE: dict[str, tuple[bytes, str]] = {
    "a path that leads out": (rebuilt([PAGES, ("../../etc/cron.d/x", b"x")]), "name"),
    "an absolute path": (rebuilt([PAGES, ("/etc/passwd", b"x")]), "name"),
    "a path of another system": (rebuilt([PAGES, ("data\\..\\x.jsonl", b"x")]), "name"),
    "a folder": (rebuilt([PAGES, ("data/", b"")]), "name"),
    "a name of no table": (rebuilt([PAGES, ("data/Pages.jsonl", b"")]), "name"),
    "a file under a wrong name": (rebuilt([PAGES, ("files/ab/" + "0" * 63 + "g", b"")]), "name"),
    "a NUL in a name": (signed(rebuilt([PAGES, ("data/x.jsonl?/../y", b"")]).replace(b"l?/", b"l\0/")), "name"),
    "a newer format": (rebuilt([PAGES], format_version=2), "newer"),
    "another format": (rebuilt([PAGES], format="other"), "manifest"),
    "no format": (rebuilt([PAGES], format_version=None), "manifest"),
    "too many rows told": (rebuilt([PAGES], counts={"pages": 3}), "counts"),
    "another table's rows told": (rebuilt([PAGES], counts={"pages": 2, "tags": 0}), "counts"),
    "no workspace": (rebuilt([PAGES], workspace={}), "manifest"),
    "a time that is none": (rebuilt([PAGES], created_at="yesterday"), "manifest"),
    "a time that some zones cannot tell": (rebuilt([PAGES], created_at="0001-01-01T00:00:00+14:00"), "manifest"),
    "no rows told of a table": (
        rebuilt([PAGES], entries=[{"path": "data/pages.jsonl", "bytes": 6, "sha256": "", "rows": None}], counts={}),
        "manifest",
    ),
    "an entry told twice": (
        rebuilt([PAGES], entries=[{"path": "x", "bytes": 1, "sha256": "", "rows": 1}] * 2),
        "manifest",
    ),
    "an entry that is not there": (
        rebuilt([PAGES], entries=[{"path": "data/tags.jsonl", "bytes": 0, "sha256": "", "rows": 0}]),
        "missing_part",
    ),
    "an entry that is not told": (rebuilt([PAGES, (EMPTY_FILE, b"")], entries=[]), "unknown_part"),
    "a record without end": (rebuilt([("data/pages.jsonl", b"{}\n{}")]), "counts"),
    "200 MB of zeros as a record": (rebuilt([("data/pages.jsonl", bytes(200_000_000))]), "long_record"),
    "200 MB of zeros to read": (rebuilt([PAGES, ("README.txt", bytes(200_000_000))]), "manifest"),
    "no manifest": (signed(zipped(README)), "not_an_archive"),
}


def twice(path: str) -> bytes:
    """A signed archive that has an entry of this name twice."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(GOOD)) as good, zipfile.ZipFile(file, "w") as bad:
        for info in good.infolist():
            bad.writestr(info, good.read(info))
        with pytest.warns(UserWarning, match="Duplicate"):
            bad.writestr(path, b"{}\n")
    return signed(file.getvalue())


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archives_are_refused_in_bounded_memory(case: str) -> None:
    content, code = HOSTILE[case]
    tracemalloc.start()
    try:
        assert refusal(content)[0] == code
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["data/\x1b[2Jx.jsonl", "data/\u202ex.jsonl", "data/\nx.jsonl"])
def test_a_name_that_would_command_a_terminal_is_told_in_plain_characters(name: str) -> None:
    code, entry = refusal(rebuilt([PAGES, (name, b"x")]))
    assert code == "name" and entry is not None and entry.isprintable() and entry.startswith("data/\\")
    told = {"path": name, "bytes": 1, "sha256": "", "rows": 1}
    code, entry = refusal(rebuilt([PAGES], entries=[told]))
    assert code == "missing_part" and entry is not None and entry.isprintable()


@pytest.mark.parametrize("path", ["data/pages.jsonl", "manifest.json", "README.txt"])
def test_an_entry_that_is_there_twice_is_refused(path: str) -> None:
    assert refusal(twice(path)) == ("twice", path)


def test_a_manifest_of_200_mb_is_refused() -> None:
    content = zipped(("manifest.json", b" " * 200_000_000))
    assert refusal(signed(content)) == ("damaged", "manifest.json")


def test_a_size_that_is_a_lie_is_refused() -> None:
    content = rebuilt([("data/pages.jsonl", b"{}\n" * 100)])
    entries = [{"path": "data/pages.jsonl", "bytes": 3, "sha256": hashlib.sha256(b"{}\n").hexdigest(), "rows": 1}]
    lie = rebuilt([("data/pages.jsonl", b"{}\n" * 100)], entries=entries, counts={"pages": 1})
    assert refusal(lie) == ("damaged", "data/pages.jsonl")
    # In the zip's own lists as well: what comes out is counted, not what is told.
    central = lie.rfind(b"PK\x01\x02", 0, lie.rfind(b"PK\x01\x02"))
    both = bytearray(lie)
    both[central + 24 : central + 28] = struct.pack("<I", 3)
    assert refusal(signed(bytes(both)))[0] == "damaged"
    assert archive.check(io.BytesIO(content)).counts == {"pages": 100}


def test_encrypted_and_strangely_packed_entries_are_refused() -> None:
    for offset, value in ((8, 0x1), (10, 14)):
        content = bytearray(rebuilt([PAGES]))
        struct.pack_into("<H", content, content.find(b"PK\x01\x02") + offset, value)
        assert refusal(signed(bytes(content)))[0] in ("structure", "damaged")


def test_a_million_names_are_not_read() -> None:
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 100_000_000, 0, 64)
    content = b"PK\x01\x02" + bytes(99_999_996) + end
    tracemalloc.start()
    try:
        assert refusal(content + hashlib.sha256(content).hexdigest().encode()) == ("not_an_archive", None)
        assert tracemalloc.get_traced_memory()[1] < 40_000_000 + len(content)
    finally:
        tracemalloc.stop()
