"""Two people edit a page while two jobs tag it: whatever was acknowledged is in the page at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tests.factories import Team, make_course
from tests.invariants import Watch
from tests.limits.harness import Client, Site, Timer, measured, scaled

ROUNDS = scaled(300, 60)
# A page has room for 100 tags, and each round brings two.
ROUNDS_A_PAGE = 30


@dataclass
class Page:
    """A page under work, and what its writers were told."""

    team: Team
    course_id: UUID
    path: str
    lines: list[str] = field(default_factory=list)
    tags: dict[int, str] = field(default_factory=dict)


def test_every_acknowledged_line_and_tag_is_in_the_page(site: Callable[..., Site], watch: Watch) -> None:
    hub = site()
    team = hub.team()
    clients = [hub.client(team.admin), *(hub.client(hub.add_admin(team)) for _ in range(3))]
    answers: Counter[int] = Counter()
    outcomes: Counter[str] = Counter()
    timer = Timer()
    for _ in range(ROUNDS // ROUNDS_A_PAGE):
        page = _make_page(hub, team)
        with ThreadPoolExecutor(4) as pool:
            writers = [
                pool.submit(_append_lines, clients[0], page, "first", 0, answers),
                pool.submit(_append_lines, clients[1], page, "second", 1, answers),
                pool.submit(_add_tags, clients[2], page, "red", 0),
                pool.submit(_add_tags, clients[3], page, "blue", 1),
            ]
            for writer in writers:
                writer.result()
        hub.await_jobs()
        outcomes += _check(hub, clients[0], page)
    measured(f"{ROUNDS} rounds, s", timer.seconds)
    measured("editors' answers", dict(answers))
    measured("jobs' outcomes", dict(outcomes))
    assert set(answers) == {200, 412}
    assert outcomes["changed"] > 0


def _append_lines(client: Client, page: Page, editor: str, replica: int, answers: Counter[int]) -> None:
    """One try a round, and more until somebody else got in between."""
    for number in range(ROUNDS_A_PAGE):
        for attempt in range(3):
            line = f"line {number}.{attempt} of the {editor} editor"
            seen = client.get(page.path, replica).json()
            body = {"body": f"{seen['body']}{line}\n"}
            answer = client.call("PATCH", page.path, replica, json=body, headers={"If-Match": seen["etag"]})
            answers[answer.status_code] += 1
            if answer.status_code == 200:
                page.lines.append(line)
            else:
                assert answer.status_code == 412, answer.text
                break


def _add_tags(client: Client, page: Page, colour: str, replica: int) -> None:
    for number in range(ROUNDS_A_PAGE):
        tag = f"{colour} {number}"
        answer = client.create(page.team, page.course_id, tag, replica=replica)
        assert answer.status_code == 201, answer.text
        page.tags[answer.json()["id"]] = tag


def _check(hub: Site, client: Client, page: Page) -> Counter[str]:
    final = client.get(page.path).json()
    outcomes: Counter[str] = Counter()
    for job_id, tag in page.tags.items():
        job = hub.job(job_id)
        assert job.state == "succeeded"
        outcomes["changed" if job.changed else "failed"] += 1
        if job.changed:
            assert tag in final["tags"]
        else:
            assert _failure(hub, job_id) == {"edit_conflict": 1}
            assert tag not in final["tags"]
    text = final["body"].splitlines()
    assert [line for line in page.lines if text.count(line) != 1] == []
    assert len(text) == 1 + len(page.lines)
    # No write is missing and none happened twice: each raised the version by one.
    version = hub.row("select version from hub.page where course_id = :id", id=page.course_id).version
    assert version == 1 + len(page.lines) + outcomes["changed"]
    return outcomes


def _failure(hub: Site, job_id: int) -> Any:
    return hub.row("select failures->'counts' from queue.detail where job_id = :id", id=job_id)[0]


def _make_page(hub: Site, team: Team) -> Page:
    course_id = make_course(hub.database, team, 1)
    page = hub.row("select id from hub.page where course_id = :id", id=course_id)
    return Page(team, course_id, f"/w/{team.workspace.slug}/courses/{course_id}/pages/{page.id}")
