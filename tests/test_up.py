"""`hub up` as a person runs it: real processes, killed for real."""

import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from hub import postgres
from hub.postgres import Server
from tests.processes import ROOT, Program, free_port, until

PASSWORD = "a-demo-password-of-the-tests"


@pytest.fixture
def up(open_folder: Path) -> Iterator[Callable[..., Program]]:
    """Starts `hub up` on one data folder and one port."""
    data = open_folder / "var"
    fixed = {
        "HUB_DATA_DIR": str(data),
        "HUB_BIND": f"127.0.0.1:{free_port()}",
        "HUB_WEB_PROCESSES": "1",
        "HUB_STREAMS_PER_PROCESS": "50",
        "HUB_DEMO_PASSWORD": PASSWORD,
    }
    with ExitStack() as stack:

        def start(**settings: str) -> Program:
            program = Program([sys.executable, "-m", "hub", "up"], fixed | settings)
            stack.callback(program.close)
            return program

        yield start
    postgres.destroy(data / "pg")


@pytest.fixture
def running(up: Callable[..., Program]) -> Program:
    program = up()
    program.await_line("Ctrl-C stops it")
    return program


def database(open_folder: Path) -> Server:
    """The server that `hub up` runs, for looking at it."""
    return postgres.existing(open_folder / "var" / "pg")


def children(program: Program) -> dict[str, int]:
    """The child processes of `hub up` by what they run."""
    found = {}
    for pid in Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split():
        command = Path(f"/proc/{pid}/cmdline").read_text()
        name = next((name for name in ("gunicorn", "worker", "postgres") if name in command), None)
        if name:
            found[name] = int(pid)
    return found


def gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def address(program: Program) -> tuple[str, int]:
    found = re.search(r"http://(127\.0\.0\.1):(\d+)", program.await_line("Hub is ready"))
    assert found
    return found[1], int(found[2])


linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


@linux
def test_it_prints_how_to_sign_in_and_ctrl_c_ends_everything(running: Program) -> None:
    running.await_line(rf"admin@hub\.example\s+{PASSWORD}")
    socket.create_connection(address(running), timeout=10).close()
    processes = children(running)
    assert set(processes) == {"gunicorn", "worker", "postgres"}
    running.send(signal.SIGINT)
    assert running.wait() == 0
    assert all(gone(pid) for pid in processes.values())


@linux
def test_what_dies_is_started_again(running: Program, open_folder: Path) -> None:
    before = children(running)
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    until(lambda: len(now := children(running)) == 3 and not set(now.values()) & set(before.values()))
    until(lambda: database(open_folder).status() == "ready")
    with psycopg.connect(database(open_folder).url()) as connection:
        assert connection.execute("select count(*) > 0 from hub.person").fetchone() == (True,)
    assert running.terminate() == 0


@linux
def test_nothing_outlives_a_kill_and_the_next_start_goes_on(up: Callable[..., Program], running: Program) -> None:
    processes = children(running)
    running.kill()
    until(lambda: all(gone(pid) for pid in processes.values()))
    again = up()
    again.await_line("Ctrl-C stops it")
    assert again.terminate() == 0


def test_a_second_one_on_the_same_data_says_so(up: Callable[..., Program], running: Program) -> None:
    second = up(HUB_BIND=f"127.0.0.1:{free_port()}")
    assert second.wait() == 1
    assert re.fullmatch(rf"hub: Hub already runs on the data in .* \(process {running.pid}\): stop it.*", second.output)


def test_a_taken_port_is_named(up: Callable[..., Program]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        program = up(HUB_BIND=f"127.0.0.1:{port}")
        assert program.wait() == 1
    assert re.fullmatch(rf"hub: HUB_BIND: something already listens on 127\.0\.0\.1:{port}: stop it.*", program.output)


@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [
        ("HUB_DATA_DIR", f"{ROOT}/README.md", "hub: HUB_DATA_DIR: the folder .* cannot be written .*"),
        ("HUB_BIND", "127.0.0.1:99999", "hub: HUB_BIND: .*"),
        ("HUB_PG_BIN", "/nowhere", "hub: HUB_PG_BIN: /nowhere does not hold programs of PostgreSQL .*"),
        ("HUB_DATABASE_URL", "postgresql://hub_app@127.0.0.1:1/hub", "hub: The database does not answer: .*"),
    ],
)
def test_what_stands_in_the_way_is_told_in_one_sentence(
    up: Callable[..., Program], setting: str, value: str, sentence: str
) -> None:
    program = up(**{setting: value})
    assert program.wait() == 1
    assert re.fullmatch(sentence, program.output), program.output
