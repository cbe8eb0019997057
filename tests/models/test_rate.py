"""Sliding windows: never more than the limit in any window, over any number of callers."""

from __future__ import annotations

import threading
from typing import Any

from hub.models import rate
from tests import factories
from tests.web.visitor import rows


def hit(database: Any, key: str = "k", limit: int = 3, seconds: float = 60) -> rate.Verdict:
    with database.transaction() as session:
        return rate.hit(session, key, limit=limit, seconds=seconds)


def age(database: Any, seconds: float) -> None:
    """Let so much time pass for all windows."""
    factories.run(
        database,
        "update hub.rate_window set touched_at = touched_at - make_interval(secs => :seconds),"
        " hits = (select array_agg(h - make_interval(secs => :seconds) order by h) from unnest(hits) h)",
        seconds=seconds,
    )


def test_so_many_and_no_more(database: Any) -> None:
    assert [hit(database).allowed for _ in range(5)] == [True, True, True, False, False]


def test_the_wait_is_that_of_the_oldest_hit(database: Any) -> None:
    hit(database)
    age(database, 20)
    hit(database)
    hit(database)
    assert 39 < hit(database).retry_after <= 40


def test_after_the_wait_there_is_room_for_one(database: Any) -> None:
    hit(database)
    age(database, 30)
    hit(database)
    hit(database)
    age(database, 31)
    assert [hit(database).allowed, hit(database).allowed] == [True, False]


def test_refused_hits_do_not_count(database: Any) -> None:
    for _ in range(10):
        hit(database)
    age(database, 61)
    assert [hit(database).allowed for _ in range(4)] == [True, True, True, False]


def test_keys_do_not_share(database: Any) -> None:
    assert [hit(database, key=key, limit=1).allowed for key in ("a", "b", "a")] == [True, True, False]


def test_a_lower_limit_counts_from_what_is_there(database: Any) -> None:
    for _ in range(5):
        hit(database, limit=5)
    refused = hit(database, limit=2)
    assert not refused.allowed and refused.retry_after > 59


def test_callers_at_once_get_exactly_the_limit(database: Any) -> None:
    verdicts: list[bool] = []
    start = threading.Barrier(12)

    def call() -> None:
        start.wait()
        for _ in range(5):
            verdicts.append(hit(database, limit=10).allowed)

    threads = [threading.Thread(target=call) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(verdicts), sum(verdicts)) == (60, 10)


def test_a_window_holds_no_more_than_its_limit(database: Any) -> None:
    for _ in range(20):
        hit(database)
    assert rows(database, "select cardinality(hits) from hub.rate_window") == [(3,)]


def test_old_windows_are_forgotten(database: Any) -> None:
    hit(database, key="old")
    age(database, 90_000)
    hit(database, key="new")
    with database.transaction() as session:
        assert rate.forget_old(session) == 1
    assert rows(database, "select key from hub.rate_window") == [("new",)]
