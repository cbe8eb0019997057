"""Creations and cancels without end, as people make them whatever happens to the servers."""

from __future__ import annotations

import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx

from tests.factories import Team
from tests.limits.harness import Site, measured

CREATORS = 4
CANCELLERS = 2
# As many jobs may be pending at once, so that the load is bounded by admission itself.
LATEST = 12
PENDING = {"HUB_JOBS_MAX_PENDING_PER_WORKSPACE": str(LATEST), "HUB_JOBS_MAX_PENDING_PER_ACTOR": str(LATEST)}
# Counted where an answer's status would be.
NO_ANSWER = 0


class Load:
    """Creates and cancels until it is over; what was not acknowledged is asked again with the same key."""

    def __init__(self, hub: Site, team: Team, courses: list[uuid.UUID]) -> None:
        self._hub = hub
        self._team = team
        self._courses = courses
        self._clients = [hub.client(team.admin) for _ in range(CREATORS + CANCELLERS)]
        self.over = threading.Event()
        self.answers: Counter[int] = Counter()
        # The job of each acknowledged key, and the state that each acknowledged cancel told.
        self.created: dict[str, int] = {}
        self.cancelled: dict[int, str] = {}

    @contextmanager
    def going(self) -> Iterator[None]:
        """Create and cancel for as long as the block runs; afterwards everything asked for has its answer."""
        with ThreadPoolExecutor(CREATORS + CANCELLERS) as pool:
            acts = [pool.submit(self.create, number) for number in range(CREATORS)]
            acts += [pool.submit(self.cancel, number) for number in range(CANCELLERS)]
            try:
                yield
            finally:
                self.over.set()
            for act in acts:
                act.result()

    def create(self, number: int) -> None:
        """Create job after job."""
        client, chance = self._clients[number], random.Random(number)
        while not self.over.is_set():
            key, course = uuid.uuid4().hex, chance.choice(self._courses)
            # A creation in doubt is asked about until there is an answer, also when the rest is over.
            while True:
                answer = self._ask(client.create, self._team, course, "tag", key=key, replica=number % 2)
                if answer is not None and answer.status_code < 300:
                    self.created[key] = answer.json()["id"]
                    break
                if self.over.wait(0.1) and answer is not None and answer.status_code == 429:
                    return

    def cancel(self, number: int) -> None:
        """Cancel one of the latest jobs now and then."""
        client, chance = self._clients[CREATORS + number], random.Random(100 + number)
        while not self.over.wait(chance.uniform(0.05, 0.4)):
            latest = list(self.created.values())[-LATEST:]
            if not latest:
                continue
            job_id = chance.choice(latest)
            answer = self._ask(client.cancel, self._team, job_id, replica=number % 2)
            if answer is not None and answer.status_code == 200:
                self.cancelled[job_id] = answer.json()["state"]

    def check(self) -> None:
        """Everything acknowledged is there, and nothing besides."""
        measured("answers", dict(self.answers))
        measured("acknowledged creations", len(self.created))
        measured("acknowledged cancels", len(self.cancelled))
        query = "select idempotency_key, job_id from queue.request"
        assert {row.idempotency_key: row.job_id for row in self._hub.rows(query)} == self.created
        jobs = {row.id: row for row in self._hub.rows("select id, state::text, cancel_requested_at from queue.job")}
        for job_id, state in self.cancelled.items():
            assert jobs[job_id].cancel_requested_at or jobs[job_id].state == state

    def _ask(self, act: Callable[..., httpx.Response], *arguments: Any, **named: Any) -> httpx.Response | None:
        """The answer; None if the server died before it came."""
        try:
            answer = act(*arguments, **named)
        except httpx.TransportError:
            self.answers[NO_ANSWER] += 1
            return None
        self.answers[answer.status_code] += 1
        if answer.status_code == 503:
            assert int(answer.headers["Retry-After"]) >= 1
        elif answer.status_code >= 500:
            said = [line for web in self._hub.web for line in web.lines if "traceback" in line]
            raise AssertionError("\n".join([answer.text, *said[-3:]]))
        return answer
