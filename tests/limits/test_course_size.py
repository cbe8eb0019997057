"""A course as large as a job takes on, and one page more."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.factories import make_course
from tests.limits.harness import Site, Timer, measured, rss, scaled

PAGES = scaled(100_000, 5_000)


def test_largest_course_is_accepted_while_others_create_and_is_tagged_in_flat_memory(
    site: Callable[..., Site],
) -> None:
    hub = site(replicas=2, workers=1, HUB_JOBS_MAX_COURSE_PAGES=str(PAGES))
    team = hub.team()
    large, small = make_course(hub.database, team, PAGES), make_course(hub.database, team, 2)
    client = hub.client(team.admin)
    worker = hub.workers[0]
    before = highest = rss(worker.pid)
    answers = []
    slowest = 0.0

    def create_large() -> None:
        timer = Timer()
        answers.append(client.create(team, large, "biology"))
        measured("creation of the largest course, s", timer.seconds)

    creator = threading.Thread(target=create_large)
    creator.start()
    while creator.is_alive():
        timer = Timer()
        answers.append(client.create(team, small, "chemistry", replica=1))
        slowest = max(slowest, timer.seconds)
    creator.join()
    measured("slowest small creation meanwhile, s", slowest)
    assert {answer.status_code for answer in answers} == {201}

    timer = Timer()
    while hub.count("select count(*) from queue.job where finished_at is null"):
        highest = max(highest, rss(worker.pid))
        assert timer.seconds < 300
    measured(f"tagging of {PAGES} pages, s", timer.seconds)
    measured("growth of the worker's memory, MB", round((highest - before) / 1e6, 1))
    assert highest - before < 20_000_000
    tagged = """
        select count(*) from hub.page p where course_id = :course and exists (
            select from hub.page_tag t join hub.tag g on g.id = t.tag_id where t.page_id = p.id and g.name = 'biology'
        )
    """
    assert hub.count(tagged, course=large) == PAGES
    assert hub.count("select count(*) from queue.worklist") == 0


def test_one_page_too_many_is_refused_and_leaves_nothing(site: Callable[..., Site]) -> None:
    hub = site(replicas=1, workers=0, HUB_JOBS_MAX_COURSE_PAGES=str(PAGES))
    team = hub.team()
    course = make_course(hub.database, team, PAGES + 1)
    before = _traces(hub)
    timer = Timer()
    answer = hub.client(team.admin).create(team, course, "biology")
    measured("refusal of one page too many, s", timer.seconds)
    assert answer.status_code == 422
    assert "course_id" in answer.json()["error"]["fields"]
    assert _traces(hub) == before


def _traces(hub: Site) -> list[int]:
    tables = ("queue.job", "queue.request", "queue.detail", "queue.worklist", "hub.tag")
    queued = "select count(*) from audit.event where action = 'job.queued'"
    return [hub.count(f"select count(*) from {table}") for table in tables] + [hub.count(queued)]
