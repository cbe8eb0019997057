"""The soak's verdict: silent on a clean run, and each of its checks names what breaks it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import psycopg
import pytest

from hub.config import Settings
from hub.db import Database
from hub.queue.testing import drain
from tests.factories import row
from tests.invariants import Watch
from tests.soak import kinds, verdict
from tests.soak.callers import Acknowledged, Callers, Wish

WISHES = [
    Wish("good", kinds.PLAIN, {"token": "good", "snoozes": 1, "failures": 1}),
    Wish("hopeless", kinds.PLAIN, {"token": "hopeless", "failures": 100}),
    Wish("refused", kinds.AHEAD, {"token": "refused", "refused": True}),
    Wish("ahead", kinds.AHEAD, {"token": "ahead"}),
    Wish("alone", kinds.ALONE, {"token": "alone", "key": "k"}, "k"),
    Wish("steps", kinds.STEPPED, {"token": "steps", "items": 40}),
]
# What the product's triggers refuse is done as a replica would.
REPLICA = "set session_replication_role = replica;"
JOB = "insert into queue.job (queue, kind, max_attempts, attempt_seconds, args) values ('q', 'soak.exclusive', 5, 30,"
PLANTS = {
    "lost": REPLICA + "delete from queue.job where id = (select id from soak.job where token = 'good')",
    "enqueued": JOB + """ '{"token": "ahead"}')""",
    "key": f"""{JOB} '{{"token": "a", "key": "k"}}'); {JOB} '{{"token": "b", "key": "k"}}')""",
    "effect": "insert into soak.effect select job_id, claim + 1, item from soak.effect where item is not null limit 1",
    "overlap": "update soak.span set ended = began + 10; insert into soak.span (job_id, claim, line, began)"
    " select job_id, claim + 1, line, began + 5 from soak.span",
    "accepted": "update soak.span set claim = claim + 1",
    "attempts": REPLICA + "update queue.job set attempt = 2 where kind = 'soak.steps'",
    "dead": "delete from queue.dead_letter",
    "fate": REPLICA + """update queue.job set args = args || '{"refused": true}' where args->>'token' = 'ahead'""",
    "ended": JOB + """ '{"token": "new"}')""",
    # One statement of each of the two lists that are checked beside the soak's own.
    "E1": "insert into queue.worklist select id, 0, array[gen_random_uuid()] from soak.job where token = 'steps'",
    "C2": "update watch.transition set new_version = new_version + 1 where old_state = 'queued'",
}


@dataclass
class Run:
    """A small soak without faults."""

    database: Database
    settings: Settings
    watch: Watch
    acknowledged: list[Acknowledged]

    def violations(self) -> dict[str, str]:
        """What the verdict finds, by name."""
        found = verdict.check(self.database, self.settings, self.watch, self.acknowledged)
        return {violation.name: str(violation) for violation in found}


@pytest.fixture
def clean_run(database: Database, settings: Settings, admin_url: str) -> Iterator[Run]:
    """Jobs of every kind, all ended."""
    settings = replace(settings, queue_retry_base=0.01, queue_retry_max=0.02)
    watch = Watch(admin_url)
    watch.install()
    with psycopg.connect(admin_url) as connection:
        connection.execute(kinds.TABLES)
    callers = Callers(database, settings, [], WISHES, 0)
    callers.start()
    callers.finish()
    assert callers.errors == []
    while row(database, "select count(*) as jobs from queue.job where finished_at is null").jobs:
        for kind in (kinds.PLAIN, kinds.AHEAD, kinds.ALONE, kinds.STEPPED):
            drain(database, settings, kind.line)
    yield Run(database, settings, watch, callers.acknowledged)
    watch.remove()
    with psycopg.connect(admin_url) as connection:
        connection.execute("drop schema soak cascade")


def test_nothing_is_found_after_a_clean_run(clean_run: Run) -> None:
    assert clean_run.violations() == {}
    assert len(clean_run.acknowledged) == len(WISHES)
    ends = {(kind, state, code) for kind, state, code, _ in verdict.jobs_by_end(clean_run.database)}
    assert ("soak.plain", "failed", "handler_failed") in ends
    assert ("soak.ahead", "failed", kinds.REFUSED) in ends


@pytest.mark.parametrize("name", PLANTS)
def test_each_planted_violation_is_named(clean_run: Run, admin_url: str, name: str) -> None:
    with psycopg.connect(admin_url) as connection:
        connection.execute(PLANTS[name].encode())
    assert name in clean_run.violations()


def test_every_rule_has_a_plant() -> None:
    assert verdict.RULES.keys() <= PLANTS.keys()


def test_an_answer_with_another_keys_job_is_named(clean_run: Run) -> None:
    (alone,) = (one for one in clean_run.acknowledged if one.token == "alone")
    clean_run.acknowledged.append(Acknowledged("twin", alone.job_id, False, "k"))
    assert clean_run.violations() == {}
    clean_run.acknowledged.append(Acknowledged("stranger", alone.job_id, False, "another key"))
    assert "stranger" in clean_run.violations()["lost"]
