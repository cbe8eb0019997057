"""Hub at its limits: two web servers and two workers over one database, driven by signed-in HTTP clients.

HUB_LIMITS=full runs the full numbers; without it the tests run smaller ones, for every day.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import httpx

from hub import config
from hub.db import Database
from hub.models.base import new_id
from hub.models.person import Person, hash_password
from hub.models.workspace import Membership
from tests import factories
from tests.factories import Team
from tests.processes import Program, WebServer, Worker, until

FULL = os.environ.get("HUB_LIMITS") == "full"
PASSWORD = "a-password-of-the-tests"
TOKEN = re.compile(r'<meta name="csrf-token" content="([^"]+)"|name="csrf_token"[^>]*value="([^"]+)"')
# Limits of admission so wide that only tests of them meet them.
WIDE = {
    "HUB_JOBS_MAX_PENDING_PER_WORKSPACE": "100000",
    "HUB_JOBS_MAX_PENDING_PER_ACTOR": "100000",
    "HUB_JOBS_MAX_CREATED_PER_DAY": "100000",
    "HUB_JOBS_CREATE_PER_MINUTE": "100000",
}

Running = TypeVar("Running", bound=Program)
Item = TypeVar("Item")
Answer = TypeVar("Answer")
_hashes: dict[str, str] = {}
_keys = itertools.count(1)


def scaled(full: int, everyday: int) -> int:
    """The number for this run."""
    return full if FULL else everyday


class Client:
    """A signed-in browser without a window: asks for JSON, with cookie and CSRF token, at any of the replicas."""

    def __init__(self, site: Site, person: Person, **headers: str) -> None:
        self._site = site
        self._http = httpx.Client(
            timeout=60, headers={"Accept": "application/json"} | headers, limits=httpx.Limits(max_connections=200)
        )
        self.person = person
        self.sign_in()

    def sign_in(self) -> None:
        """Begin a session with the tests' password."""
        form = {"email": self.person.email, "password": PASSWORD, "csrf_token": self._token("/sign-in")}
        answer = self._http.post(f"{self._site.web[0].url}/sign-in", data=form)
        assert answer.status_code == 200, answer.text
        self._http.headers["X-CSRFToken"] = self._token("/workspaces")

    def call(self, method: str, path: str, replica: int = 0, **request: Any) -> httpx.Response:
        """Ask one of the replicas."""
        return self._http.request(method, self._site.web[replica].url + path, **request)

    def get(self, path: str, replica: int = 0, **request: Any) -> httpx.Response:
        """GET."""
        return self.call("GET", path, replica, **request)

    def post(self, path: str, replica: int = 0, **request: Any) -> httpx.Response:
        """POST."""
        return self.call("POST", path, replica, **request)

    def page(self, path: str, replica: int = 0) -> httpx.Response:
        """GET as a browser does."""
        return self.get(path, replica, headers={"Accept": "text/html"})

    def create(
        self, team: Team, course_id: uuid.UUID, *tags: str, key: str | None = None, replica: int = 0, **headers: str
    ) -> httpx.Response:
        """Ask for the tagging of a course."""
        wanted = {
            "kind": "course.tag",
            "args": factories.tag_command(course_id, *tags),
            "idempotency_key": key or f"limit-{next(_keys)}",
        }
        return self.post(f"/w/{team.workspace.slug}/jobs", replica, json=wanted, headers=headers)

    def cancel(self, team: Team, job_id: int, replica: int = 0) -> httpx.Response:
        """Ask for the end of a job."""
        return self.post(f"/w/{team.workspace.slug}/jobs/{job_id}/cancel", replica, json={})

    def job(self, team: Team, job_id: int, replica: int = 0) -> dict[str, Any]:
        """A job's live snapshot."""
        answer = self.get(f"/w/{team.workspace.slug}/jobs/{job_id}", replica)
        assert answer.status_code == 200, answer.text
        snapshot: dict[str, Any] = answer.json()
        return snapshot

    def cookies(self) -> list[dict[str, str]]:
        """The cookies, as Playwright takes them."""
        url = self._site.web[0].url
        return [{"name": cookie.name, "value": cookie.value or "", "url": url} for cookie in self._http.cookies.jar]

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    @property
    def headers(self) -> dict[str, str]:
        """The session's cookie, as a header for other programs."""
        return {"Cookie": "; ".join(f"{cookie.name}={cookie.value}" for cookie in self._http.cookies.jar)}

    def _token(self, path: str) -> str:
        text = self._http.get(self._site.web[0].url + path, headers={"Accept": "text/html"}).text
        found = TOKEN.search(text)
        assert found, f"no CSRF token on {path}: {text[:500]}"
        return found[1] or found[2]


class Site:
    """Web replicas and workers over one database. `settings` are those of its processes."""

    def __init__(self, database: Database, environ: Mapping[str, str]) -> None:
        self.database = database
        self.environ = dict(environ)
        self.settings = config.load(self.environ)
        self.web: list[WebServer] = []
        self.workers: list[Worker] = []
        self._programs: list[Program] = []
        self._clients: list[Client] = []

    def start(self, replicas: int, workers: int) -> None:
        """Start so many of each, all at once."""
        with ThreadPoolExecutor(replicas + workers + 1) as pool:
            started = [pool.submit(self.add_web) for _ in range(replicas)]
            started += [pool.submit(self.add_worker) for _ in range(workers)]
        for future in started:
            future.result()

    def add_web(self, **settings: str) -> WebServer:
        """Another web replica."""
        web = WebServer(self.environ | settings, self.settings.web_processes)
        self.web.append(self.keep(web))
        return web

    def add_worker(self, lanes: str = "workspace.jobs=2", **settings: str) -> Worker:
        """Another worker."""
        worker = Worker(self.environ | settings, lanes)
        self.workers.append(self.keep(worker))
        return worker

    def stop_web(self) -> None:
        """End all replicas, as a deployment does."""
        for web in self.web:
            web.send(signal.SIGTERM)
        for web in self.web:
            web.close()
        self.web.clear()

    def close(self) -> None:
        """End everything."""
        for client in self._clients:
            client.close()
        for program in self._programs:
            if program.process.poll() is None:
                program.send(signal.SIGCONT)
                program.send(signal.SIGTERM)
        for program in self._programs:
            program.close()

    def keep(self, program: Running) -> Running:
        """End this program with the others."""
        self._programs.append(program)
        return program

    def client(self, person: Person, **headers: str) -> Client:
        """A signed-in client of a person made by `make_team` or `add_admin`."""
        client = Client(self, person, **headers)
        self._clients.append(client)
        return client

    def team(self) -> Team:
        """A workspace whose admin can sign in."""
        team = factories.make_team(self.database)
        factories.run(
            self.database,
            "update hub.person set password_hash = :hash where id = :id",
            hash=_hash(PASSWORD),
            id=team.admin.id,
        )
        return team

    def add_admin(self, team: Team) -> Person:
        """Another admin of the workspace, who can sign in."""
        number = uuid.uuid4().hex[:8]
        with self.database.transaction() as session:
            person = Person(
                id=new_id(),
                enabled=True,
                email=f"admin{number}@hub.example",
                name=f"Admin {number}",
                password_hash=_hash(PASSWORD),
            )
            session.add(person)
            session.flush()
            session.add(Membership(workspace_id=team.workspace.id, person_id=person.id, role="admin"))
        return person

    def row(self, query: str, **values: Any) -> Any:
        """The one row of a query."""
        return factories.row(self.database, query, **values)

    def rows(self, query: str, **values: Any) -> list[Any]:
        """Rows of a query."""
        return factories.rows(self.database, query, **values)

    def count(self, query: str, **values: Any) -> int:
        """The one number of a query."""
        return int(self.row(query, **values)[0])

    def job(self, job_id: int) -> Any:
        """A job's row."""
        return self.row("select * from queue.job where id = :id", id=job_id)

    def await_jobs(self, patience: float = 120) -> None:
        """Wait until no job is pending."""
        until(lambda: self.count("select count(*) from queue.job where finished_at is null") == 0, patience)


def freeze(program: Program) -> None:
    """Stop a process where it is, and wait until it really stands."""
    program.send(signal.SIGSTOP)
    until(lambda: all(state == "T" for state in _states(program.pid)))


def thaw(program: Program) -> None:
    """Let a frozen process go on."""
    program.send(signal.SIGCONT)


def at_once(act: Callable[[Item], Answer], items: Iterable[Item], threads: int = 40) -> list[Answer]:
    """`act` on all items, as many at once as there are threads; the answers in the items' order."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(act, items))


def rss(pid: int) -> int:
    """The resident memory of a process, in bytes."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def measured(name: str, value: object) -> None:
    """Tell a measured number; shown by ``pytest -rP``. It is never judged here: machines differ."""
    print(f"measured: {name} = {value}")


class Timer:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Up to now."""
        return round(time.monotonic() - self._began, 3)


def _states(pid: int) -> list[str]:
    """The state of each thread of a process."""
    return [(task / "stat").read_text().rpartition(") ")[2][0] for task in Path(f"/proc/{pid}/task").iterdir()]


def _hash(password: str) -> str:
    if password not in _hashes:
        _hashes[password] = hash_password(password)
    return _hashes[password]
