"""The clock of a worker: each due time decided once, by the database's time, whatever else happens."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pydantic
import pytest

from hub import config
from hub.config import Settings
from hub.errors import ConfigError
from hub.queue import EXCLUSIVE, Kind, clock, ledger, plans
from hub.queue.chores import Chores
from hub.queue.clock import LONGEST_SLEEP, Clock
from hub.queue.schedule import ALL, ALLOW, ONCE, SKIP, Schedule
from tests.factories import row, rows, run
from tests.queue.conftest import Bench

MINUTELY = Schedule("* * * * *")
# A worker that was away for some minutes, but not for so long that the last due time is late.
AWAY = timedelta(minutes=3)


def sweep(bench: Bench, schedule: Schedule = MINUTELY, **declared: Any) -> Kind:
    """A kind with a schedule, exclusive unless its jobs may overlap."""
    policy = {"policy": EXCLUSIVE} if schedule.overlap == SKIP else {}
    return bench.kind(**{"schedule": schedule, "attempts": 2} | policy | declared)


def tick(bench: Bench, *kinds: Kind, settings: Settings | None = None) -> float:
    """What a worker with lanes for these kinds does when it looks at its schedules."""
    with bench.connection() as connection:
        return Clock(settings or bench.settings, [kind.line for kind in kinds]).act(connection)


def decided_up_to(bench: Bench, kind: Kind, moment: datetime) -> None:
    """Let every due time up to then be decided, and none after it."""
    run(bench.database, "update queue.schedule set ticked_at = :at where name = :name", name=kind.name, at=moment)


def now(bench: Bench) -> datetime:
    """The database's time, cut to the minute: the last due time of MINUTELY."""
    minute = row(bench.database, "select date_trunc('minute', statement_timestamp()) as at").at
    assert isinstance(minute, datetime)
    return minute


def ledger_of(bench: Bench, kind: Kind) -> list[tuple[datetime, str, str | None]]:
    """(due, outcome, reason) of every tick."""
    query = "select due_at, outcome::text, reason from queue.tick where schedule = :name order by due_at"
    return [tuple(entry) for entry in rows(bench.database, query, name=kind.name)]


def outcomes(bench: Bench, kind: Kind) -> list[str]:
    """What became of every tick, in order."""
    return [outcome for _, outcome, _ in ledger_of(bench, kind)]


def jobs(bench: Bench, kind: Kind) -> list[int]:
    """The kind's jobs."""
    return [
        found.id for found in rows(bench.database, "select id from queue.job where kind = :k order by id", k=kind.name)
    ]


def test_a_new_schedule_begins_now_and_fires_when_its_time_has_come(bench: Bench) -> None:
    kind = sweep(bench)
    wait = tick(bench, kind)
    assert 0 < wait < 61
    assert outcomes(bench, kind) == []
    decided_up_to(bench, kind, now(bench) - timedelta(minutes=1))
    tick(bench, kind)
    assert outcomes(bench, kind) == ["fired"]
    (job_id,) = jobs(bench, kind)
    fired = row(bench.database, "select * from queue.tick")
    assert (fired.job_id, fired.reason) == (job_id, None)
    job = bench.job(job_id)
    assert (job.live_key, job.max_attempts, job.args) == (kind.line, 2, {})
    bench.work(kind)
    assert bench.job(job_id).state == "succeeded"


def test_a_due_time_is_decided_once_however_often_one_looks(bench: Bench) -> None:
    kind = sweep(bench, Schedule("0 0 1 1 *", overlap=ALLOW))
    tick(bench, kind)
    decided_up_to(bench, kind, now(bench) - timedelta(days=400))
    for _ in range(3):
        assert LONGEST_SLEEP <= tick(bench, kind) < LONGEST_SLEEP + 1
    assert len(jobs(bench, kind)) == 1


def test_what_the_ledger_holds_is_not_fired_again_even_if_the_schedule_forgot(bench: Bench) -> None:
    kind = sweep(bench, Schedule("0 0 1 1 *", overlap=ALLOW))
    tick(bench, kind)
    for _ in range(2):
        decided_up_to(bench, kind, now(bench) - timedelta(days=400))
        tick(bench, kind)
    assert len(jobs(bench, kind)) == 1


def test_workers_that_look_at_once_fire_once(bench: Bench) -> None:
    kinds = [sweep(bench, Schedule("0 0 1 1 *", overlap=ALLOW)) for _ in range(5)]
    tick(bench, *kinds)
    for kind in kinds:
        decided_up_to(bench, kind, now(bench) - timedelta(days=400))
    start = threading.Barrier(8)

    def look() -> None:
        start.wait(10)
        for _ in range(5):
            tick(bench, *kinds)

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for kind in kinds:
        assert len(jobs(bench, kind)) == 1
        assert outcomes(bench, kind).count("fired") == 1


def test_a_worker_leaves_alone_what_another_is_deciding(bench: Bench) -> None:
    kind = sweep(bench)
    tick(bench, kind)
    decided_up_to(bench, kind, now(bench) - timedelta(minutes=1))
    with bench.connection() as other, other.transaction():
        assert ledger.hold(other, kind.name)
        wait = tick(bench, kind)
    assert clock.HELD_WAIT <= wait < clock.HELD_WAIT + 1
    assert outcomes(bench, kind) == []


def test_a_tick_while_the_job_of_the_one_before_lives_is_skipped_and_recorded(bench: Bench) -> None:
    kind = sweep(bench)
    tick(bench, kind)
    decided_up_to(bench, kind, now(bench) - timedelta(minutes=2))
    tick(bench, kind)
    (job_id,) = jobs(bench, kind)
    for take in (lambda: None, lambda: bench.claim_one(kind)):
        take()
        run(bench.database, "delete from queue.tick")
        decided_up_to(bench, kind, now(bench) - timedelta(minutes=1))
        tick(bench, kind)
        assert [entry[1:] for entry in ledger_of(bench, kind)] == [("skipped", "overlap")]
        assert row(bench.database, "select job_id from queue.tick").job_id == job_id
    assert jobs(bench, kind) == [job_id]


def test_a_standard_kind_that_may_not_overlap_waits_for_its_last_job(bench: Bench) -> None:
    kind = bench.kind(schedule=MINUTELY)
    tick(bench, kind)
    for expected in (["fired"], ["skipped"]):
        run(bench.database, "delete from queue.tick")
        decided_up_to(bench, kind, now(bench) - timedelta(minutes=1))
        tick(bench, kind)
        assert outcomes(bench, kind) == expected
    bench.work(kind)
    run(bench.database, "delete from queue.tick")
    decided_up_to(bench, kind, now(bench) - timedelta(minutes=1))
    tick(bench, kind)
    assert outcomes(bench, kind) == ["fired"]
    assert len(jobs(bench, kind)) == 2


@pytest.mark.parametrize(("missed", "overlap", "started"), [(SKIP, SKIP, 1), (ONCE, SKIP, 1), (ALL, ALLOW, 4)])
def test_ticks_of_a_time_without_workers_follow_the_policy(
    bench: Bench, missed: str, overlap: str, started: int
) -> None:
    kind = sweep(bench, Schedule("* * * * *", missed=missed, overlap=overlap))
    tick(bench, kind)
    since = now(bench) - AWAY
    decided_up_to(bench, kind, since - timedelta(minutes=1))
    tick(bench, kind)
    found = ledger_of(bench, kind)
    # A minute may have ended meanwhile.
    more = len(found) - 4
    assert [due for due, _, _ in found] == [since + timedelta(minutes=n) for n in range(4 + more)]
    expected = ["fired"] * 4 if missed == ALL else ["missed"] * (3 + more) + ["fired"]
    assert outcomes(bench, kind)[: len(expected)] == expected
    assert len(jobs(bench, kind)) == started + (more if missed == ALL else 0)


def test_a_tick_found_late_is_made_up_for_only_if_the_policy_says_so(bench: Bench) -> None:
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    text = f"{hour_ago.minute} {hour_ago.hour} * * *"
    skipping, once = (sweep(bench, Schedule(text, missed=missed)) for missed in (SKIP, ONCE))
    tick(bench, skipping, once)
    for kind in (skipping, once):
        decided_up_to(bench, kind, hour_ago - timedelta(hours=2))
    tick(bench, skipping, once)
    assert [entry[1:] for entry in ledger_of(bench, skipping)] == [("missed", None)]
    assert [entry[1:] for entry in ledger_of(bench, once)] == [("fired", "late")]


def test_years_without_workers_cost_a_hundred_rows(bench: Bench) -> None:
    kind = sweep(bench)
    tick(bench, kind)
    since = now(bench) - timedelta(days=2000)
    decided_up_to(bench, kind, since)
    tick(bench, kind)
    entries = rows(bench.database, "select due_at, through_at from queue.tick order by due_at")
    assert len(entries) == 101
    assert (entries[0].due_at, entries[0].through_at) == (
        since + timedelta(minutes=1),
        entries[1].due_at - timedelta(minutes=1),
    )
    assert len(jobs(bench, kind)) == 1


def test_a_clock_that_was_ahead_and_is_put_back_fires_nothing_again(bench: Bench) -> None:
    kind = sweep(bench, Schedule("* * * * *", overlap=ALLOW))
    tick(bench, kind)
    ahead = now(bench) + timedelta(minutes=2)
    decided_up_to(bench, kind, ahead)
    wait = tick(bench, kind)
    assert wait > 60
    assert jobs(bench, kind) == []
    assert row(bench.database, "select ticked_at from queue.schedule").ticked_at == ahead


def test_two_schedules_with_the_same_expression_both_fire(bench: Bench) -> None:
    first, second = sweep(bench), sweep(bench)
    tick(bench, first, second)
    for kind in (first, second):
        decided_up_to(bench, kind, now(bench) - timedelta(minutes=1))
    tick(bench, first, second)
    assert outcomes(bench, first) == outcomes(bench, second) == ["fired"]
    assert len(jobs(bench, first)) == len(jobs(bench, second)) == 1


def test_only_the_schedules_of_ones_own_queues_are_ticked(bench: Bench) -> None:
    mine, other = sweep(bench), sweep(bench)
    tick(bench, mine, other)
    for kind in (mine, other):
        decided_up_to(bench, kind, now(bench) - timedelta(minutes=1))
    tick(bench, mine)
    assert (outcomes(bench, mine), outcomes(bench, other)) == (["fired"], [])
    assert tick(bench) > 3600


def test_a_paused_schedule_skips_its_ticks_and_records_them(bench: Bench) -> None:
    kind = sweep(bench)
    tick(bench, kind)
    plan = plans.load(bench.settings)[kind.name]
    with bench.connection() as connection:
        assert clock.pause(connection, plan, reason="upstream is down", by_id=None, by_name="Ada")
        assert not clock.pause(connection, plan, reason="again", by_id=None, by_name="Bob")
    run(bench.database, "update queue.schedule set paused_at = paused_at - interval '10 minutes'")
    decided_up_to(bench, kind, now(bench) - timedelta(minutes=1))
    tick(bench, kind)
    assert [entry[1:] for entry in ledger_of(bench, kind)] == [("skipped", "paused")]
    # What comes due until it is resumed is skipped too, even if no worker was there to say so.
    decided_up_to(bench, kind, now(bench) - timedelta(minutes=3))
    with bench.connection() as connection:
        assert clock.resume(connection, plan, 5)
        assert not clock.resume(connection, plan, 5)
    tick(bench, kind)
    assert set(outcomes(bench, kind)) == {"skipped"}
    assert jobs(bench, kind) == []
    decided_up_to(bench, kind, now(bench) - timedelta(minutes=1))
    run(bench.database, "delete from queue.tick")
    tick(bench, kind)
    assert outcomes(bench, kind) == ["fired"]


def test_a_schedule_is_run_by_hand_also_while_it_is_paused_or_off(bench: Bench, settings: Settings) -> None:
    kind = sweep(bench, Schedule(""))
    plan = plans.load(settings)[kind.name]
    with bench.connection() as connection:
        clock.pause(connection, plan, reason="for now", by_id=None, by_name="Ada")
        started = clock.run_now(connection, plan, 5, "Ada")
        assert started.created
        assert clock.run_now(connection, plan, 5, "Ada").id == started.id
    (entry,) = rows(bench.database, "select outcome::text, job_id, by_name from queue.tick")
    assert tuple(entry) == ("manual", started.id, "Ada")
    assert jobs(bench, kind) == [started.id]


def test_a_job_started_by_hand_is_in_the_way_of_a_tick(bench: Bench, settings: Settings) -> None:
    for kind in (sweep(bench), bench.kind(schedule=MINUTELY)):
        tick(bench, kind)
        with bench.connection() as connection:
            clock.run_now(connection, plans.load(settings)[kind.name], 5, "Ada")
        decided_up_to(bench, kind, now(bench) - timedelta(minutes=1))
        tick(bench, kind)
        assert sorted(outcomes(bench, kind)) == ["manual", "skipped"]


def test_the_setting_of_a_schedule_overrides_its_kind_and_empty_means_off(bench: Bench) -> None:
    kind = sweep(bench, Schedule("0 0 1 1 *"))
    name = f"HUB_CRON_{kind.name.upper().replace('.', '_')}"
    every_minute = with_cron(bench.settings, {name: " * * * * * "})
    off = with_cron(bench.settings, {name: ""})
    assert plans.load(every_minute)[kind.name].text == "* * * * *"
    assert plans.load(off)[kind.name].cron is None
    assert tick(bench, kind, settings=every_minute) < 61
    decided_up_to(bench, kind, now(bench) - timedelta(minutes=1))
    tick(bench, kind, settings=every_minute)
    assert outcomes(bench, kind) == ["fired"]
    # Off and on again: it begins anew, and makes up for nothing.
    tick(bench, kind, settings=off)
    decided_up_to(bench, kind, now(bench) - timedelta(days=3))
    tick(bench, kind, settings=off)
    tick(bench, kind, settings=every_minute)
    assert outcomes(bench, kind) == ["fired"]


def with_cron(settings: Settings, cron: dict[str, str]) -> Settings:
    """The settings with these of schedules, as read from the environment."""
    return dataclasses.replace(settings, cron=config.load(cron).cron)


@pytest.mark.parametrize("text", ["0 0 31 2 *", "* * * * * *", "often", "1--100000000 * * * *", "9" * 10_000])
def test_a_setting_that_makes_no_sense_is_refused_by_its_name(bench: Bench, text: str) -> None:
    kind = sweep(bench)
    name = f"HUB_CRON_{kind.name.upper().replace('.', '_')}"
    with pytest.raises(ConfigError, match=f"^{name}: must be a cron expression") as refused:
        Clock(with_cron(bench.settings, {name: text}), [])
    assert len(str(refused.value)) < 300


def test_a_setting_that_no_schedule_has_is_told(bench: Bench) -> None:
    kind = sweep(bench)
    known = f"HUB_CRON_{kind.name.upper().replace('.', '_')}"
    settings = with_cron(bench.settings, {known: "", "HUB_CRON_KNOWLEDGE_SINK": "* * * * *", "HUB_LANES": ""})
    assert plans.unknown(settings) == ["HUB_CRON_KNOWLEDGE_SINK"]


def test_a_schedule_that_its_kind_cannot_keep_is_refused(bench: Bench) -> None:
    class Needy(pydantic.BaseModel):
        what: str

    class Command(pydantic.BaseModel):
        pass

    for declared in (
        {"args": Needy},
        {"command": Command},
        {"policy": EXCLUSIVE, "schedule": Schedule("* * * * *", overlap=ALLOW)},
    ):
        with pytest.raises(ValueError):
            bench.kind(**{"schedule": MINUTELY} | declared)
    bench.kind(name="test.one_setting", schedule=MINUTELY)
    with pytest.raises(ValueError, match="one setting"):
        bench.kind(name="test.one.setting", schedule=MINUTELY)


def test_a_failing_sweep_does_not_miss_its_next_tick(bench: Bench) -> None:
    """Its second attempt comes, and ends it, well before then, however long a retry may wait elsewhere."""

    def fail(context: Any, args: Any) -> None:
        raise ValueError("as told")

    bench.settings = dataclasses.replace(bench.settings, queue_retry_base=900.0)
    kind = sweep(bench, run=fail)
    tick(bench, kind)
    decided_up_to(bench, kind, now(bench) - timedelta(minutes=1))
    tick(bench, kind)
    bench.work(kind)
    (job_id,) = jobs(bench, kind)
    assert 0 < bench.job(job_id).due_in <= 30
    bench.make_due(job_id)
    bench.work(kind)
    assert bench.job(job_id).state == "failed"
    run(bench.database, "delete from queue.tick")
    decided_up_to(bench, kind, now(bench) - timedelta(minutes=1))
    tick(bench, kind)
    assert outcomes(bench, kind) == ["fired"]
    # A kind without a schedule waits as long as it is told to.
    other = bench.kind(fail)
    waiting = bench.enqueue(other)
    bench.work(other)
    assert bench.job(waiting).due_in > 800


def test_a_schedule_that_cannot_be_decided_leaves_the_others_alone_and_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken, sound = sweep(bench), sweep(bench)
    worker = Clock(bench.settings, [broken.line, sound.line])
    start = clock._start

    def break_one(connection: Any, plan: plans.Plan, *rest: Any) -> Any:
        if plan.name == broken.name:
            raise RuntimeError("no")
        return start(connection, plan, *rest)

    with bench.connection() as connection:
        worker.act(connection)
        for kind in (broken, sound):
            decided_up_to(bench, kind, now(bench) - timedelta(minutes=1))
        with monkeypatch.context() as patched:
            patched.setattr(clock, "_start", break_one)
            assert worker.act(connection) < 3
        assert (outcomes(bench, broken), outcomes(bench, sound)) == ([], ["fired"])
        assert errors(bench) == {broken.name: "RuntimeError", sound.name: None}
        assert f"schedule {broken.name} cannot be decided: RuntimeError" in caplog.text
        # It is not tried again before its wait is over; then its tick is not lost.
        worker.act(connection)
        assert outcomes(bench, broken) == []
        worker._failing[broken.name] = (1, 0.0)
        worker.act(connection)
    assert outcomes(bench, broken) == ["fired"]
    assert errors(bench) == {broken.name: None, sound.name: None}


def errors(bench: Bench) -> dict[str, str | None]:
    """What is wrong with each schedule."""
    return {found.name: found.error for found in rows(bench.database, "select name, error from queue.schedule")}


class Probe:
    """A chore that does what it is told to, and tells what it noted."""

    name = "probe"

    def __init__(self, acts: list[Callable[[Any], None]]) -> None:
        self._acts = acts
        self.noted: list[str] = []
        self.pids: list[int] = []
        self.done = threading.Event()

    def act(self, connection: psycopg.Connection[Any]) -> float:
        self.pids.append(connection.info.backend_pid)
        if not self._acts:
            self.done.set()
            return 3600
        self._acts.pop(0)(connection)
        return 0.01

    def note(self, connection: psycopg.Connection[Any], error: str) -> None:
        connection.execute("select 1")
        self.noted.append(error)


def test_whatever_a_chore_raises_it_is_tried_again_and_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, admin_url: str
) -> None:
    monkeypatch.setattr("hub.queue.chores.FIRST_WAIT", 0.01)
    monkeypatch.setattr("hub.queue.chores.LONGEST_WAIT", 0.02)

    def wrong(connection: Any) -> None:
        raise KeyError("a mistake")

    def cut_off(connection: psycopg.Connection[Any]) -> None:
        with psycopg.connect(admin_url, autocommit=True) as admin:
            admin.execute("select pg_terminate_backend(%s)", [connection.info.backend_pid])
        connection.execute("select 1")

    def misspelt(connection: psycopg.Connection[Any]) -> None:
        connection.execute("selekt")

    probe = Probe([wrong, cut_off, misspelt, lambda connection: None])
    caplog.set_level("INFO")
    chores = Chores(bench.settings.database_url)
    chores.add(probe, 0.0)
    chores.start()
    assert probe.done.wait(30)
    chores.stop()
    assert probe.noted == ["KeyError", "SyntaxError"]
    # Each failure gets a connection of its own; what works goes on with the last one.
    assert len(probe.pids) == 5 and len(set(probe.pids)) == 4
    assert "probe failed: KeyError" in caplog.text
    assert "probe: AdminShutdown; tried again" in caplog.text
    assert "probe works again" in caplog.text


def test_when_nothing_can_be_looked_at_every_schedule_says_so(bench: Bench) -> None:
    kind = sweep(bench)
    tick(bench, kind)
    with bench.connection() as connection:
        worker = Clock(bench.settings, [kind.line])
        worker.note(connection, "UndefinedColumn")
        assert errors(bench) == {kind.name: "UndefinedColumn"}
        worker.act(connection)
    assert errors(bench) == {kind.name: None}


def test_rows_that_somebody_removed_are_made_again(bench: Bench) -> None:
    kind = sweep(bench)
    with bench.connection() as connection:
        worker = Clock(bench.settings, [kind.line])
        worker.act(connection)
        run(bench.database, "delete from queue.schedule")
        worker.act(connection)
    assert errors(bench) == {kind.name: None}


def test_the_ledger_can_be_read_newest_first(bench: Bench) -> None:
    kind = sweep(bench)
    tick(bench, kind)
    decided_up_to(bench, kind, now(bench) - AWAY)
    tick(bench, kind)
    with bench.connection() as connection:
        all_of_them = ledger.ticks(connection, kind.name)
        assert [entry.due_at for entry in all_of_them] == sorted((entry.due_at for entry in all_of_them), reverse=True)
        assert ledger.ticks(connection, kind.name, before=all_of_them[0].due_at, limit=1) == [all_of_them[1]]
