"""Courses from folders and zip files of Markdown.

Pages are read one at a time, so that a course of 200 MB is never held at once. Whatever is wrong refuses the import as
a whole, naming the file: the caller's transaction then leaves nothing behind.

Order: the links of SUMMARY.md, then file names, numbers in them compared as numbers. Title: the front matter's, else
the first heading if it can be one, else the file's name. Front matter is no part of the body.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
import tempfile
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

import yaml
from markdown_it import MarkdownIt
from sqlalchemy import text
from sqlalchemy.orm import Session

from hub import words
from hub.errors import Invalid, TooLarge, WrongType
from hub.models import audit, content
from hub.models.base import new_id
from hub.models.course import Course

MAX_PAGES = 5_000
# Bytes of all Markdown files together, counted while they are read.
MAX_UNPACKED = 200_000_000
MAX_FRONT_MATTER = 8_000
# Bytes of a zip file's list of entries: more than 50,000 of them.
MAX_DIRECTORY = 8_000_000
# Characters of a body in which its first heading is looked for, and of a heading that are looked at; a title has far
# fewer. Whatever 200 MB hold, looking for their headings takes seconds.
MAX_TOP = 4_000
MAX_HEADING = 500
SUFFIXES = (".md", ".markdown")
SUMMARY = "summary.md"
# Pages that go to the database in one statement: at most so many, of at most so many characters together.
BATCH_PAGES = 500
BATCH_SIZE = 4_000_000

# These loaders make nothing but texts, lists and mappings. libyaml's is ten times as fast, but not in every build.
_YAML: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


@dataclass(frozen=True)
class PageSource:
    """A page as it was found: `path` is its name within the folder or zip file."""

    title: str
    body: str
    path: str


def import_course(
    session: Session,
    workspace_id: uuid.UUID,
    title: object,
    sources: Iterable[PageSource],
    actor: audit.Actor,
    source: str = "",
) -> tuple[uuid.UUID, int]:
    """Make a course of `sources` in their order; returns its id and how many pages it has.

    `source` names the folder or file for the audit trail. Raises Invalid, TooLarge, WrongType.
    """
    course = Course(id=new_id(), workspace_id=workspace_id, title=content.title(title), updated_by=actor.name)
    session.add(course)
    session.flush()
    pages = 0
    for batch in _batches(sources):
        session.execute(
            _INSERT_PAGES,
            {
                "course": course.id,
                "first": pages + 1,
                "ids": [new_id() for _ in batch],
                "titles": [page.title for page in batch],
                "bodies": [page.body for page in batch],
                "by": actor.name,
            },
        )
        pages += len(batch)
    audit.record(
        session,
        "course.imported",
        actor=actor,
        workspace_id=workspace_id,
        target_id=course.id,
        target_name=course.title,
        changes={"pages": pages, "source": _storable(source)},
    )
    return course.id, pages


@contextmanager
def spooled(sources: Iterable[PageSource]) -> Iterator[Iterator[PageSource]]:
    """The pages of `sources`, all read and checked beforehand: a transaction can then take them in without waiting.

    Their bodies wait in a file that goes with the block. Raises what reading `sources` raises.
    """
    with tempfile.TemporaryFile() as file:
        found: list[tuple[str, str, int]] = []
        for page in sources:
            found.append((page.title, page.path, file.write(page.body.encode())))
        file.seek(0)
        yield (PageSource(title, file.read(size).decode(), path) for title, path, size in found)


def read_folder(folder: Path) -> Iterator[PageSource]:
    """The pages of a folder and the folders in it. Hidden files and files of other types are passed over.

    Raises Invalid for a symbolic link, which could lead out of the folder, and as `read_zip` does.
    """
    if not folder.is_dir():
        raise _refused("no_folder", folder.name)
    files: dict[str, Path] = {}
    for parent, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        for name in [*folders, *names]:
            path = Path(parent, name)
            relative = path.relative_to(folder).as_posix()
            if _is_hidden(relative):
                continue
            if path.is_symlink():
                raise _refused("link", relative)
            if _is_markdown(name) and path.is_file():
                files[relative] = path
    return _read_pages(list(files), lambda name: files[name].open("rb"))


def read_zip(file: IO[bytes]) -> Iterator[PageSource]:
    """The pages of a zip file. What is inside it and no Markdown file, another zip file too, is never unpacked.

    `file` can seek, and stays open until the last page is read. Raises WrongType if it is no zip file; TooLarge for too
    many pages or too much text; Invalid, naming the file in it, for names that lead out of it, links, encryption,
    damage, and text that is not UTF-8 or too long.
    """
    try:
        archive = zipfile.ZipFile(_Bounded(file))
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
        raise WrongType("not_a_zip") from error
    entries: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        name = entry.filename.replace("\\", "/")
        _refuse_outside(name)
        name = posixpath.normpath(name)
        if entry.is_dir() or _is_hidden(name):
            continue
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise _refused("link", name)
        if not _is_markdown(name):
            continue
        if entry.flag_bits & 0x1:
            raise _refused("encrypted", name)
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            # The others' readers take as much memory as the file asks for.
            raise _refused("damaged", name)
        if name in entries:
            raise _refused("twice", name)
        entries[name] = entry
    return _read_pages(list(entries), lambda name: archive.open(entries[name]))


def _read_pages(names: list[str], open_file: Callable[[str], IO[bytes]]) -> Iterator[PageSource]:
    """Pages in their order; `open_file` opens a file by its name."""
    budget = _Budget()
    summary = min((name for name in names if _is_summary(name)), key=lambda name: (name.count("/"), name), default=None)
    pages = [name for name in names if name != summary]
    if not pages:
        raise _refused("no_pages")
    if len(pages) > MAX_PAGES:
        raise TooLarge("import_pages", most=MAX_PAGES)
    pages.sort(key=_natural)
    if summary is not None:
        pages = _order_of_summary(summary, budget.read(summary, open_file), pages)
    for name in pages:
        yield _page(name, budget.read(name, open_file))


class _Bounded:
    """A file from which nobody reads much at once: zipfile reads the list of entries in one piece, however long."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if size > MAX_DIRECTORY:
            raise TooLarge("import_entries")
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@dataclass
class _Budget:
    """Reads files as text while counting what comes out of them: a header's word is not taken for it."""

    left: int = MAX_UNPACKED

    def read(self, name: str, open_file: Callable[[str], IO[bytes]]) -> str:
        # One byte more than allowed tells that there is too much, however much there is.
        most = min(content.MAX_BODY + MAX_FRONT_MATTER, self.left)
        try:
            with open_file(name) as file:
                data = file.read(most + 1)
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            NotImplementedError,
            RuntimeError,
            OSError,
            ValueError,
        ) as error:
            raise _refused("damaged", name) from error
        if len(data) > self.left:
            raise TooLarge("import_size", most=MAX_UNPACKED)
        if len(data) > most:
            raise _refused("page_large", name, most=content.MAX_BODY)
        self.left -= len(data)
        try:
            return content.line_ends(data.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise _refused("not_utf8", name) from error


def _page(name: str, whole: str) -> PageSource:
    front, body = _split_front_matter(name, whole)
    title = _front_title(front) or _usable(_first_heading(body[:MAX_TOP])) or _stem(name)
    try:
        return PageSource(content.title(" ".join(title.split())), content.body(body), name)
    except Invalid as error:
        reason = next(iter(error.fields.values()))
        raise _refused("page", name, reason=reason) from error


def _split_front_matter(name: str, whole: str) -> tuple[dict[Any, Any], str]:
    """The front matter's fields and what follows it. A first line of dashes may also be a mere rule."""
    match = _FRONT_MATTER.match(whole[:MAX_FRONT_MATTER])
    if match is None:
        return {}, whole
    try:
        fields = yaml.load(match["yaml"], _YAML)
    except (yaml.YAMLError, RecursionError) as error:
        raise _refused("front_matter", name) from error
    if not isinstance(fields, dict):
        return {}, whole
    return fields, whole[match.end() :]


def _front_title(fields: dict[Any, Any]) -> str:
    title = fields.get("title")
    return title if isinstance(title, str) else ""


def _usable(heading: str) -> str:
    """The heading, if it can be a title: one of many words may be good text all the same."""
    try:
        return content.title(heading)
    except Invalid:
        return ""


def _stem(name: str) -> str:
    return posixpath.splitext(posixpath.basename(name))[0]


def _first_heading(body: str) -> str:
    """The text of the first heading outside code, without its markup; empty if there is none."""
    fence = ""
    previous = ""
    for line in body.split("\n"):
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""
        elif not fence:
            heading = _heading(line[:MAX_HEADING])
            if heading:
                return _without_markup(heading)
            if previous.strip() and _UNDERLINE.match(line):
                return _without_markup(previous.strip()[:MAX_HEADING])
        previous = line if not fence and not mark else ""
    return ""


def _heading(line: str) -> str:
    """The text after the number signs of an ATX heading; empty if it is none."""
    if len(line) - len(line.lstrip(" ")) > 3:
        return ""
    signs, _, text = line.strip().replace("\t", " ").partition(" ")
    if not 1 <= len(signs) <= 6 or signs.strip("#"):
        return ""
    bare = text.rstrip("#")
    return (bare if not bare or bare[-1] == " " else text).strip()


def _without_markup(line: str) -> str:
    parts = [
        part.content
        for token in _MARKDOWN.parseInline(_HEADING_ID.sub("", line))
        for part in token.children or []
        if part.type in ("text", "code_inline")
    ]
    return " ".join("".join(parts).split())


def _order_of_summary(summary: str, whole: str, pages: list[str]) -> list[str]:
    """`pages` in the order in which SUMMARY.md links to them; those it does not name follow as they are."""
    folder = posixpath.dirname(summary)
    known = set(pages)
    ordered: dict[str, None] = {}
    # The parser's time grows with the square of unclosed brackets; this scan's does not.
    for angled, bare in dict.fromkeys(_LINK.findall(whole)):
        path = posixpath.normpath(posixpath.join(folder, unquote(re.split("[?#]", angled or bare)[0])))
        if path in known:
            ordered.setdefault(path)
    return [*ordered, *(page for page in pages if page not in ordered)]


def _refuse_outside(name: str) -> None:
    if name.startswith("/") or re.match("[A-Za-z]:", name) or ".." in name.split("/") or "\0" in name:
        raise _refused("outside", name)


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))


def _is_markdown(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def _is_summary(name: str) -> bool:
    return posixpath.basename(name).lower() == SUMMARY


def _natural(name: str) -> list[tuple[int, int, str]]:
    """A sort key in which ``page2`` comes before ``page10``."""
    parts = re.split("([0-9]{1,18})", name)
    return [(0, int(part), "") if index % 2 else (1, 0, part) for index, part in enumerate(parts)] + [(0, 0, name)]


def _batches(sources: Iterable[PageSource]) -> Iterator[list[PageSource]]:
    batch: list[PageSource] = []
    size = 0
    for source in sources:
        batch.append(source)
        size += len(source.body)
        if len(batch) == BATCH_PAGES or size > BATCH_SIZE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _refused(problem: str, name: str = "", **values: Any) -> Invalid:
    return Invalid({"file": words.say(f"import.{problem}", name=_storable(name)[-200:], **values)})


def _storable(name: str) -> str:
    """A file's name without what neither a page nor the database can take."""
    return name.encode("utf-8", "replace").decode().replace("\0", "")


def _raise(error: OSError) -> None:
    raise error


_FRONT_MATTER = re.compile(r"---[ \t]*\n(?P<yaml>.*?)^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_UNDERLINE = re.compile(r" {0,3}(?:=+|-+)[ \t]*$")
_LINK = re.compile(r"\]\([ \t]*(?:<([^<>\n]*)>|((?:[^\s()<>]|\([^\s()<>]*\))*))")
_HEADING_ID = re.compile(r"\s*\{#[^}]*\}\s*$")
_MARKDOWN = MarkdownIt("commonmark")

_INSERT_PAGES = text("""
    insert into hub.page (id, course_id, position, title, body, updated_by)
    select page.id, :course, :first + page.number - 1, page.title, page.body, :by
    from unnest(cast(:ids as uuid[]), cast(:titles as text[]), cast(:bodies as text[])) with ordinality
        as page (id, title, body, number)
""")
