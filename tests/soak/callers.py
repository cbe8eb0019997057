"""Those who enqueue: threads that go on through outages, and keep outside the database what it acknowledged."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from hub.config import Settings
from hub.db import Database, is_connection_loss
from hub.jobs.cancel import cancel
from hub.queue import Kind, store
from tests import factories
from tests.factories import Team
from tests.soak import kinds

THREADS = 4
KEYS, COURSES, TAGS = 12, 15, 20
RETRY_SECONDS = 0.2
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Wish:
    """A job that shall be made; one without a kind is a person's, who tags a course and may change their mind."""

    token: str
    kind: Kind | None
    args: dict[str, Any]
    key: str | None = None
    cancelled: bool = False


class Acknowledged(NamedTuple):
    """An enqueue that committed: its job, or the live job that held its key."""

    token: str
    job_id: int
    created: bool
    key: str | None = None


def draw_wishes(luck: Random, many: int) -> list[Wish]:
    """So many jobs of mixed kinds and fates."""
    return [_draw(luck, f"wish-{number}") for number in range(many)]


def _draw(luck: Random, token: str) -> Wish:
    drawn = luck.choices(["plain", "exclusive", "ahead", "steps", "people"], [33, 22, 33, 6, 6])[0]
    if drawn == "people":
        asked = {"course": luck.randrange(COURSES), "tag": f"tag{luck.randrange(TAGS)}"}
        return Wish(token, None, asked, cancelled=luck.random() < 0.2)
    if drawn == "steps":
        return Wish(token, kinds.STEPPED, {"token": token, "items": luck.randint(1, 150)})
    args: dict[str, Any] = {"token": token} | _draw_fate(luck)
    args |= _draw_times(luck)
    if drawn == "ahead":
        return Wish(token, kinds.AHEAD, args)
    if drawn == "plain":
        return Wish(token, kinds.PLAIN, args)
    key = f"key{luck.randrange(KEYS)}"
    return Wish(token, kinds.ALONE, args | {"key": key}, key)


def _draw_fate(luck: Random) -> dict[str, Any]:
    """Most succeed at once, some after failures and snoozes, a few never."""
    fates: list[dict[str, Any]] = [
        {},
        {"failures": luck.randint(1, 3)},
        {"failures": 100},
        {"snoozes": luck.randint(1, 3)},
        {"snoozes": 1, "failures": 2},
        {"refused": True},
    ]
    return luck.choices(fates, [80, 7, 2, 7, 2, 2])[0]


def _draw_times(luck: Random) -> dict[str, float]:
    """Mostly short; long enough now and then that a worker which wakes finds its job at work elsewhere."""
    most = 1.5 if luck.random() < 0.1 else 0.1
    return {"before": round(luck.uniform(0, most), 3), "after": round(luck.uniform(0, most), 3)}


class Callers:
    """Threads that make `wishes` come true over so many seconds, in bursts: one at each full second."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        courses: Sequence[tuple[Team, UUID]],
        wishes: Sequence[Wish],
        seconds: float,
    ) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.in_doubt: list[str] = []
        self.errors: list[str] = []
        self._database = database
        self._settings = settings
        self._courses = courses
        now = time.monotonic()
        self._due = deque((now + seconds * place // len(wishes), wish) for place, wish in enumerate(wishes))
        self._threads = [threading.Thread(target=self._run, name="caller", daemon=True) for _ in range(THREADS)]

    def start(self) -> None:
        """Begin to enqueue."""
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Wait until every wish is answered."""
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            try:
                due, wish = self._due.popleft()
            except IndexError:
                return
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                self.acknowledged.append(self._grant(wish))
            except Exception as error:
                self.errors.append(f"{wish.token}: {error!r}")

    def _grant(self, wish: Wish) -> Acknowledged:
        if wish.kind is None:
            return self._ask_as_person(wish)
        try:
            return self._enqueue(wish)
        except Exception as error:
            if not is_connection_loss(error):
                raise
        self.in_doubt.append(wish.token)
        # Whether that committed is not known, so it is looked for before it is tried again.
        return self._through_outages(lambda: self._find(wish) or self._enqueue(wish))

    def _ask_as_person(self, wish: Wish) -> Acknowledged:
        """Repeated as it stands after an outage: the idempotency key sees to it that there is one job."""
        team, course = self._courses[wish.args["course"]]
        tag = wish.args["tag"]
        made = self._through_outages(
            lambda: factories.start_tagging(self._database, self._settings, team, course, tag, key=wish.token)
        )
        if wish.cancelled:
            self._through_outages(lambda: self._cancel(made.job_id, team))
        return Acknowledged(wish.token, made.job_id, True)

    def _cancel(self, job_id: int, team: Team) -> None:
        with self._database.transaction() as session:
            cancel(session, job_id=job_id, actor=team.actor)

    def _enqueue(self, wish: Wish) -> Acknowledged:
        assert wish.kind is not None
        ceiling = self._settings.queue_max_attempts
        with self._database.autocommit() as connection, connection.transaction():
            made = store.enqueue(connection, wish.kind, wish.args, ceiling=ceiling, key=wish.key)
            if items := wish.args.get("items"):
                listed = "select gen_random_uuid() as item, n as place from generate_series(1, %(count)s) n"
                store.make_worklist(connection, made.id, listed, {"count": items})
        return Acknowledged(wish.token, made.id, made.created, wish.key)

    def _find(self, wish: Wish) -> Acknowledged | None:
        with self._database.autocommit() as connection:
            row = connection.execute("select id from soak.job where token = %s", [wish.token]).fetchone()
        return Acknowledged(wish.token, row[0], True, wish.key) if row else None

    def _through_outages(self, call: Callable[[], Answer]) -> Answer:
        while True:
            try:
                return call()
            except Exception as error:
                if not is_connection_loss(error):
                    raise
            time.sleep(RETRY_SECONDS)
