"""The checker of invariants: it finds what is planted, and nothing on clean runs."""

from __future__ import annotations

import psycopg
import pytest

from hub.config import Settings
from hub.db import Database
from hub.queue.testing import drain
from tests import factories, invariants
from tests.factories import rows
from tests.invariants import Watch

# What breaks which statement; `:live` is a waiting job, `:ended` one that succeeded, both of people.
PLANTS = {
    "A2": "insert into queue.request select j.id, r.workspace_id, r.actor_id, r.actor_name, r.kind, null, '', "
    "'planted' || j.id, r.fingerprint from queue.request r, queue.job j where r.job_id = {live} and j.kind = 'planted'",
    "A3": "update queue.request set workspace_id = (select workspace_id from queue.request where job_id = {live}) "
    "where job_id = {ended}",
    "A6": "alter table queue.request drop constraint request_workspace_id_actor_id_idempotency_key_key",
    "B1": "delete from audit.event where action = 'job.queued' and job_id = {live}",
    "B2": "update queue.request set created_xid = '3' where job_id = {live}",
    "B3": "update queue.job set cancel_requested_at = now() where id = {live}",
    "B4": "update audit.event set action = 'job.failed' where action = 'job.succeeded'",
    "C1": "update queue.request set ended_as = 'failed' where job_id = {ended}",
    "C4": "update queue.job set changed = changed - 1 where id = {ended}",
    "C7": "update queue.detail set error = repeat('x', 2001) where job_id = {ended}",
    "D3": "insert into hub.page_tag (page_id, tag_id, job_id) select gen_random_uuid(), id, {ended} from hub.tag",
    "D4": "update queue.job set attempt = max_attempts + 1 where id = {live}",
    "D6": "insert into queue.dead_letter (job_id, queue, kind, code) values ({ended}, 'q', 'k', 'worker_lost')",
    "E1": "insert into queue.worklist values ({ended}, 0, array[gen_random_uuid()])",
    "E2": "delete from queue.worklist where job_id = {live}",
    "row": "update queue.job set args = '{{}}' where id = {live}",
}
PLANTED_JOBS = """
insert into queue.job (queue, kind, max_attempts, attempt_seconds, args)
select 'planted', 'planted', 5, 5, '{}' from generate_series(1, 5)
"""


def plant(admin_url: str, statement: str) -> None:
    """Do what the product's triggers and keys would refuse."""
    with psycopg.connect(admin_url) as connection:
        connection.execute("set session_replication_role = replica")
        connection.execute("alter table audit.event disable trigger user")
        connection.execute(statement.encode())
        connection.execute("alter table audit.event enable always trigger event_is_append_only")
        connection.execute("alter table audit.event enable always trigger event_is_never_truncated")


def make_history(database: Database, settings: Settings) -> tuple[int, int]:
    """A job that waits and one that succeeded, of two workspaces."""
    first, second = factories.make_team(database), factories.make_team(database)
    ended = factories.start_tagging(database, settings, first, factories.make_course(database, first)).job_id
    drain(database, settings, "workspace.jobs")
    live = factories.start_tagging(database, settings, second, factories.make_course(database, second)).job_id
    return live, ended


def test_nothing_is_found_after_a_clean_run(database: Database, settings: Settings) -> None:
    make_history(database, settings)
    assert invariants.check(database, settings) == []


@pytest.mark.parametrize("name", PLANTS)
def test_each_planted_violation_is_found(database: Database, settings: Settings, admin_url: str, name: str) -> None:
    live, ended = make_history(database, settings)
    limits = {"jobs_max_created_per_day": 1} if name == "A3" else {}
    settings = factories.with_limits(settings, **limits)
    if name == "A2":
        plant(admin_url, PLANTED_JOBS)
    plant(admin_url, PLANTS[name].format(live=live, ended=ended))
    try:
        found = {violation.name: violation for violation in invariants.check(database, settings)}
        assert name in found
        assert found[name].rows
        with pytest.raises(AssertionError, match=f"{name}: "):
            invariants.assert_holds(list(found.values()))
    finally:
        if name == "A6":
            plant(
                admin_url,
                "alter table queue.request add constraint request_workspace_id_actor_id_idempotency_key_key "
                "unique (workspace_id, actor_id, idempotency_key)",
            )


# What breaks which statement of the log, by changes that the engine would never make.
CHANGES = {
    "C1": "update queue.job set state = 'queued', claim = null, version = version + 1, finished_at = null "
    "where id = {ended}",
    "C2": "update queue.job set version = version - 1 where id = {live}",
    "C4": "update queue.job set changed = changed - 1, version = version + 1 where id = {ended}",
    "C6": "update queue.job set cancel_requested_at = now(), version = version + 1 where id = {live}; "
    "update queue.job set cancel_requested_at = null, version = version + 1 where id = {live}",
    "D2": "update queue.job set state = 'running', claim = 7, again_at = now(), deadline_at = now(),"
    " started_at = now(), version = version + 1 where id = {live}; "
    "update queue.job set state = 'queued', claim = null, version = version + 1 where id = {live}; "
    "update queue.job set state = 'running', claim = 7, version = version + 1 where id = {live}",
    "D9": "update queue.job set cancel_requested_at = now(), version = version + 1 where id = {live}; "
    "update queue.job set changed = changed + 1, version = version + 1 where id = {live}",
    "D11": "update hub.page set version = version + 2",
    "fence": "insert into hub.page_tag (page_id, tag_id, job_id) select page.id, tag.id, {live} from hub.page, hub.tag "
    "on conflict do nothing",
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_violation_over_time_is_found(database: Database, settings: Settings, admin_url: str, name: str) -> None:
    watch = Watch(admin_url)
    watch.install()
    try:
        live, ended = make_history(database, settings)
        assert watch.check() == []
        with psycopg.connect(admin_url) as connection:
            connection.execute("alter table queue.job disable trigger ended_jobs_never_change")
            connection.execute(CHANGES[name].format(live=live, ended=ended).encode())
            connection.execute("alter table queue.job enable trigger ended_jobs_never_change")
        assert name in {violation.name for violation in watch.check()}
    finally:
        watch.remove()


def test_a_page_written_twice_for_a_job_is_found(database: Database, settings: Settings, admin_url: str) -> None:
    watch = Watch(admin_url)
    watch.install()
    try:
        _, ended = make_history(database, settings)
        page = rows(database, "select page_id from hub.page_tag limit 1")[0].page_id
        with psycopg.connect(admin_url) as connection:
            connection.execute("delete from hub.page_tag where page_id = %s", [page])
            connection.execute("update hub.page set version = version + 1 where id = %s", [page])
            connection.execute(
                "insert into hub.page_tag (page_id, tag_id, job_id) select %s, id, %s from hub.tag limit 1",
                [page, ended],
            )
        assert "D3" in {violation.name for violation in watch.check()}
    finally:
        watch.remove()
