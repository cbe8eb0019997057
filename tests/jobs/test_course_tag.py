"""course.tag: what it does to pages, what it records, and how it ends."""

from __future__ import annotations

from hub.config import Settings
from hub.db import Database
from hub.queue.testing import drain
from tests import factories
from tests.factories import row, rows


def test_every_page_gets_the_tags_and_nothing_else_of_it_changes(database: Database, settings: Settings) -> None:
    team = factories.make_team(database)
    course = factories.make_course(database, team, pages=5)
    before = rows(database, "select id, title, md5(body) from hub.page order by position")

    job = factories.start_tagging(database, settings, team, course, "Cells", "Plants").job_id
    drain(database, settings, "workspace.jobs")

    assert rows(database, "select id, title, md5(body) from hub.page order by position") == before
    assert row(database, "select count(*) from hub.page_tag where job_id = :job", job=job).count == 10
    assert {r.version for r in rows(database, "select version from hub.page")} == {2}
    ended = row(database, "select state::text, total, changed, skipped, failed from queue.job where id = :id", id=job)
    assert tuple(ended) == ("succeeded", 5, 5, 0, 0)
