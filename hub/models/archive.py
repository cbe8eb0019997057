"""The file format of backups, `hub-backup` version 1: how one is written and how one is read, in bounded memory.

A zip file (Zip64) of ``data/<table>.jsonl`` (one JSON object a line), ``files/<2 digits>/<sha256>``, ``README.txt``,
and ``manifest.json`` as its last entry, which tells size, SHA-256 and number of rows of every other entry. Order and
times of entries are fixed. The zip's comment is the SHA-256, in hexadecimal, of all bytes before it, so that a file can
be checked by itself wherever it has been carried.

What is read may come from anybody: nothing in it is believed before it is compared, nothing is unpacked to a path, and
only entries of the names above are looked at.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import IO, Annotated, Any, Literal
from uuid import UUID

import pydantic

FORMAT = "hub-backup"
VERSION = 1
README = "README.txt"
MANIFEST = "manifest.json"
NAMES = re.compile(r"README\.txt|manifest\.json|data/[a-z_]{1,40}\.jsonl|files/[0-9a-f]{2}/[0-9a-f]{64}")
# A record is one line: a body of 1 MB may need six bytes for each of its own, and there is a little beside it.
MAX_LINE = 8_000_000
MAX_MANIFEST = 32_000_000
MAX_README = 100_000
# Bytes of a zip file's list of entries, which is read in one piece.
MAX_DIRECTORY = 32_000_000
# What is read or written at once, about.
PIECE = 256 * 1024
SUM = 64

# Every entry is made at the same moment, so that equal contents make equal bytes.
_MOMENT = (1980, 1, 1, 0, 0, 0)
_WHAT_ZIPFILE_RAISES = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    NotImplementedError,
    RuntimeError,
    ValueError,
    EOFError,
    KeyError,
    IndexError,
    OverflowError,
)


# Near the ends of the calendar a time cannot be told in every zone, so nobody could be shown it.
Moment = Annotated[
    pydantic.AwareDatetime,
    pydantic.Field(ge=datetime(1900, 1, 1, tzinfo=UTC), lt=datetime(9999, 1, 1, tzinfo=UTC)),
]


class Unreadable(Exception):
    """A file is no backup that can be used. `code`: see ``backup.unreadable.<code>`` in hub.words; `entry`: where."""

    def __init__(self, code: str, entry: str | None = None) -> None:
        super().__init__(f"{code}: {entry or 'the archive'}")
        self.code = code
        self.entry = entry


@dataclass(frozen=True)
class Entry:
    """One entry as the manifest tells of it: `bytes` unpacked; `rows` of a table only."""

    path: str
    bytes: int
    sha256: str
    rows: int | None


class Manifest(pydantic.BaseModel):
    """What the manifest must hold; more is passed over."""

    model_config = pydantic.ConfigDict(strict=True)

    format: Literal["hub-backup"]
    format_version: int
    app_version: str
    schema_revision: int
    created_at: Moment
    workspace: WorkspaceName
    entries: list[Entry] = pydantic.Field(max_length=100_000)
    counts: dict[str, int]
    excluded: list[dict[str, str]]


class WorkspaceName(pydantic.BaseModel):
    """Which workspace a backup is of."""

    id: Annotated[UUID, pydantic.Field(strict=False)]
    slug: str
    name: str


# Writing


class Writer:
    """Makes an archive, whose bytes the methods give as they come. `size` and `sha256` are of what was given so far."""

    def __init__(self) -> None:
        self._sink = _Sink()
        self._zip = zipfile.ZipFile(self._sink, "w", zipfile.ZIP_DEFLATED, allowZip64=True)  # type: ignore[call-overload]
        self.entries: list[Entry] = []

    @property
    def size(self) -> int:
        """Bytes of the archive so far."""
        return self._sink.size

    @property
    def sha256(self) -> str:
        """The SHA-256 of the archive so far, in hexadecimal."""
        return self._sink.hash.hexdigest()

    def table(self, name: str, rows: Iterable[bytes]) -> Iterator[bytes]:
        """Write a table from its rows, each a JSON object without line ends."""
        yield from self._entry(f"data/{name}.jsonl", _lines(rows))

    def file(self, digest: str, pieces: Iterable[bytes], *, packed: bool) -> Iterator[bytes]:
        """Write a file under its SHA-256. `packed`: it is compressed already, so it is stored as it is."""
        method = zipfile.ZIP_STORED if packed else zipfile.ZIP_DEFLATED
        yield from self._entry(_path_of(digest), ((piece, None) for piece in pieces), method)

    def readme(self, text: str) -> Iterator[bytes]:
        """Write what a person reads who opens the archive."""
        yield from self._entry(README, [(text.encode(), None)])

    def finish(self, told: dict[str, Any]) -> Iterator[bytes]:
        """Write the manifest, with what is `told` beside the entries, and the end of the archive."""
        manifest = told | {
            "format": FORMAT,
            "format_version": VERSION,
            "entries": [asdict(entry) for entry in self.entries],
        }
        text = json.dumps(manifest, sort_keys=True, ensure_ascii=False, indent=1)
        yield from self._entry(MANIFEST, [(text.encode(), None)])
        self._zip.comment = b"0" * SUM
        self._zip.close()
        self._sink.sign()
        yield self._sink.take()

    def _entry(
        self, path: str, pieces: Iterable[tuple[bytes, int | None]], method: int = zipfile.ZIP_DEFLATED
    ) -> Iterator[bytes]:
        info = zipfile.ZipInfo(path, _MOMENT)
        info.compress_type = method
        info.external_attr = 0o644 << 16
        size, digest, rows = 0, hashlib.sha256(), None
        with self._zip.open(info, "w", force_zip64=True) as entry:
            for piece, count in pieces:
                entry.write(piece)
                digest.update(piece)
                size += len(piece)
                rows = rows if count is None else (rows or 0) + count
                if self._sink.waiting >= PIECE:
                    yield self._sink.take()
        if path.startswith("data/"):
            rows = rows or 0
        self.entries.append(Entry(path, size, digest.hexdigest(), rows))
        yield self._sink.take()


def _shown(name: str) -> str:
    """A name out of a file that may come from anybody, for logs, terminals and pages, which it must not command."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in name[:200]
    )


def _path_of(digest: str) -> str:
    return f"files/{digest[:2]}/{digest}"


class _Sink:
    """Takes what zipfile writes and holds it until it is taken. It cannot seek, so nothing is ever written twice."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.waiting = 0
        self.size = 0
        self.hash = hashlib.sha256()

    def write(self, piece: bytes) -> int:
        self._pieces.append(bytes(piece))
        self.waiting += len(piece)
        return len(piece)

    def flush(self) -> None:
        """There is nothing to flush."""

    def take(self) -> bytes:
        """What waits, counted and hashed."""
        taken = b"".join(self._pieces)
        self._pieces.clear()
        self.waiting = 0
        self.size += len(taken)
        self.hash.update(taken)
        return taken

    def sign(self) -> None:
        """Put the hash of everything before it in the place of the comment, which waits at the end."""
        waiting = b"".join(self._pieces)[:-SUM]
        before = self.hash.copy()
        before.update(waiting)
        self._pieces = [waiting, before.hexdigest().encode()]


def _lines(rows: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Rows as lines, several in one piece, with their number."""
    waiting: list[bytes] = []
    size = 0
    for row in rows:
        waiting.append(row)
        size += len(row)
        if size >= PIECE // 4:
            waiting.append(b"")
            yield b"\n".join(waiting), len(waiting) - 1
            waiting.clear()
            size = 0
    if waiting:
        waiting.append(b"")
        yield b"\n".join(waiting), len(waiting) - 1


# Reading


class Archive:
    """A file that says it is a backup. Opening it compares names, sizes and versions, and reads the manifest.

    Raises Unreadable here and wherever it is read. `file` can seek, and stays the caller's to close.
    """

    def __init__(self, file: IO[bytes]) -> None:
        try:
            self._zip = zipfile.ZipFile(_Bounded(file))
        except _WHAT_ZIPFILE_RAISES as error:
            raise Unreadable("not_an_archive") from error
        self._infos = self._names()
        self.manifest = self._read_manifest()
        self._entries = self._compare()

    def tables(self) -> list[str]:
        """The names of the tables in it, in its order."""
        return [entry.path[5:-6] for entry in self._entries.values() if entry.path.startswith("data/")]

    def files(self) -> list[str]:
        """The paths of the files in it."""
        return [path for path in self._entries if path.startswith("files/")]

    def rows(self, table: str) -> Iterator[bytes]:
        """The rows of a table as JSON. At the end they are compared with the manifest: only then were they right."""
        path = f"data/{table}.jsonl"
        if path not in self._entries:
            raise Unreadable("missing_part", path)
        rest = b""
        for piece in self._pieces(self._entries[path]):
            lines = (rest + piece).split(b"\n")
            rest = lines.pop()
            if len(rest) > MAX_LINE:
                raise Unreadable("long_record", path)
            yield from lines
        if rest:
            raise Unreadable("counts", path)

    def check(self, moved: Callable[[int], None] = lambda rows: None) -> None:
        """Read every entry and compare it with the manifest; `moved` is told of each further number of rows."""
        for entry in self._entries.values():
            longest = 0
            for piece in self._pieces(entry):
                if entry.rows is not None:
                    last = piece.rfind(b"\n")
                    longest = longest + len(piece) if last < 0 else len(piece) - last - 1
                    if longest > MAX_LINE:
                        raise Unreadable("long_record", entry.path)
                moved(piece.count(b"\n") if entry.rows is not None else 0)
            if longest:
                raise Unreadable("counts", entry.path)

    def _names(self) -> dict[str, zipfile.ZipInfo]:
        infos: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            # What zipfile makes of a name is not what stands in the file: it cuts it at NUL and turns separators.
            shown = _shown(info.orig_filename)
            if not NAMES.fullmatch(info.orig_filename) or info.filename != info.orig_filename:
                raise Unreadable("name", shown)
            if info.filename in infos:
                raise Unreadable("twice", shown)
            if info.flag_bits & 0x1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise Unreadable("structure", shown)
            infos[info.filename] = info
        return infos

    def _read_manifest(self) -> Manifest:
        info = self._infos.get(MANIFEST)
        if info is None:
            raise Unreadable("not_an_archive")
        text = b"".join(self._unpacked(MANIFEST, MAX_MANIFEST))
        try:
            raw = json.loads(text)
            version = raw.get("format_version")
            if raw.get("format") == FORMAT and isinstance(version, int) and version > VERSION:
                raise Unreadable("newer", MANIFEST)
            return Manifest.model_validate_json(text)
        except (ValueError, AttributeError, RecursionError) as error:
            raise Unreadable("manifest", MANIFEST) from error

    def _compare(self) -> dict[str, Entry]:
        entries = {entry.path: entry for entry in self.manifest.entries}
        if len(entries) != len(self.manifest.entries):
            raise Unreadable("manifest", MANIFEST)
        for path in entries.keys() - self._infos.keys():
            raise Unreadable("missing_part", _shown(path))
        for path in self._infos.keys() - entries.keys() - {MANIFEST}:
            raise Unreadable("unknown_part", path)
        for path, entry in entries.items():
            if self._infos[path].file_size != entry.bytes:
                raise Unreadable("damaged", path)
            if path.startswith("files/") and path != _path_of(entry.sha256):
                raise Unreadable("manifest", path)
            if path.startswith("data/") != (entry.rows is not None) or (path == README and entry.bytes > MAX_README):
                raise Unreadable("manifest", MANIFEST)
        counts = {entry.path[5:-6]: entry.rows for entry in entries.values() if entry.rows is not None}
        if counts != self.manifest.counts:
            raise Unreadable("counts", MANIFEST)
        return entries

    def _pieces(self, entry: Entry) -> Iterator[bytes]:
        """An entry unpacked, and then compared with the manifest."""
        digest, size, rows = hashlib.sha256(), 0, 0
        for piece in self._unpacked(entry.path, entry.bytes):
            digest.update(piece)
            size += len(piece)
            rows += piece.count(b"\n")
            yield piece
        if size != entry.bytes or digest.hexdigest() != entry.sha256:
            raise Unreadable("damaged", entry.path)
        if entry.rows is not None and rows != entry.rows:
            raise Unreadable("counts", entry.path)

    def _unpacked(self, path: str, most: int) -> Iterator[bytes]:
        """An entry unpacked, never more than `most` bytes of it, whatever it says of itself."""
        left = most
        try:
            with self._zip.open(self._infos[path]) as entry:
                while piece := entry.read(PIECE):
                    left -= len(piece)
                    if left < 0:
                        raise Unreadable("damaged", path)
                    yield piece
        except _WHAT_ZIPFILE_RAISES as error:
            raise Unreadable("damaged", path) from error


class _Bounded:
    """A file from which nobody reads much at once: zipfile reads the list of entries in one piece, however long."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek = file.seek
        self.tell = file.tell
        self.seekable = file.seekable

    def read(self, size: int = -1) -> bytes:
        """As of a file. Raises zipfile.BadZipFile for too much."""
        data = self._file.read(MAX_DIRECTORY + 1 if size < 0 else min(size, MAX_DIRECTORY + 1))
        if len(data) > MAX_DIRECTORY:
            raise zipfile.BadZipFile("too much at once")
        return data


def check(file: IO[bytes], sha256: str | None = None, moved: Callable[[int], None] = lambda rows: None) -> Manifest:
    """Read a whole backup and compare everything with everything; returns its manifest. Raises Unreadable.

    sha256: of the whole file, if it is known. `moved` is called all along with the number of rows read since. The first
    entry that is not as it was is named; where none is, and yet the file is not as it was written, the archive's own
    structure is damaged.
    """
    whole = _is_whole(file, sha256, moved)
    file.seek(0)
    try:
        archive = Archive(file)
        archive.check(moved)
    except Unreadable as error:
        if whole or error.code in ("damaged", "newer") or (error.code == "not_an_archive" and not _was_one(file)):
            raise
        # A name that Hub does not give is what the damage has made of one: it says nothing to anybody.
        named = error.entry is not None and NAMES.fullmatch(error.entry)
        raise Unreadable("structure", error.entry if named else None) from error
    if not whole:
        raise Unreadable("structure")
    return archive.manifest


def _is_whole(file: IO[bytes], sha256: str | None, moved: Callable[[int], None]) -> bool:
    """Whether the file is as it was written, by the hash at its end and by the one that is known."""
    size = file.seek(0, 2)
    if size < SUM:
        return False
    file.seek(0)
    before = hashlib.sha256()
    left = size - SUM
    while left and (piece := file.read(min(PIECE * 4, left))):
        before.update(piece)
        left -= len(piece)
        moved(0)
    end = file.read(SUM)
    whole = before.copy()
    whole.update(end)
    return before.hexdigest().encode() == end and sha256 in (None, whole.hexdigest())


def _was_one(file: IO[bytes]) -> bool:
    """Whether a file begins or ends as backups do, so that it was one, whatever became of it."""
    size = file.seek(0, 2)
    file.seek(max(0, size - SUM))
    signed = re.fullmatch(rb"[0-9a-f]{64}", file.read(SUM)) is not None
    file.seek(0)
    return signed or file.read(30 + len(README))[30:] == README.encode()
