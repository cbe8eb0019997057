import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from hub import postgres
from hub.postgres import PostgresError, Server, programs
from hub.postgres.account import Account, can_reach
from tests.processes import ROOT, Program, until


@pytest.fixture
def folder(open_folder: Path) -> Iterator[Path]:
    """Where the server of a test lives."""
    yield open_folder / "pg"
    postgres.destroy(open_folder / "pg")


@pytest.fixture
def start(folder: Path) -> Callable[..., Server]:
    def start(where: Path = folder, **options: bool) -> Server:
        return postgres.start(where, os.environ.get("HUB_PG_BIN"), fast=True, **options)

    return start


def write(server: Server, value: int) -> None:
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        connection.execute("create table if not exists kept (value int)")
        connection.execute("insert into kept values (%s)", [value])


def read(server: Server) -> list[int]:
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        return [value for (value,) in connection.execute("select value from kept order by value")]


def main_process(server: Server) -> int:
    return int((server.data / "postmaster.pid").read_text().split()[0])


def test_a_second_start_finds_the_running_server(start: Callable[..., Server]) -> None:
    first = start()
    write(first, 1)
    second = start()
    assert main_process(second) == main_process(first)
    assert read(second) == [1]


def test_what_was_written_is_there_after_stop_and_start(start: Callable[..., Server]) -> None:
    server = start()
    write(server, 1)
    server.stop()
    assert not server.alive()
    assert read(start()) == [1]


def test_stopping_a_stopped_server_is_no_error(start: Callable[..., Server]) -> None:
    server = start()
    server.stop()
    server.stop()


def test_processes_that_start_at_once_share_one_server(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from hub import postgres;"
        "s = postgres.start(Path(sys.argv[1]), sys.argv[2] or None, fast=True);"
        "print((s.data / 'postmaster.pid').read_text().split()[0])"
    )
    command = [sys.executable, "-c", code, str(folder), os.environ.get("HUB_PG_BIN", "")]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: subprocess.check_output(command, cwd=ROOT, text=True), range(4)))
    assert len(set(answers)) == 1


def test_a_killed_server_starts_again_with_its_data(start: Callable[..., Server]) -> None:
    server = start()
    write(server, 1)
    os.kill(main_process(server), signal.SIGKILL)
    until(lambda: not server.alive())
    server.restart()
    write(server, 2)
    assert read(server) == [1, 2]


@pytest.mark.parametrize("holder", ["this process", "a process that is gone"])
def test_a_lock_file_that_names_another_process_does_not_stop_the_start(
    start: Callable[..., Server], holder: str
) -> None:
    server = start()
    write(server, 1)
    lock = server.data / "postmaster.pid"
    left_behind = lock.read_bytes()
    server.stop()
    pid = os.getpid()
    if holder != "this process":
        gone = subprocess.Popen(["true"])
        gone.wait()
        pid = gone.pid
    lock.write_bytes(b"\n".join([str(pid).encode(), *left_behind.split(b"\n")[1:]]))
    shutil.copy(lock, server.socket_folder / ".s.PGSQL.5432.lock")
    for path in (lock, server.socket_folder / ".s.PGSQL.5432.lock"):
        os.chown(path, server.account.uid, server.account.gid)
    assert read(start()) == [1]


def test_a_cluster_that_was_half_made_is_made_anew(start: Callable[..., Server], folder: Path) -> None:
    (folder / "data.new" / "base").mkdir(parents=True)
    (folder / "data.new" / "PG_VERSION").write_text("18\n")
    write(start(), 1)


def test_a_path_too_long_for_a_socket_gets_its_socket_elsewhere(start: Callable[..., Server], folder: Path) -> None:
    long = folder.parent / ("long " * 20) / "pg"
    server = start(long)
    try:
        write(server, 1)
        assert not server.socket_folder.is_relative_to(long)
        assert server.socket_folder.stat().st_mode & 0o777 == 0o700
    finally:
        postgres.destroy(long)
    assert not server.socket_folder.exists()


def test_the_server_listens_on_no_port_and_lets_in_only_its_own_account(start: Callable[..., Server]) -> None:
    server = start()
    with psycopg.connect(server.admin_url) as connection:
        row = connection.execute("select current_setting('listen_addresses')").fetchone()
    assert row == ("",)
    assert server.socket_folder.stat().st_mode & 0o777 == 0o700
    assert server.data.stat().st_mode & 0o777 == 0o700


def test_data_of_another_major_version_are_refused_with_what_to_do(start: Callable[..., Server]) -> None:
    server = start()
    server.stop()
    version = server.data / "PG_VERSION"
    version.write_text("12\n")
    with pytest.raises(PostgresError, match="were made by PostgreSQL 12 .* HUB_PG_BIN"):
        start()


def test_a_folder_without_programs_is_refused_by_the_name_of_its_setting(folder: Path) -> None:
    with pytest.raises(PostgresError, match="HUB_PG_BIN: /nowhere does not hold"):
        postgres.start(folder, "/nowhere")


def test_a_folder_that_cannot_be_written_is_refused_by_its_name(folder: Path) -> None:
    folder.parent.joinpath("file").write_text("")
    with pytest.raises(PostgresError, match="folder .*file/pg cannot be used"):
        postgres.start(folder.parent / "file" / "pg")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_tied_server_ends_when_the_process_that_started_it_is_killed(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from hub import postgres;"
        "s = postgres.start(Path(sys.argv[1]), sys.argv[2] or None, fast=True, tied=True);"
        "print('started', flush=True); sys.stdin.read() or __import__('signal').pause()"
    )
    program = Program([sys.executable, "-c", code, folder, os.environ.get("HUB_PG_BIN", "")], {})
    program.await_line("started")
    assert postgres.existing(folder).alive()
    program.kill()
    until(lambda: not postgres.existing(folder).alive())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
class TestAsRoot:
    def test_the_server_runs_as_another_user(self, start: Callable[..., Server]) -> None:
        server = start()
        assert server.account.uid != 0
        assert os.stat(f"/proc/{main_process(server)}").st_uid == server.account.uid

    def test_a_folder_that_user_cannot_reach_is_left_closed_and_the_data_go_elsewhere(
        self, start: Callable[..., Server], folder: Path
    ) -> None:
        folder.parent.chmod(0o700)
        server = start()
        write(server, 1)
        assert not server.data.is_relative_to(folder)
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        server.stop()
        folder.parent.chmod(0o755)
        assert read(start()) == [1]

    def test_programs_that_user_cannot_reach_are_copied(
        self, start: Callable[..., Server], folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wheel = programs.wheel_folder()
        if wheel is None or os.environ.get("HUB_PG_BIN"):
            pytest.skip("needs the programs of the wheel")
        closed = folder.parent / "closed"
        closed.mkdir(mode=0o700)
        package = wheel.parent.parent
        for source in (package / "pginstall", package.with_name(f"{package.name}.libs")):
            target = closed / source.relative_to(package.parent)
            shutil.copytree(source, target, symlinks=True)
        monkeypatch.setattr(programs, "wheel_folder", lambda: closed / package.name / "pginstall" / "bin")
        server = start()
        write(server, 1)
        assert server.programs.is_relative_to(server.home)

    def test_a_cluster_of_an_ordinary_user_keeps_its_owner(self, folder: Path) -> None:
        code = "import sys, pathlib, hub.postgres; hub.postgres.start(pathlib.Path(sys.argv[1]), fast=True)"
        folder.mkdir()
        os.chown(folder, 65534, 65534)
        reachable = shutil.which("python3", path="/usr/bin")
        if reachable is None or not can_reach(ROOT, Account(65534, 65534)):
            pytest.skip("needs a checkout and a Python that an ordinary user can reach")
        site = next(path for path in sys.path if path.endswith("site-packages"))
        subprocess.run(
            [reachable, "-c", code, str(folder)],
            env={"PYTHONPATH": f"{ROOT}:{site}", "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
            cwd=ROOT,
            user=65534,
            group=65534,
            extra_groups=[],
            check=True,
        )
        server = postgres.start(folder, fast=True)
        assert server.account.uid == 65534
        write(server, 1)
