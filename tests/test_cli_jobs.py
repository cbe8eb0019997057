"""`hub jobs` and `hub queues`: what operators see and do at the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hub.config import Settings
from hub.db import Database
from hub.queue.testing import drain
from tests import factories
from tests.factories import row
from tests.queue.conftest import Bench, bench
from tests.queue.conftest import invariants as invariants
from tests.web.visitor import events

__all__ = ["bench", "invariants"]


def fail(context: Any, args: Any) -> None:
    raise ValueError("as told")


@pytest.fixture
def dead(bench: Bench) -> Callable[[int], list[int]]:
    """Makes jobs of one kind that have used up their attempts."""

    def make(count: int) -> list[int]:
        kind = bench.kind(fail, attempts=1)
        ids = [bench.enqueue(kind) for _ in range(count)]
        for _ in ids:
            bench.work(kind)
        return ids

    return make


@pytest.fixture
def olga(database: Database) -> str:
    """The address of an operator."""
    return factories.make_person(database, name="Olga", staff="operator").email


def test_jobs_are_listed_narrowed_and_paged(hub: Any, bench: Bench) -> None:
    kind, other = bench.kind(), bench.kind()
    ids = [bench.enqueue(kind) for _ in range(3)]
    bench.enqueue(other)
    listed = hub("jobs", "list", "--kind", kind.name, "--limit", "2", "--json").data
    assert [item["id"] for item in listed["items"]] == [ids[2], ids[1]]
    rest = hub("jobs", "list", "--kind", kind.name, "--before", str(listed["next"]), "--json").data
    assert ([item["id"] for item in rest["items"]], rest["next"]) == ([ids[0]], None)
    assert str(ids[2]) in hub("jobs", "list", "--state", "queued").out
    assert hub("jobs", "list", "--state", "sleeping").code == 2


def test_a_job_is_shown_with_its_attempts_and_its_letter(hub: Any, dead: Callable[[int], list[int]]) -> None:
    (job_id,) = dead(1)
    shown = hub("jobs", "show", str(job_id), "--json").data
    assert (shown["state"], shown["code"], shown["dead_letter"]["state"]) == ("failed", "handler_failed", "open")
    assert "handler_failed" in hub("jobs", "show", str(job_id)).out
    missing = hub("jobs", "show", "999999999")
    assert missing.code == 1 and "There is no job 999999999." in missing.err


def test_machines_jobs_are_cancelled_by_operators_only(hub: Any, bench: Bench, database: Database, olga: str) -> None:
    job_id = bench.enqueue(bench.kind())
    nobody = factories.make_person(database).email
    assert hub("jobs", "cancel", str(job_id), "--as", nobody).code == 1
    assert hub("jobs", "cancel", str(job_id), "--as", olga, "--json").data["state"] == "cancelled"
    assert [event.actor_name for event in events(database, "job.cancel_requested")] == ["Olga"]


def test_peoples_jobs_are_cancelled_by_their_admins_only(
    hub: Any, database: Database, settings: Settings, olga: str
) -> None:
    team = factories.make_team(database)
    course = factories.make_course(database, team)
    job_id = str(factories.start_tagging(database, settings, team, course).job_id)
    assert hub("jobs", "cancel", job_id, "--as", olga).code == 1
    assert hub("jobs", "cancel", job_id).code == 1
    assert hub("jobs", "cancel", job_id, "--as", team.admin.email, "--json").data["state"] == "cancelled"


def test_letters_are_grouped_redriven_and_discarded_with_an_outcome_for_each(
    hub: Any, dead: Callable[[int], list[int]], database: Database, olga: str
) -> None:
    first, second, third = dead(3)
    (group,) = hub("jobs", "list", "--dead", "--json").data
    assert (group["code"], group["count"]) == ("handler_failed", 3)
    redriven = hub("jobs", "redrive", str(first), "--as", olga, "--json")
    (made,) = redriven.data["items"]
    assert redriven.code == 0 and made["problem"] is None
    assert hub("jobs", "show", str(made["made"]), "--json").data["origin_id"] == first
    again = hub("jobs", "redrive", str(first), str(second), "--as", olga, "--json")
    assert again.code == 1
    assert [item["problem"] for item in again.data["items"]] == ["letter_decided", None]
    assert hub("jobs", "discard", str(third), "--as", olga).code == 2
    assert hub("jobs", "discard", str(third), "--reason", "known", "--as", olga).code == 0
    assert hub("jobs", "list", "--dead", "--json").data == []
    told = [event.action for event in events(database) if event.action.startswith("dead_letter")]
    assert told == ["dead_letter.redriven", "dead_letter.redriven", "dead_letter.discarded"]


def test_a_whole_group_of_letters_is_redriven(
    hub: Any, dead: Callable[[int], list[int]], database: Database, settings: Settings, olga: str
) -> None:
    ids = dead(3)
    kind = row(database, "select kind from queue.job where id = :id", id=ids[0]).kind
    redriven = hub("jobs", "redrive", "--kind", kind, "--code", "handler_failed", "--as", olga, "--json").data["items"]
    assert [item["id"] for item in redriven] == ids
    assert drain(database, settings, kind) == 3
    for wrong in (["1", "--kind", kind, "--code", "x"], ["--kind", kind], []):
        assert hub("jobs", "redrive", *wrong).code == 2


def test_a_queue_is_paused_shown_so_and_resumed(hub: Any, bench: Bench, database: Database, olga: str) -> None:
    kind = bench.kind()
    bench.enqueue(kind)
    assert hub("queues", "pause", kind.line, "--as", olga).code == 2
    assert hub("queues", "pause", kind.line, "--reason", "upstream is down", "--as", olga).code == 0
    assert bench.claim(kind) == []
    shown = {queue["queue"]: queue for queue in hub("queues", "list", "--json").data}[kind.line]
    assert (shown["waiting"], shown["paused"], shown["paused_because"]) == (1, True, "upstream is down")
    assert "paused by Olga: upstream is down" in hub("queues", "list").out
    assert hub("queues", "pause", kind.line, "--reason", "again", "--as", olga).code == 1
    assert hub("queues", "resume", kind.line, "--as", olga).code == 0
    assert len(bench.claim(kind)) == 1
    assert [event.action for event in events(database)] == ["queue.paused", "queue.resumed"]
    assert hub("queues", "pause", "no.such", "--reason", "x").code == 1
