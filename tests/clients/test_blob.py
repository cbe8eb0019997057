"""Where files are kept: a folder, and a bucket behind a real S3 API, behave alike."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hub import config
from hub.clients import blob
from hub.clients.blob import BlobError, Store
from tests.s3 import S3

MEGABYTE = 1 << 20


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return Store(f"file:{tmp_path}/blobs")
    return Store(request.getfixturevalue("s3").url)


def put(store: Store, key: str, content: bytes) -> None:
    """Write and settle a file."""
    store.write(store.draft(key), [content])
    store.settle(store.draft(key), key)


def pieces(count: int, fail: BaseException | None = None) -> Iterator[bytes]:
    """So many megabytes, and then an error."""
    for number in range(count):
        yield bytes([number]) * MEGABYTE
    if fail is not None:
        raise fail


def test_what_is_written_is_read_back(store: Store) -> None:
    content = os.urandom(3 * MEGABYTE + 17)
    put(store, "a/one", content)
    assert store.size("a/one") == len(content)
    assert b"".join(store.read("a/one")) == content
    assert store.keys("a") == ["a/one"]


def test_parts_of_a_file_are_read(store: Store) -> None:
    put(store, "a/one", b"0123456789")
    assert b"".join(store.read("a/one", 3)) == b"3456789"
    assert b"".join(store.read("a/one", 3, 5)) == b"34"
    assert b"".join(store.read("a/one", 9, 10)) == b"9"


def test_a_large_file_is_written_in_parts(store: Store) -> None:
    store.write("a/large", pieces(20))
    assert store.size("a/large") == 20 * MEGABYTE
    with store.open("a/large") as file:
        file.seek(19 * MEGABYTE - 1)
        assert file.read(2) == bytes([18, 19])


def test_a_zip_file_can_be_read_where_it_is(store: Store, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "made.zip", "w") as made:
        for number in range(5):
            made.writestr(f"{number}.txt", os.urandom(MEGABYTE // 2) + bytes([number]))
    put(store, "a/made.zip", (tmp_path / "made.zip").read_bytes())
    with store.open("a/made.zip") as file, zipfile.ZipFile(file) as read:
        assert [read.read(f"{number}.txt")[-1] for number in range(5)] == [0, 1, 2, 3, 4]


def test_a_probe_leaves_nothing_and_says_where_files_are(store: Store) -> None:
    assert store.probe().startswith(("the folder /", "the bucket backups"))
    assert store.keys("") == []


class Stop(BaseException):
    """Something that nobody but the caller knows."""


@pytest.mark.parametrize("megabytes", [0, 1, 12])
def test_what_is_not_finished_leaves_nothing_and_its_reason_passes(store: Store, megabytes: int) -> None:
    with pytest.raises(Stop):
        store.write("a/half", pieces(megabytes, Stop()))
    assert store.keys("a") == []
    with pytest.raises(BlobError, match="missing"):
        store.size("a/half")


def test_an_upload_that_is_given_up_is_aborted(s3: S3) -> None:
    with pytest.raises(Stop):
        Store(s3.url).write("a/half", pieces(20, Stop()))
    assert s3.names() == s3.unfinished() == []


def test_what_is_missing_is_said_to_be(store: Store) -> None:
    for look in (store.size, store.read, store.open):
        with pytest.raises(BlobError) as refused:
            look("a/nothing")
        assert refused.value.code == "missing"
    store.delete("a/nothing")


def test_deleting_removes_the_file_alone(store: Store) -> None:
    put(store, "a/one", b"1")
    put(store, "a/two", b"2")
    store.delete("a/one")
    assert store.keys("a") == ["a/two"]


def test_a_file_that_a_killed_process_left_half_written_can_be_found_and_removed(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom hub.clients.blob import Store\n"
        "def pieces():\n    yield b'x' * 5_000_000\n    os.kill(os.getpid(), 9)\n"
        "Store(sys.argv[1]).write('a/half.part', pieces())\n"
    )
    url = f"file:{tmp_path}/blobs"
    subprocess.run([sys.executable, "-c", program, url], check=False, cwd=Path.cwd())
    store = Store(url)
    left = store.keys("a")
    assert left and left != ["a/half.part"]
    for key in left:
        store.discard(key)
    assert store.keys("a") == []


def test_a_full_disk_is_told_and_earlier_files_stay(tiny: Path) -> None:
    store = Store(f"file:{tiny}")
    put(store, "a/one", b"1" * 1000)
    with pytest.raises(BlobError) as refused:
        store.write("a/two", pieces(5))
    assert refused.value.code == "no_space"
    assert store.keys("a") == ["a/one"]
    assert b"".join(store.read("a/one")) == b"1" * 1000


def test_a_read_only_disk_is_told(tiny: Path) -> None:
    store = Store(f"file:{tiny}")
    subprocess.run(["mount", "-o", "remount,ro", tiny], check=True)
    with pytest.raises(BlobError) as refused:
        store.write("a/one", pieces(1))
    assert refused.value.code == "read_only"


Refusal = tuple[str, int, str, int, str]
REFUSALS: list[Refusal] = [
    ("PUT", 403, "AccessDenied", 1, "refused"),
    ("PUT", 403, "QuotaExceeded", 1, "no_space"),
    ("POST", 403, "AccessDenied", 1, "refused"),
    ("POST", 401, "InvalidAccessKeyId", 0, "refused"),
]


@pytest.mark.parametrize(("method", "status", "code", "after", "told"), REFUSALS)
def test_a_refusal_half_way_is_told_and_leaves_nothing(
    s3: S3, method: str, status: int, code: str, after: int, told: str
) -> None:
    store = Store(s3.url)
    put(store, "a/one", b"1")
    s3.refuse(method, status, code, after)
    with pytest.raises(BlobError) as refused:
        store.write("a/two", pieces(30))
    assert refused.value.code == told
    s3.relent()
    assert s3.names() == ["hub/a/one"]
    assert s3.unfinished() == []


def test_a_bucket_that_is_not_there_is_a_refusal(s3: S3) -> None:
    with pytest.raises(BlobError) as refused:
        Store(s3.url.replace("backups", "other")).write("a/one", pieces(1))
    assert refused.value.code == "refused"


def test_a_store_that_does_not_answer_is_away(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(s3.url)
    s3.refuse("PUT", 503, "SlowDown")
    with pytest.raises(BlobError) as refused:
        store.write("a/one", pieces(1))
    assert refused.value.code == "away"


def test_endpoint_and_region_come_from_the_usual_variables_as_well(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    put(Store("s3://backups"), "a/one", b"1")
    assert s3.names() == ["a/one"]


def test_the_default_is_a_folder_beside_the_data_that_others_cannot_read(tmp_path: Path) -> None:
    settings = config.load({"HUB_DATA_DIR": str(tmp_path)})
    store = blob.open_store(settings)
    assert store.folder is not None and store.folder == settings.data_dir / "blobs"
    assert store.folder.stat().st_mode & 0o077 == 0
