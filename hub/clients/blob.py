"""Where files are kept: a folder by default, an S3-compatible bucket by setting.

A key names a file; a file appears under its key whole or not at all. In a folder it is first written beside its place
(`Store.draft`), flushed to the disk, and renamed by `settle`; a bucket shows an upload only when it is complete, so
there draft and key are the same. Nothing here is kept in memory but the piece at hand.
"""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs, unquote, urlsplit

import obstore
from obstore import exceptions
from obstore.store import LocalStore, S3Store

from hub.config import Settings

# What is read at once, and what a folder is given at once.
PIECE = 1 << 20
# A bucket takes at most 10,000 parts for a file: 50 GB at this size, its smallest. Three are in memory at a time.
PART = 5 << 20
DRAFT = ".part"
# A file that is still being written, as the library calls it beside its key.
_STAGED = re.compile(r"#\d+$")


class BlobError(Exception):
    """The store did not do it. `code`: no_space, read_only, refused, missing, or away (which may pass)."""

    def __init__(self, code: str, told: str) -> None:
        super().__init__(f"{code}: {told}")
        self.code = code


class Store:
    """A folder or a bucket. Keys are relative paths of plain characters."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.folder: Path | None = None
        with _told():
            if parts.scheme == "s3":
                self._store: Any = _bucket(parts.netloc, parts.path.strip("/"), parse_qs(parts.query))
            else:
                self.folder = Path(unquote(parts.path)).absolute()
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._store = LocalStore(prefix=self.folder)

    def draft(self, key: str) -> str:
        """The key under which a file is to be written until it is settled."""
        return key if self.folder is None else key + DRAFT

    def write(self, key: str, pieces: Iterable[bytes]) -> None:
        """Write a file from its pieces. Whatever `pieces` raises passes, and then there is no file."""
        size = PART if self.folder is None else PIECE
        with _told():
            obstore.put(self._store, key, iter(pieces), use_multipart=True, chunk_size=size, max_concurrency=1)
            self._flush(key)

    def settle(self, draft: str, key: str) -> None:
        """Give a written file its lasting key."""
        if draft == key:
            return
        with _told():
            obstore.rename(self._store, draft, key)
            self._flush(Path(key).parent.as_posix())

    def size(self, key: str) -> int:
        """Bytes of a file. Raises BlobError("missing")."""
        with _told():
            return int(obstore.head(self._store, key)["size"])

    def read(self, key: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes of a file from `start`, before `end`, in pieces. Raises at once if there is no such file."""
        with _told():
            if end is None:
                found = obstore.get(self._store, key, options={"range": {"offset": start}} if start else None)
            else:
                found = obstore.get(self._store, key, options={"range": (start, end)})
        return self._pieces(found)

    def open(self, key: str) -> IO[bytes]:
        """A file to read from at any place; its size is as it was when it was opened."""
        # Each look into a bucket is a request.
        return io.BufferedReader(_Reader(self._store, key, self.size(key)), PIECE if self.folder else 4 * PIECE)

    def delete(self, key: str) -> None:
        """Remove a file; none is as good."""
        with _told():
            try:
                obstore.delete(self._store, key)
            except FileNotFoundError:
                return

    def keys(self, prefix: str) -> list[str]:
        """The keys below a prefix, of files that are still being written or were left so as well."""
        if self.folder is not None:
            below = self.folder / prefix
            return sorted(f"{prefix}/{path.name}" for path in below.iterdir()) if below.is_dir() else []
        with _told():
            return [str(found["path"]) for page in obstore.list(self._store, prefix) for found in page]

    def discard(self, key: str) -> None:
        """Remove what `keys` has told of, whatever it is."""
        if self.folder is None or not _STAGED.search(key):
            self.delete(key)
        else:
            with _told():
                (self.folder / key).unlink(missing_ok=True)

    def probe(self) -> str:
        """Write, read and remove a small file; returns where files are kept, for people. Raises BlobError."""
        key = f"probe-{os.getpid()}"
        try:
            self.write(key, [b"probe"])
            if b"".join(self.read(key)) != b"probe":
                raise BlobError("refused", "what was written is not what is read")
        finally:
            self.delete(key)
        return f"the folder {self.folder}" if self.folder else f"the bucket {self._store.config['bucket']}"

    def _pieces(self, found: Any) -> Iterator[bytes]:
        with _told():
            for piece in found.stream(min_chunk_size=PIECE):
                yield bytes(piece)

    def _flush(self, key: str) -> None:
        """Let a file, or a folder with its names, reach the disk: what is settled outlives a loss of power."""
        if self.folder is None:
            return
        file = os.open(self.folder / key, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


class _Reader(io.RawIOBase):
    """Random access to a file of a store."""

    def __init__(self, store: Any, key: str, size: int) -> None:
        self._store = store
        self._key = key
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, "negative position")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        with _told():
            piece = bytes(obstore.get_range(self._store, self._key, start=self._at, length=length))
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)


def open_store(settings: Settings) -> Store:
    """The store that the settings name. Raises BlobError if it cannot even be looked at."""
    return _open(settings.blob_url or f"file:{settings.data_dir.absolute() / 'blobs'}")


@lru_cache(maxsize=8)
def _open(url: str) -> Store:
    return Store(url)


def _bucket(name: str, prefix: str, query: dict[str, list[str]]) -> S3Store:
    """A bucket with keys, region and endpoint from the usual variables (AWS_…); the address may name the latter two."""
    endpoint = query.get("endpoint", [os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")])[0]
    region = query.get("region", [os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"])[
        0
    ]
    options: dict[str, Any] = {"region": region}
    if endpoint:
        options["endpoint"] = endpoint
    if prefix:
        options["prefix"] = prefix
    return S3Store(
        name,
        **options,
        client_options={
            "allow_http": bool(endpoint and endpoint.startswith("http://")),
            "connect_timeout": "5s",
            "timeout": "60s",
        },
        # A handler that waits here cannot be stopped, so it does not wait for long; its job is tried again.
        retry_config={"max_retries": 4, "retry_timeout": timedelta(seconds=30)},
    )


@contextmanager
def _told() -> Iterator[None]:
    """Turn the library's and the system's errors into BlobError; what else is raised in between passes."""
    try:
        yield
    except (exceptions.BaseError, OSError) as error:
        raise BlobError(_code(error), _first_line(error)) from error


# By number of the system's error.
_SYSTEM = {
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EFBIG: "no_space",
    errno.EROFS: "read_only",
    errno.EACCES: "read_only",
    errno.EPERM: "read_only",
    errno.ENOENT: "missing",
    errno.ENOTDIR: "refused",
    errno.ENAMETOOLONG: "refused",
}


def _code(error: BaseException) -> str:
    text = str(error)
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (said := re.search(r"\(os error (\d+)\)", text)):
        number = int(said[1])
    if number in _SYSTEM:
        return _SYSTEM[number]
    if re.search(r"QuotaExceeded|StorageFull|507 Insufficient", text):
        return "no_space"
    if isinstance(error, FileNotFoundError):
        # A bucket that is not there would never take anything.
        return "refused" if "NoSuchBucket" in text else "missing"
    if isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)):
        return "refused"
    if re.search(r"status code: 4(?!08|09|29)\d\d", text):
        return "refused"
    return "away"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
