"""Importing courses: order, titles, bodies, and everything that is refused."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.db import Database
from hub.errors import Invalid, Refusal, TooLarge, WrongType
from hub.models import course, importing
from hub.models.importing import PageSource, import_course, read_folder, read_zip
from tests.factories import Team, make_team, row, rows


@pytest.fixture
def team(database: Database) -> Team:
    return make_team(database)


def zipped(files: dict[str, bytes | str], compression: int = zipfile.ZIP_DEFLATED) -> IO[bytes]:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    file.seek(0)
    return file


def folder_of(files: dict[str, str], path: Path) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(data)
    return path


def titles(files: dict[str, bytes | str]) -> list[str]:
    return [page.title for page in read_zip(zipped(files))]


def refusal(file: IO[bytes]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        list(read_zip(file))
    return caught.value


def test_the_title_is_the_front_matters_else_the_first_heading_else_the_files_name() -> None:
    files = {
        "1.md": "---\ntitle: 'From: front matter'\nteaching: 5\n---\n\n# Heading\n",
        "2.md": "```\n# no heading\n```\n\n## The `match` [way](x) {#id} ##\n",
        "3.md": "Under\nlined *text*\n===\n",
        "04 name.markdown": "no heading\n",
        "5.md": "---\n\na rule, then text\n\n---\n",
        "6.md": "---\ntitle: 1.10\n---\n",
        "7.md": "---\nteaching: 5\n---\n#not a heading\n",
    }
    assert titles(files) == [
        "From: front matter",
        "The match way",
        "lined text",
        "04 name",
        "5",
        "1.10",
        "7",
    ]


@pytest.mark.parametrize("heading", ["t" * 301, "\u200b", "bell \x07"])
def test_a_heading_that_cannot_be_a_title_leaves_it_to_the_files_name(heading: str) -> None:
    (page,) = read_zip(zipped({"04 name.md": f"# {heading}\n"}))
    assert page.title == "04 name"
    assert page.body == f"# {heading}\n"


def test_front_matter_is_no_part_of_the_body_and_the_rest_is_kept() -> None:
    files: dict[str, bytes | str] = {
        "a.md": b"\xef\xbb\xbf---\r\ntitle: A\r\n---\r\n\r\n\ttab \r\n",
        "b.md": "---\nnot a mapping\n---\nrest",
        "c.md": "a\r\nb\rc\n\n",
    }
    assert [page.body for page in read_zip(zipped(files))] == [
        "\n\ttab \n",
        "---\nnot a mapping\n---\nrest",
        "a\nb\nc\n\n",
    ]


def test_names_give_the_order_with_numbers_as_numbers(tmp_path: Path) -> None:
    names = ["10 z.md", "2 b.md", "2 a.md", "a/1.md", "intro.MD", "notes.txt"]
    assert [page.path for page in read_zip(zipped(dict.fromkeys(names, "x")))] == [
        "2 a.md",
        "2 b.md",
        "10 z.md",
        "a/1.md",
        "intro.MD",
    ]


def test_summary_gives_the_order_and_is_no_page() -> None:
    files: dict[str, bytes | str] = {
        "book/SUMMARY.md": "# S\n\n[Intro](./intro.md)\n\n- [C](c.md#part)\n  - [D](sub/d%20d.md)\n- [Gone](gone.md)\n"
        "- [Again](intro.md)\n- [Out](../../etc/passwd.md)\n- [Web](https://there.example/a.md)\n",
        "book/a.md": "left over",
        "book/c.md": "# C",
        "book/sub/d d.md": "# D",
        "book/intro.md": "# Intro",
    }
    assert [page.path for page in read_zip(zipped(files))] == [
        "book/intro.md",
        "book/c.md",
        "book/sub/d d.md",
        "book/a.md",
    ]


def test_links_of_a_summary_may_be_written_in_any_way() -> None:
    summary = "[a]( <b%20c.md> 'title')\n[x](d_(e).md#part)\n![p](f.md?q)\n[g](none.md) [h](/g.md)\n"
    files = {"SUMMARY.md": summary} | dict.fromkeys(("a.md", "b c.md", "d_(e).md", "f.md", "g.md"), "")
    assert titles(files) == ["b c", "d_(e)", "f", "a", "g"]


@pytest.mark.parametrize("piece", ["![", "[", "[a](", "[a](b", "](a(b", "[a](<", "[a](no.md)", "``` `"])
def test_a_hostile_summary_costs_little_and_names_give_the_order(piece: str) -> None:
    calls = 0

    def count(*_event: object) -> None:
        nonlocal calls
        calls += 1

    file = zipped({"SUMMARY.md": piece * (1_000_000 // len(piece)), "b.md": "", "a.md": ""})
    sys.setprofile(count)
    try:
        pages = list(read_zip(file))
    finally:
        sys.setprofile(None)
    assert [page.title for page in pages] == ["a", "b"]
    # A parser of Markdown makes millions.
    assert calls < 100_000


def test_names_may_begin_with_a_point_and_have_steps_that_lead_nowhere() -> None:
    assert [page.path for page in read_zip(zipped({"./a.md": "", "./b/./c.md": "", "b//d.md": "", "./.e.md": ""}))] == [
        "a.md",
        "b/c.md",
        "b/d.md",
    ]
    assert "twice" in _file_field(refusal(zipped({"./a.md": "", "a.md": ""})))
    assert "leads out" in _file_field(refusal(zipped({"./../a.md": ""})))


@pytest.mark.parametrize("compression", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_rare_compression_is_a_refusal(compression: int) -> None:
    assert "a.md cannot be unpacked" in _file_field(refusal(zipped({"a.md": "text"}, compression)))


def test_spooled_pages_are_the_same_and_read_beforehand() -> None:
    read: list[str] = []

    def sources() -> Iterator[PageSource]:
        for title in ("é", "b", "c"):
            read.append(title)
            yield PageSource(title, f"\U0001f600 {title}\n" * 3, f"{title}.md")

    with importing.spooled(sources()) as pages:
        assert read == ["é", "b", "c"]
        assert list(pages) == list(sources())


def test_a_folder_and_its_zip_file_give_the_same_pages(tmp_path: Path) -> None:
    files = {"SUMMARY.md": "- [b](b.md)\n- [a](a.md)", "a.md": "A", "b.md": "B", "x/c.md": "C", ".git/d.md": "no"}
    folder = folder_of(files, tmp_path / "course")
    assert list(read_folder(folder)) == list(read_zip(zipped(dict(files))))


def test_hidden_and_other_files_are_passed_over() -> None:
    files: dict[str, bytes | str] = {
        "a.md": "A",
        "__MACOSX/._a.md": b"\x00\x05\x16\x07\xff",
        ".hidden.md": b"\xff",
        "b.png": b"\xff" * 10,
        "nested.zip": zipped({"bomb.md": "x" * 1000}).read(),
    }
    assert titles(files) == ["a"]


@pytest.mark.parametrize("name", ["../a.md", "a/../../b.md", "/etc/a.md", "C:/a.md", "..\\a.md", "\\a.md", "../x.png"])
def test_names_that_lead_out_are_refused(name: str) -> None:
    error = refusal(zipped({"ok.md": "x", name: "x"}))
    assert isinstance(error, Invalid)
    assert name.replace("\\", "/") in error.fields["file"]


def test_links_are_refused(tmp_path: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        entry = zipfile.ZipInfo("link.md")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    file.seek(0)
    assert "link.md" in _file_field(refusal(file))
    (tmp_path / "a.md").write_text("a")
    os.symlink("/etc", tmp_path / "etc")
    with pytest.raises(Invalid, match="invalid") as caught:
        read_folder(tmp_path)
    assert "etc" in caught.value.fields["file"]


def test_a_named_pipe_is_no_page(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("a")
    os.mkfifo(tmp_path / "b.md")
    assert [page.title for page in read_folder(tmp_path)] == ["a"]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"\xff\xfe", "UTF-8"),
        (b"nul \x00", "cannot be stored"),
        (b"x" * 1_000_001, "1,000,000"),
        (b"x" * 3_000_000, "1,000,000"),
        (b"---\ntitle: " + b"t" * 301 + b"\n---\n# Heading\n", "300"),
        (b"---\ntitle: \xe2\x80\x8b\n---\n# Heading\n", "Enter a title"),
        (b"---\ntitle: a: b\n---\n", "YAML"),
        (b"---\ntitle: " + b"[" * 5_000 + b"\n---\n", "YAML"),
        (b'---\ntitle: "a\\0b"\n---\n', "cannot be stored"),
    ],
)
def test_a_page_that_cannot_be_kept_is_refused_by_its_name(data: bytes, told: str) -> None:
    message = _file_field(refusal(zipped({"good.md": "x", "sub/bad.md": data})))
    assert "sub/bad.md" in message
    assert told in message


@pytest.mark.parametrize("data", [b"", b"PK", b"no zip", b"PK\x03\x04" + b"x" * 100, b"PK\x05\x06" + b"\xff" * 18])
def test_what_is_no_zip_file_is_of_the_wrong_type(data: bytes) -> None:
    assert isinstance(refusal(io.BytesIO(data)), WrongType)


def test_a_zip_file_without_pages_is_refused() -> None:
    assert "no Markdown" in _file_field(refusal(zipped({"a.txt": "x", "SUMMARY.md": "# only this"})))


def test_encryption_is_told(tmp_path: Path) -> None:
    data = bytearray(zipped({"secret.md": "x"}).read())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    assert "password" in _file_field(refusal(io.BytesIO(bytes(data))))


def test_damage_is_told() -> None:
    data = bytearray(zipped({"a.md": os.urandom(5000).hex()}).read())
    data[200:260] = b"\0" * 60
    assert "damaged" in _file_field(refusal(io.BytesIO(bytes(data))))


def test_the_same_name_twice_is_refused() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, pytest.warns(UserWarning):
        archive.writestr("a.md", "1")
        archive.writestr("a.md", "2")
    assert "twice" in _file_field(refusal(file))


def test_too_many_pages_are_refused() -> None:
    error = refusal(zipped({f"{number}.md": "" for number in range(5_001)}, zipfile.ZIP_STORED))
    assert isinstance(error, TooLarge)
    assert error.code == "import_pages"


def test_what_is_unpacked_is_counted_whatever_the_header_says() -> None:
    page = b"a" * 900_000
    files: dict[str, bytes | str] = {f"{number}.md": page for number in range(223)}
    data = bytearray(zipped(files).read())
    at = -1
    while (at := data.find(b"PK\x01\x02", at + 1)) >= 0:
        data[at + 24 : at + 28] = struct.pack("<I", 10)
    error = refusal(io.BytesIO(bytes(data)))
    # A header that lies is found out as damage; an honest one as too much.
    assert "damaged" in _file_field(error)
    honest = refusal(zipped(files))
    assert isinstance(honest, TooLarge)
    assert honest.code == "import_size"


def test_an_endless_list_of_entries_is_not_read() -> None:
    data = zipped({"a.md": "x"}).read()
    end = data.index(b"PK\x05\x06")
    count = 100_000
    listed = data[data.index(b"PK\x01\x02") : end] * count
    tail = bytearray(data[end:])
    tail[12:16] = struct.pack("<I", len(listed))
    error = refusal(io.BytesIO(data[: data.index(b"PK\x01\x02")] + listed + bytes(tail)))
    assert isinstance(error, Refusal)


@given(st.binary(max_size=300), st.integers(0, 400))
def test_any_damage_is_a_refusal_and_nothing_worse(noise: bytes, at: int) -> None:
    data = zipped({"a.md": "# A\n" * 20, "b.md": "---\ntitle: B\n---\n"}).read()
    with contextlib.suppress(Refusal):
        list(read_zip(io.BytesIO(data[:at] + noise + data[at + len(noise) :])))


@given(st.text())
def test_any_text_is_a_page_or_a_refusal(whole: str) -> None:
    try:
        (page,) = read_zip(zipped({"a.md": whole.encode("utf-8", "surrogatepass")}))
    except Invalid:
        return
    assert 1 <= len(page.title) <= 300


def test_an_imported_course_has_its_pages_in_order(database: Database, team: Team) -> None:
    sources = [PageSource(f"Page {number}", f"body {number}\n", f"{number}.md") for number in range(1_203)]
    with database.transaction() as session:
        course_id, pages = import_course(session, team.workspace.id, "Big", iter(sources), team.actor, "big.zip")
    with database.transaction() as session:
        listed = course.list_pages(session, course_id, limit=2_000)
    assert pages == 1_203
    assert [page.title for page in listed] == [source.title for source in sources]
    assert [page.position for page in listed] == list(range(1, 1_204))
    event = row(database, "select action, target_name, changes from audit.event")
    assert event == ("course.imported", "Big", {"pages": 1_203, "source": "big.zip"})


def test_a_refused_import_leaves_nothing_behind(
    database: Database, team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "BATCH_PAGES", 2)
    file = zipped({**{f"{number}.md": "x" for number in range(9)}, "z.md": b"\xff"})
    with pytest.raises(Invalid), database.transaction() as session:
        import_course(session, team.workspace.id, "Bad", read_zip(file), team.actor)
    for table in ("hub.course", "hub.page", "audit.event"):
        assert rows(database, f"select from {table}") == []


@pytest.mark.parametrize(("name", "pages"), [("rust-book", 111), ("git-novice", 17)])
def test_real_courses_are_imported_byte_for_byte(
    database: Database, team: Team, test_data: Path, name: str, pages: int
) -> None:
    folder = test_data / "courses" / name
    with database.transaction() as session:
        course_id, count = import_course(session, team.workspace.id, name, read_folder(folder), team.actor, name)
    assert count == pages
    sources = {source.path: source for source in read_folder(folder)}
    stored = rows(database, "select title, body from hub.page where course_id = :id order by position", id=course_id)
    assert [(page.title, page.body) for page in stored] == [(source.title, source.body) for source in sources.values()]
    for path, source in sources.items():
        whole = (folder / path).read_bytes().replace(b"\r\n", b"\n")
        assert whole.endswith(source.body.encode())
        assert source.body.encode() == whole or whole.startswith(b"---\n")


def _file_field(error: Refusal) -> str:
    assert isinstance(error, Invalid)
    return error.fields["file"]
