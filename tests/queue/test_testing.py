"""What the product offers to tests of kinds: see what waits, run it now, stop a worker between its steps."""

from __future__ import annotations

import threading

import pytest

from hub.queue import EXCLUSIVE, testing
from tests.queue.conftest import Bench


def test_what_was_enqueued_is_told_with_its_arguments_and_key(bench: Bench) -> None:
    kind = bench.kind(policy=EXCLUSIVE, priority=2)
    other = bench.kind()
    job_id = bench.enqueue(kind, key="k", subject="thing:1")
    bench.enqueue(other)
    (waiting,) = testing.enqueued(bench.database, kind.name)
    assert (waiting.id, waiting.args, waiting.key, waiting.subject, waiting.priority) == (job_id, {}, "k", "thing:1", 2)
    assert len(testing.enqueued(bench.database)) == 2


def test_a_job_is_run_now_before_older_ones_and_without_its_wait(bench: Bench) -> None:
    ran: list[int] = []
    kind = bench.kind(lambda context, args: ran.append(context.job.id))
    older, due_later = bench.enqueue(kind), bench.enqueue(kind, delay=3600)
    assert testing.run_now(bench.database, bench.settings, due_later) == "succeeded"
    assert ran == [due_later]
    assert testing.drain(bench.database, bench.settings, kind.line) == 1
    assert ran == [due_later, older]
    with pytest.raises(LookupError):
        testing.run_now(bench.database, bench.settings, older)


def test_a_worker_frozen_before_its_last_word_finds_its_claim_gone(bench: Bench) -> None:
    kind = bench.kind()
    job_id = bench.enqueue(kind)
    with testing.freeze("finish") as frozen:
        worker = threading.Thread(target=bench.execute, args=[bench.claim_one(kind)])
        worker.start()
        frozen.await_arrival()
        bench.make_due(job_id)
        (again,) = bench.claim(kind)
        frozen.release()
        worker.join()
        assert bench.job(job_id).state == "running"
        bench.execute(again)
    job = bench.job(job_id)
    assert (job.state, job.attempt) == ("succeeded", 2)
    assert bench.attempts(job_id) == [(1, "lost", "worker_lost")]


def test_only_known_points_can_be_frozen(bench: Bench) -> None:
    with pytest.raises(ValueError, match="no such point"), testing.freeze("lunch"):
        pass
