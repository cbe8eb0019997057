"""What every test can ask for: a wiped database, the app on it, real processes, a real browser.

Everything commits, so web, workers and listeners see it; `database` begins each test with no rows.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hub import cli, config, postgres
from hub.config import Settings
from hub.db import Database
from tests import browser as browsers
from tests import cluster
from tests.processes import WebServer, Worker

# The settings of whoever runs the tests must not change what is tested.
KEPT = {"HUB_TEST_DATA", "HUB_REQUIRE_BROWSER", "HUB_REQUIRE_NGINX", "HUB_LIMITS", "HUB_PG_BIN"}
for name in [name for name in os.environ if name.startswith("HUB_") and name not in KEPT]:
    del os.environ[name]

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> postgres.Server:
    """The tests' PostgreSQL server; it keeps running."""
    server = cluster.start()
    cluster.sweep(server)
    return server


@pytest.fixture(scope="session")
def database_name(server: postgres.Server) -> Iterator[str]:
    """The database of this test process."""
    name = f"test_{os.getpid()}"
    cluster.clone(server, name)
    yield name
    cluster.drop(server, name)


@pytest.fixture(scope="session")
def admin_url(server: postgres.Server, database_name: str) -> str:
    """The address of this process's database for the superuser."""
    return server.url(postgres.SUPERUSER, database_name)


@pytest.fixture(scope="session")
def _pool(server: postgres.Server, database_name: str) -> Iterator[Database]:
    pool = Database(server.url("hub_app", database_name), application_name="tests", size=20)
    yield pool
    pool.close()


@pytest.fixture
def database(_pool: Database, admin_url: str) -> Database:
    """This process's database without any row, as `hub_app`."""
    cluster.wipe(admin_url)
    return _pool


@pytest.fixture
def own_database(server: postgres.Server) -> Iterator[Database]:
    """A database of this test alone, as `hub_app`: for migrations and for what cuts off everyone.

    `tests.cluster.as_role(own_database.url, "hub_migrate")` is its address for another role.
    """
    name = f"test_{os.getpid()}_{next(_numbers)}"
    cluster.clone(server, name)
    own = Database(server.url("hub_app", name), application_name="tests")
    yield own
    own.close()
    cluster.drop(server, name)


@pytest.fixture
def settings(_pool: Database, tmp_path: Path) -> Settings:
    """Settings for this process's database, with budgets so wide that only tests of budgets meet them."""
    return dataclasses.replace(config.load({}), data_dir=tmp_path, database_url=_pool.url, **WIDE)


WIDE: dict[str, Any] = {
    "secret_key": "for-tests-only-" + "0123456789abcdef" * 2,
    "jobs_create_per_minute": 100_000,
    "signin_per_minute": 100_000,
    "web_processes": 1,
}


@pytest.fixture
def environ(settings: Settings) -> dict[str, str]:
    """The same settings as environment variables, for processes."""
    wide = {config.variable(name): str(value) for name, value in WIDE.items()}
    return wide | {"HUB_DATABASE_URL": settings.database_url, "HUB_DATA_DIR": str(settings.data_dir)}


@pytest.fixture
def app(settings: Settings, database: Database) -> Iterator[Any]:
    """The Flask app on the wiped database."""
    from hub.web import create_app

    app = create_app(settings)
    yield app
    state = app.extensions["hub"]
    if getattr(state, "listener", None) is not None:
        state.listener.close()
    state.db.close()


@pytest.fixture
def client(app: Any) -> Any:
    """A test client without a session."""
    return app.test_client()


@pytest.fixture
def web_server(environ: dict[str, str], database: Database) -> Iterator[Callable[..., WebServer]]:
    """Starts gunicorn processes: ``web_server(HUB_JOBS_MAX_PENDING_PER_ACTOR="1")``."""
    with ExitStack() as stack:

        def start(processes: int = 1, **settings: str) -> WebServer:
            web = WebServer(environ | settings, processes)
            stack.callback(web.close)
            return web

        yield start


@pytest.fixture
def live_server(web_server: Callable[..., WebServer]) -> WebServer:
    """One gunicorn process with one worker; `.url` is its address."""
    return web_server()


@pytest.fixture
def worker_process(environ: dict[str, str], database: Database) -> Iterator[Callable[..., Worker]]:
    """Starts worker processes: ``worker_process("workspace.jobs=2", HUB_QUEUE_LEASE="3")``; ended after the test."""
    with ExitStack() as stack:

        def start(lanes: str = "workspace.jobs=2", **settings: str) -> Worker:
            worker = Worker(environ | settings, lanes)
            stack.callback(worker.close)
            return worker

        yield start


@dataclass
class Outcome:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """What it printed, as JSON."""
        return json.loads(self.out)


@pytest.fixture
def hub(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], environ: dict[str, str], database: Database
) -> Callable[..., Outcome]:
    """Runs a command in this process: ``hub("user", "add", "a@b.example", stdin="…")``."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str, stdin: str = "") -> Outcome:
        monkeypatch.setattr(sys, "argv", ["hub", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Outcome(int(ended.value.code or 0), out, err)

    return run


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium, once a test process."""
    with browsers.chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """An empty page in a context of its own, 1280 by 800."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    yield context.new_page()
    context.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """An empty folder with a space in its name that every account can reach, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="hub test "))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty bucket behind a real S3 API on the loopback address."""
    # Imported here, because it takes longer than most tests.
    from tests.s3 import KEYS, S3

    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    server = S3()
    yield server
    server.close()


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("may not mount a file system here")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of real courses and documents that HUB_TEST_DATA names."""
    named = os.environ.get("HUB_TEST_DATA")
    if not named or not Path(named).is_dir():
        pytest.skip("needs real courses: set HUB_TEST_DATA to their folder")
    return Path(named)
