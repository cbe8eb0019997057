"""When schedules are due: expressions, zones, changes of clocks, and what becomes of due times that passed."""

from __future__ import annotations

import time
import tracemalloc
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import hypothesis
import pytest
from hypothesis import strategies

from hub.queue.schedule import ALL, ALLOW, FIRED, MISSED, MOST, ONCE, SKIP, SKIPPED, Cron, Schedule, decide

MINUTE = timedelta(minutes=1)


def local(cron: Cron, start: str, count: int) -> list[str]:
    """The next due times after `start` (UTC), on the clock of the zone, with its offset."""
    after = datetime.fromisoformat(start).replace(tzinfo=UTC)
    return [f"{cron.local(due):%d %H:%M%z}" for due in islice(cron.after(after), count)]


# Zone and expression; a time before the change, in UTC; the due times that follow, with day of the month and offset.
CHANGES = {
    "Berlin goes forward, a time that is left out": (
        *("Europe/Berlin", "30 2 * * *", "2026-03-27 12:00"),
        ["28 02:30+0100", "29 03:00+0200", "30 02:30+0200"],
    ),
    "Berlin goes forward, two times that are left out": (
        *("Europe/Berlin", "0,30 2 * * *", "2026-03-28 12:00"),
        ["29 03:00+0200", "30 02:00+0200", "30 02:30+0200"],
    ),
    "Berlin goes forward, a time after the change": (
        *("Europe/Berlin", "0 3 * * *", "2026-03-28 12:00"),
        ["29 03:00+0200", "30 03:00+0200"],
    ),
    "Berlin goes forward, a rhythm": (
        *("Europe/Berlin", "*/20 * * * *", "2026-03-29 00:30"),
        ["29 01:40+0100", "29 03:00+0200", "29 03:20+0200"],
    ),
    "Berlin goes forward, a rhythm of hours": (
        *("Europe/Berlin", "15 */2 * * *", "2026-03-28 22:30"),
        ["29 00:15+0100", "29 04:15+0200", "29 06:15+0200"],
    ),
    "Berlin goes back, a time that comes twice": (
        *("Europe/Berlin", "30 2 * * *", "2026-10-23 12:00"),
        ["24 02:30+0200", "25 02:30+0200", "26 02:30+0100"],
    ),
    "Berlin goes back, asked between the two": (
        *("Europe/Berlin", "45 2 * * *", "2026-10-25 01:30"),
        ["26 02:45+0100"],
    ),
    "Berlin goes back, a rhythm": (
        *("Europe/Berlin", "*/30 * * * *", "2026-10-24 23:45"),
        ["25 02:00+0200", "25 02:30+0200", "25 02:00+0100", "25 02:30+0100", "25 03:00+0100"],
    ),
    "New York goes forward, a time that is left out": (
        *("America/New_York", "15 2 * * *", "2026-03-07 12:00"),
        ["08 03:00-0400", "09 02:15-0400"],
    ),
    "New York goes forward, a rhythm": (
        *("America/New_York", "*/30 * * * *", "2026-03-08 06:15"),
        ["08 01:30-0500", "08 03:00-0400", "08 03:30-0400"],
    ),
    "New York goes back, a time that comes twice": (
        *("America/New_York", "15 1 * * *", "2026-10-31 12:00"),
        ["01 01:15-0400", "02 01:15-0500"],
    ),
    "New York goes back, a rhythm": (
        *("America/New_York", "40 * * * *", "2026-11-01 05:00"),
        ["01 01:40-0400", "01 01:40-0500", "01 02:40-0500"],
    ),
    "Santiago goes forward at midnight, a time that is left out": (
        *("America/Santiago", "0 0 * * *", "2026-09-05 12:00"),
        ["06 01:00-0300", "07 00:00-0300"],
    ),
    "Santiago goes forward at midnight, on that day only": (
        *("America/Santiago", "30 0 6 9 *", "2026-09-05 12:00"),
        ["06 01:00-0300", "06 00:30-0300"],
    ),
    "Santiago goes forward at midnight, a rhythm": (
        *("America/Santiago", "30 * * * *", "2026-09-06 03:00"),
        ["05 23:30-0400", "06 01:30-0300", "06 02:30-0300"],
    ),
    "Santiago goes back at midnight, a time that comes twice": (
        *("America/Santiago", "30 23 * * *", "2026-04-04 12:00"),
        ["04 23:30-0300", "05 23:30-0400"],
    ),
    "Santiago goes back at midnight, the midnight after": (
        *("America/Santiago", "0 0 * * *", "2026-04-04 12:00"),
        ["05 00:00-0400", "06 00:00-0400"],
    ),
    "Santiago goes back at midnight, a rhythm": (
        *("America/Santiago", "*/30 * * * *", "2026-04-05 01:45"),
        ["04 23:00-0300", "04 23:30-0300", "04 23:00-0400", "04 23:30-0400", "05 00:00-0400"],
    ),
    "Lord Howe goes forward by half an hour, a time that is left out": (
        *("Australia/Lord_Howe", "15 2 * * *", "2026-10-03 12:00"),
        ["04 02:30+1100", "05 02:15+1100"],
    ),
    "Lord Howe goes forward by half an hour, a time after it": (
        *("Australia/Lord_Howe", "45 2 * * *", "2026-10-03 12:00"),
        ["04 02:45+1100", "05 02:45+1100"],
    ),
    "Lord Howe goes forward by half an hour, a rhythm": (
        *("Australia/Lord_Howe", "45 * * * *", "2026-10-03 14:30"),
        ["04 01:45+1030", "04 02:45+1100", "04 03:45+1100"],
    ),
    "Lord Howe goes back by half an hour, a time that comes twice": (
        *("Australia/Lord_Howe", "40 1 * * *", "2026-04-04 10:00"),
        ["05 01:40+1100", "06 01:40+1030"],
    ),
    "Lord Howe goes back by half an hour, a rhythm": (
        *("Australia/Lord_Howe", "45 * * * *", "2026-04-04 14:00"),
        ["05 01:45+1100", "05 01:45+1030", "05 02:45+1030"],
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_clocks_loses_and_doubles_nothing_it_should_not(change: str) -> None:
    zone, text, start, expected = CHANGES[change]
    assert local(Cron(text, zone), start, len(expected)) == expected


NOTES = {
    ("Europe/Berlin", "30 2 * * *", "2026-03-28 12:00"): "moved",
    ("Europe/Berlin", "30 2 * * *", "2026-03-29 12:00"): None,
    ("Europe/Berlin", "30 2 * * *", "2026-10-24 12:00"): "once",
    ("Europe/Berlin", "*/30 * * * *", "2026-10-25 00:00"): "first",
    ("Europe/Berlin", "*/30 * * * *", "2026-10-25 01:00"): "second",
    ("Europe/Berlin", "*/30 * * * *", "2026-10-25 02:00"): None,
    ("America/Santiago", "0 0 * * *", "2026-09-05 12:00"): "moved",
    ("Australia/Lord_Howe", "40 1 * * *", "2026-04-04 10:00"): "once",
    ("UTC", "30 2 * * *", "2026-03-28 12:00"): None,
}


@pytest.mark.parametrize("case", NOTES)
def test_a_due_time_says_what_a_change_of_clocks_does_to_it(case: tuple[str, str, str]) -> None:
    zone, text, start = case
    cron = Cron(text, zone)
    due = cron.next(datetime.fromisoformat(start).replace(tzinfo=UTC))
    assert due is not None
    assert cron.note(due) == NOTES[case]


def matching(field: str, size: int) -> set[int]:
    """The values that a field of a simple form stands for."""
    if field.startswith("*"):
        return set(range(0, size, int(field[2:] or 1)))
    return {int(value) for value in field.split(",")}


def by_looking_at_every_minute(minute: str, hour: str, zone: ZoneInfo, start: datetime, days: int) -> list[datetime]:
    """All due times of ``minute hour * * *``, by the rules in words and nothing else."""
    minutes, hours = matching(minute, 60), matching(hour, 24)
    moments = [start + n * MINUTE for n in range(1, days * 1440)]
    walls = [moment.astimezone(zone).replace(tzinfo=None, fold=0) for moment in moments]
    if minute.startswith("*") or hour.startswith("*"):
        return [
            moment for moment, wall in zip(moments, walls, strict=True) if wall.minute in minutes and wall.hour in hours
        ]
    due = set()
    wall = walls[0]
    while wall <= walls[-1]:
        if wall.minute in minutes and wall.hour in hours and wall > start.astimezone(zone).replace(tzinfo=None):
            due.add(next(moment for moment, now in zip(moments, walls, strict=True) if now >= wall))
        wall += MINUTE
    return sorted(due)


steps = strategies.sampled_from(["*", "*/5", "*/7", "*/45"])
minutes = strategies.lists(strategies.integers(0, 59), min_size=1, max_size=3).map(
    lambda some: ",".join(map(str, some))
)
hours = strategies.lists(strategies.integers(0, 3) | strategies.just(23), min_size=1, max_size=3)


CHANGE_EVES = [
    *(("Europe/Berlin", "2026-03-28"), ("Europe/Berlin", "2026-10-24")),
    *(("America/New_York", "2026-03-07"), ("America/New_York", "2026-10-31")),
    *(("America/Santiago", "2026-04-04"), ("America/Santiago", "2026-09-05")),
    *(("Australia/Lord_Howe", "2026-04-04"), ("Australia/Lord_Howe", "2026-10-03")),
    *(("Africa/Casablanca", "2026-02-14"), ("UTC", "2026-03-28")),
]


@hypothesis.settings(max_examples=80, deadline=None)
@hypothesis.given(
    eve=strategies.sampled_from(CHANGE_EVES),
    minute=steps | minutes,
    hour=strategies.sampled_from(["*", "*/2"]) | hours.map(lambda some: ",".join(map(str, some))),
)
def test_due_times_are_those_that_the_clock_on_the_wall_shows(eve: tuple[str, str], minute: str, hour: str) -> None:
    zone, change = eve
    start = datetime.fromisoformat(change).replace(hour=8, tzinfo=UTC)
    expected = by_looking_at_every_minute(minute, hour, ZoneInfo(zone), start, days=2)
    found = [*islice(Cron(f"{minute} {hour} * * *", zone).after(start), len(expected))]
    assert found == expected


def test_due_times_are_whole_seconds_strictly_after_the_time_asked() -> None:
    cron = Cron("* * * * *")
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    assert cron.next(noon) == noon + MINUTE
    assert cron.next(noon - timedelta(microseconds=1)) == noon
    assert cron.next(noon + timedelta(microseconds=1)) == noon + MINUTE


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="zone"):
        Cron("* * * * *").next(datetime(2026, 5, 1))


ODD = {
    "0 0 31 2 *": "bad day-of-month",
    "0 0 30 2 *": "bad day-of-month",
    "0 0 */31 2 MON#5": "never does",
    "* * * * * *": "five fields",
    "* * * *": "five fields",
    "": "five fields",
    "@daily": "five fields",
    "60 * * * *": "bad minute",
    "*/0 * * * *": "bad minute",
    "1-100000000 * * * *": "bad minute",
    "1--100000000 * * * *": "bad minute",
    "* 5-1 * * *": "bad hour",
    "* * ? * *": "bad day-of-month",
    "٣ * * * *": "bad minute",
    "*\x00 * * * *": "bad minute",
    "9" * 5000 + " * * * *": "at most 100",
    "0 2 * * * DROP TABLE": "five fields",
}


@pytest.mark.parametrize("text", ODD)
def test_an_expression_that_makes_no_sense_or_never_comes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=ODD[text]) as refused:
        Cron(text)
    assert str(refused.value).startswith("must")


def test_a_time_that_only_a_change_of_clocks_would_leave_room_for_never_comes() -> None:
    """The fifth Sunday of March is the day on which two o'clock is left out in Berlin."""
    with pytest.raises(ValueError, match="never does"):
        Cron("*/5 2 * 3 SUN#5", "Europe/Berlin")
    assert Cron("*/5 2 * 3 SUN#5", "UTC")


def test_a_zone_that_is_none_is_refused() -> None:
    for zone in ("Mars/Olympus", "../../etc/passwd", "", "Europe"):
        with pytest.raises(ValueError, match="time zone"):
            Cron("* * * * *", zone)


def test_rare_dates_come() -> None:
    assert local(Cron("0 0 29 2 *"), "2026-01-01 00:00", 1) == ["29 00:00+0000"]
    assert local(Cron("0 0 * 2 MON#5"), "2072-03-01 00:00", 1) == ["29 00:00+0000"]


pieces = strategies.sampled_from(list("0123456789*/,-#L?W ") + ["MON", "FEB", "*/", "31", "2 ", "\n", "９", "²"])


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(text=strategies.text(max_size=200) | strategies.lists(pieces, max_size=60).map("".join))
def test_any_text_is_judged_at_little_cost(text: str) -> None:
    tracemalloc.start()
    began = time.process_time()
    try:
        cron = Cron(text, "Australia/Lord_Howe")
        assert cron.next(datetime(2031, 7, 1, tzinfo=UTC)) is not None
    except ValueError:
        pass
    seconds, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Hundreds of times what it takes, so that a busy machine does not matter.
    assert seconds < 10 and peak < 10_000_000


def test_what_passed_is_found_from_its_end_however_much_it_is() -> None:
    cron = Cron("* * * * *")
    until = datetime(2026, 6, 1, tzinfo=UTC)
    found, more = cron.latest(until - timedelta(days=3650), until, 100)
    assert (len(found), found[0], found[-1], more) == (100, until - 99 * MINUTE, until, True)
    assert cron.latest(until - 3 * MINUTE, until, 3) == ([until - 2 * MINUTE, until - MINUTE, until], False)
    assert cron.latest(until - 4 * MINUTE, until, 3)[1]
    assert cron.latest(until, until, 3) == ([], False)
    # Many at once, then none for long.
    found, more = Cron("* * 1 1 *").latest(until - timedelta(days=800), until, 5)
    assert ([f"{due:%m-%d %H:%M}" for due in found], more) == (
        ["01-01 23:55", "01-01 23:56", "01-01 23:57", "01-01 23:58", "01-01 23:59"],
        True,
    )


def test_the_shortest_pause_between_two_due_times_is_known() -> None:
    assert Cron("*/5 * * * *").shortest() == 300
    assert Cron("0,1 3 * * *").shortest() == 60
    assert Cron("0 0 29 2 *").shortest() > 86_400 * 365


NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def decided(missed: str, after: datetime, now: datetime, paused_at: datetime | None = None) -> list[tuple[str, str]]:
    """(minute, outcome) of what becomes of a schedule's due times, every ten minutes."""
    schedule = Schedule("*/10 * * * *", overlap=ALLOW, missed=missed)
    ticks = decide(schedule, Cron(schedule.cron), after=after, now=now, paused_at=paused_at)
    return [(f"{tick.due_at:%H:%M}", tick.outcome) for tick in ticks]


def test_a_tick_is_due_once_however_close_to_it_one_looks() -> None:
    for missed in (SKIP, ONCE, ALL):
        before = NOON - 10 * MINUTE
        assert decided(missed, before, NOON - timedelta(milliseconds=1)) == []
        assert decided(missed, before, NOON) == [("12:00", FIRED)]
        assert decided(missed, before, NOON + timedelta(milliseconds=1)) == [("12:00", FIRED)]
        assert decided(missed, NOON, NOON + timedelta(milliseconds=1)) == []


def test_a_clock_that_is_put_back_repeats_nothing() -> None:
    for missed in (SKIP, ONCE, ALL):
        assert decided(missed, NOON, NOON - timedelta(seconds=90)) == []


def test_due_times_that_passed_follow_the_policy_and_each_is_recorded() -> None:
    after, now = NOON - 40 * MINUTE, NOON + MINUTE
    on_time = [("11:30", MISSED), ("11:40", MISSED), ("11:50", MISSED), ("12:00", FIRED)]
    assert decided(SKIP, after, now) == on_time
    assert decided(ONCE, after, now) == on_time
    assert decided(ALL, after, now) == [(minute, FIRED) for minute, _ in on_time]


def test_what_is_found_late_is_made_up_for_or_not_as_the_policy_says() -> None:
    after, now = NOON - 20 * MINUTE, NOON + 6 * MINUTE
    assert decided(SKIP, after, now) == [("11:50", MISSED), ("12:00", MISSED)]
    assert decided(ONCE, after, now) == [("11:50", MISSED), ("12:00", FIRED)]
    assert decided(ALL, after, now) == [("11:50", FIRED), ("12:00", FIRED)]


def test_a_paused_schedule_skips_what_comes_due_and_missed_what_came_before() -> None:
    after, now = NOON - 30 * MINUTE, NOON + MINUTE
    for missed in (SKIP, ONCE, ALL):
        assert decided(missed, after, now, paused_at=NOON - 15 * MINUTE) == [
            ("11:40", MISSED),
            ("11:50", SKIPPED),
            ("12:00", SKIPPED),
        ]


def test_what_passed_in_years_is_bounded_and_nothing_is_left_out() -> None:
    for missed, fired in ((SKIP, 1), (ONCE, 1), (ALL, MOST)):
        schedule = Schedule("* * * * *", overlap=ALLOW, missed=missed)
        after = NOON - timedelta(days=1000)
        ticks = decide(schedule, Cron(schedule.cron), after=after, now=NOON)
        assert len(ticks) == MOST + 1
        assert [tick.outcome for tick in ticks].count(FIRED) == fired
        first, *rest = ticks
        assert (first.due_at, first.outcome) == (after + MINUTE, MISSED)
        assert first.through_at == rest[0].due_at - MINUTE
        assert [tick.due_at for tick in rest] == [NOON - n * MINUTE for n in reversed(range(MOST))]


def test_a_schedule_that_contradicts_itself_is_refused() -> None:
    for wrong in (
        {"cron": "nonsense"},
        {"cron": "* * * * *", "time_zone": "Nowhere"},
        {"cron": "* * * * *", "overlap": "never"},
        {"cron": "* * * * *", "missed": "some"},
        {"cron": "* * * * *", "missed": ALL, "overlap": SKIP},
    ):
        with pytest.raises(ValueError):
            Schedule(**wrong)
    assert Schedule("").cron == ""
