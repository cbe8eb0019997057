"""workspace.restore: the new workspace is what the backup holds, or there is none."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from hub.errors import Invalid
from hub.jobs import workspace_restore
from hub.jobs.workspace_restore import Attempt, slug_of
from hub.models import backup, workspace
from hub.models import people as members
from hub.models.backup import Backup
from hub.models.records import Restoring
from tests import factories
from tests.factories import Team, row, rows, run
from tests.jobs.conftest import Desk
from tests.jobs.vault import Vault, add_page, without_ids

pytestmark = pytest.mark.usefixtures("watch")


@pytest.fixture
def vault(desk: Desk) -> Vault:
    """A team of an admin, a member and a viewer, with a course of three pages, two of them tagged."""
    course = desk.course(0)
    for number in (1, 2, 3):
        add_page(desk, course, number, f"Page {number}", f"Text {number}\n", *["Cells", "Life"][: number - 1])
    desk.member("member")
    desk.member("viewer")
    return Vault(desk)


def restored(vault: Vault, job_id: int) -> Vault:
    """The workspace that a job has made, as its admin sees it."""
    result = row(vault.database, "select result from queue.detail where job_id = :id", id=job_id).result
    with vault.database.transaction() as session:
        found = workspace.find(session, result["slug"])
    assert found is not None and found.enabled and str(found.id) == result["workspace_id"]
    return Vault(Desk(vault.database, vault.desk.settings, Team(found, vault.desk.team.admin)))


def result_of(vault: Vault, job_id: int) -> Any:
    return row(vault.database, "select result from queue.detail where job_id = :id", id=job_id).result


def there_is_nothing_else(vault: Vault) -> bool:
    """Whether everything in the database belongs to the team's workspace."""
    counts = row(
        vault.database,
        "select (select count(*) from hub.workspace) as workspaces,"
        " (select count(*) from hub.course where workspace_id <> :id) as courses,"
        " (select count(*) from hub.tag where workspace_id <> :id) as tags,"
        " (select count(*) from hub.membership where workspace_id <> :id) as members,"
        " (select count(*) from hub.page) as pages, (select count(*) from hub.page_tag) as page_tags",
        id=vault.workspace_id,
    )
    return tuple(counts) == (1, 0, 0, 0, 3, 3)


# The round trip


def test_a_restored_workspace_is_what_was_backed_up(vault: Vault) -> None:
    made = vault.make()
    job_id = vault.restore(made, "Biology, restored")
    vault.desk.work()
    copy = restored(vault, job_id)
    assert (copy.desk.team.workspace.slug, copy.desk.team.workspace.name) == ("biology-restored", "Biology, restored")
    assert without_ids(copy.tables(copy.make())) == without_ids(vault.tables(made))
    job = vault.desk.job(job_id)
    assert (job.state, job.changed, job.total) == ("succeeded", made.records, made.records)
    assert result_of(vault, job_id)["left_out"] == {}


# Everything that PostgreSQL's text holds: any letters, both forms of accents, both directions, controls but for NUL.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
ODD = st.sampled_from(
    [
        "e\u0301 and \u00e9",
        "\u202egnp.exe \u05d0\u05d1",
        "".join(map(chr, range(1, 32))) + "\x7f\x85\u2028\u2029\ufeff",
        '"\\/\b\f\n\r\t{}[]:,\\u0000',
        "\U0001f6b0\U0001f468\u200d\U0001f469",
        "\uffff\U0010ffff\ufffd",
        "%s :name \\ ''",
        "",
    ]
)
BODY = st.one_of(TEXT, ODD, st.builds(lambda text: (text or "x") * (999_000 // len((text or "x").encode())), ODD))
PAGE = st.tuples(st.one_of(TEXT, ODD), BODY, st.sets(st.sampled_from(["Cells", "Übung", "U\u0308ber", "生物"])))
COURSES = st.lists(st.tuples(st.one_of(TEXT, ODD), st.lists(PAGE, max_size=4)), max_size=3)


@hypothesis_settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(courses=COURSES)
def test_any_workspace_comes_back_equal_but_for_ids(vault: Vault, courses: Any) -> None:
    run(vault.database, "delete from hub.page_tag")
    run(vault.database, "delete from hub.page where course_id in (select id from hub.course where workspace_id = :id)",
        id=vault.workspace_id)  # fmt: skip
    run(vault.database, "delete from hub.course where workspace_id = :id", id=vault.workspace_id)
    for title, pages in courses:
        course = vault.desk.course(0)
        run(vault.database, "update hub.course set title = :title where id = :id", title=title, id=course)
        for position, (name, body, tags) in enumerate(pages):
            add_page(vault.desk, course, position, name, body, *tags)
    made = vault.make()
    job_id = vault.restore(made)
    vault.desk.work()
    assert vault.desk.job(job_id).code is None
    copy = restored(vault, job_id)
    assert without_ids(copy.tables(copy.make())) == without_ids(vault.tables(made))


def test_restoring_twice_makes_two_workspaces_with_addresses_of_their_own(vault: Vault) -> None:
    made = vault.make()
    slugs = []
    for _ in range(3):
        job_id = vault.restore(made, "Again")
        vault.desk.work()
        slugs.append(restored(vault, job_id).desk.team.workspace.slug)
    assert slugs == ["again", "again-2", "again-3"]
    before = vault.tables(made)
    assert without_ids(vault.tables(vault.make())) == without_ids(before)


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Phòng Kỹ thuật 🚰", "phong-ky-thuat"),
        ("Đà Nẵng", "da-nang"),
        ("生物", "restored"),
        ("--A--b  C!", "a-b-c"),
        ("x" * 120, "x" * 40),
    ],
)
def test_an_address_is_made_of_the_name(name: str, slug: str) -> None:
    assert slug_of(name) == slug
    assert workspace.SLUG.match(slug)


def test_it_is_told_in_both_workspaces(vault: Vault) -> None:
    job_id = vault.restore(vault.make(), "Copy")
    vault.desk.work()
    copy = restored(vault, job_id)
    told = "select action, workspace_id, job_id, changes from audit.event where action like '%.restored' order by id"
    source, new = rows(vault.database, told)
    assert (source.action, source.workspace_id, source.job_id) == ("backup.restored", vault.workspace_id, job_id)
    assert source.changes == {"name": "Copy", "workspace": "copy"}
    assert (new.action, new.workspace_id) == ("workspace.restored", copy.workspace_id)
    assert new.changes["records"] == result_of(vault, job_id)["records"]


# Who gets in


def roles(copy: Vault) -> dict[str, tuple[str, bool]]:
    query = (
        "select p.name, m.role, m.enabled from hub.membership m join hub.person p on p.id = m.person_id"
        " where m.workspace_id = :id"
    )
    return {one.name: (one.role, one.enabled) for one in rows(copy.database, query, id=copy.workspace_id)}


def test_nobody_gets_more_than_they_have_now_in_the_workspace_it_was_made_of(vault: Vault) -> None:
    people = {name: vault.desk.member("admin") for name in ("lowered", "closed", "removed", "raised")}
    run(vault.database, "update hub.membership set role = 'viewer' where person_id = :id", id=people["raised"].id)
    made = vault.make()
    run(vault.database, "update hub.membership set role = 'viewer' where person_id = :id", id=people["lowered"].id)
    run(vault.database, "update hub.membership set enabled = false where person_id = :id", id=people["closed"].id)
    run(vault.database, "update hub.membership set role = 'admin' where person_id = :id", id=people["raised"].id)
    run(vault.database, "delete from hub.membership where person_id = :id", id=people["removed"].id)
    job_id = vault.restore(made)
    vault.desk.work()
    found = roles(restored(vault, job_id))
    assert found[people["lowered"].name] == ("viewer", True)
    assert found[people["closed"].name] == ("admin", False)
    assert found[people["raised"].name] == ("viewer", True)
    assert people["removed"].name not in found
    assert result_of(vault, job_id)["left_out"] == {"people_without_right": 1}
    assert result_of(vault, job_id)["people_left_out"] == [people["removed"].name]


def test_people_whose_address_is_unknown_are_left_out_and_named(vault: Vault) -> None:
    made = vault.make()
    gone = row(vault.database, "select p.id, p.name from hub.person p join hub.membership m on m.person_id = p.id"
               " where m.role = 'viewer'")  # fmt: skip
    run(vault.database, "update hub.person set email = 'new@hub.example' where id = :id", id=gone.id)
    job_id = vault.restore(made)
    vault.desk.work()
    result = result_of(vault, job_id)
    assert (result["left_out"], result["people_left_out"]) == ({"unknown_people": 1}, [gone.name])


def test_whoever_restores_is_an_admin_of_it_whatever_they_were_then(vault: Vault) -> None:
    made = vault.make()
    later = vault.desk.member("admin")
    job_id = vault.restore(made, actor=later)
    vault.desk.work()
    assert roles(restored(vault, job_id))[later.name] == ("admin", True)


# The end


@contextmanager
def stopped_at_pages(vault: Vault, made: Backup) -> Iterator[int]:
    """A restoring job that has come to the pages; when the block is left, it goes on to its end."""
    reached, go_on = threading.Event(), threading.Event()
    real = Restoring._pages

    def wait(self: Restoring) -> None:
        reached.set()
        assert go_on.wait(60)
        real(self)

    job_id = vault.restore(made)
    worker = threading.Thread(target=vault.desk.work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Restoring, "_pages", wait)
        worker.start()
        assert reached.wait(60)
        try:
            yield job_id
        finally:
            go_on.set()
            worker.join(60)
    assert not worker.is_alive()


def test_nothing_is_to_be_seen_before_it_is_finished(vault: Vault) -> None:
    with stopped_at_pages(vault, vault.make()) as job_id:
        assert there_is_nothing_else(vault)
        with vault.database.transaction() as session:
            assert len(workspace.of_person(session, vault.desk.team.admin.id)) == 1
    assert restored(vault, job_id).desk.team.workspace.enabled


def test_a_cancelled_restore_leaves_nothing(vault: Vault) -> None:
    made = vault.make()
    waiting = vault.restore(made)
    vault.desk.cancel(waiting)
    with stopped_at_pages(vault, made) as running:
        vault.desk.cancel(running)
    assert [vault.desk.job(job_id).state for job_id in (waiting, running)] == ["cancelled", "cancelled"]
    assert there_is_nothing_else(vault)


def lose_right(vault: Vault) -> None:
    run(vault.database, "update hub.membership set role = 'member' where person_id = :id", id=vault.desk.team.admin.id)


def test_a_right_lost_in_the_middle_leaves_nothing(vault: Vault) -> None:
    with stopped_at_pages(vault, vault.make()) as job_id:
        lose_right(vault)
    assert vault.desk.job(job_id).code == "actor_not_authorized"
    assert there_is_nothing_else(vault)


def after_the_data(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Do something when the data are in the database and the job has not ended."""
    real = Attempt.run

    def then_act(self: Attempt) -> dict[str, Any]:
        result = real(self)
        act()
        return result

    monkeypatch.setattr(Attempt, "run", then_act)


def test_a_right_lost_before_the_last_transaction_leaves_nothing(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = vault.restore(vault.make())
    after_the_data(monkeypatch, lambda: lose_right(vault))
    vault.desk.work()
    assert vault.desk.job(job_id).code == "actor_not_authorized"
    assert there_is_nothing_else(vault)


def test_what_a_killed_worker_has_put_there_is_replaced_by_the_next_attempt(
    vault: Vault, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = vault.make()
    job_id = vault.restore(made, "Once")
    deaths = [0]

    def die_once() -> None:
        deaths[0] += 1
        if deaths[0] == 1:
            assert not there_is_nothing_else(vault)
            run(vault.database, "update queue.job set again_at = statement_timestamp() where id = :id", id=job_id)
            vault.desk.work()

    after_the_data(monkeypatch, die_once)
    vault.desk.work()
    assert (vault.desk.job(job_id).attempt, deaths) == (2, [2])
    copy = restored(vault, job_id)
    assert copy.desk.team.workspace.slug == "once"
    assert len(rows(vault.database, "select from hub.workspace")) == 2
    assert without_ids(copy.tables(copy.make())) == without_ids(vault.tables(made))


def test_a_worker_whose_claim_was_taken_puts_nothing_there(vault: Vault) -> None:
    made = vault.make()
    with stopped_at_pages(vault, made) as job_id:
        run(vault.database, "update queue.job set claim = claim + 1, version = version + 1 where id = :id", id=job_id)
    assert there_is_nothing_else(vault)
    run(vault.database, "update queue.job set again_at = statement_timestamp() where id = :id", id=job_id)
    vault.desk.work()
    assert restored(vault, job_id).desk.team.workspace.enabled


def test_a_damaged_backup_is_refused_and_nothing_is_written(vault: Vault) -> None:
    made = vault.make()
    content = bytearray(vault.content(made))
    content[len(content) // 2] ^= 1
    vault.path(made).write_bytes(content)
    job_id = vault.restore(made)
    vault.desk.work()
    assert vault.desk.job(job_id).code in ("backup_damaged", "backup_structure")
    assert vault.desk.job(job_id).attempt == 1
    assert there_is_nothing_else(vault)


def test_a_backup_that_is_gone_is_told(vault: Vault) -> None:
    made, deleted = vault.make(), vault.make()
    job_id, other_id = vault.restore(made), vault.restore(deleted)
    vault.path(made).unlink()
    with vault.database.transaction() as session:
        backup.delete(session, vault.workspace_id, deleted.id, vault.desk.team.actor)
    vault.desk.work()
    assert [vault.desk.job(one).code for one in (job_id, other_id)] == ["backup_missing", "backup_missing"]
    with pytest.raises(Invalid) as refused:
        vault.restore(deleted)
    assert set(refused.value.fields) == {"backup_id"}


def test_a_backup_of_another_workspace_cannot_be_restored(vault: Vault) -> None:
    made = vault.make()
    other = Vault(Desk(vault.database, vault.desk.settings, factories.make_team(vault.database)))
    for wrong in (made.id, uuid.uuid4()):
        with pytest.raises(Invalid) as refused:
            other.restore(made, args={"backup_id": str(wrong), "name": "Mine"})
        assert set(refused.value.fields) == {"backup_id"}
    assert rows(vault.database, "select from queue.job where kind = 'workspace.restore'") == []


@pytest.mark.parametrize("name", ["", "  ", "x" * 121, "a\nb", "\u200b", 7, None])
def test_a_name_that_will_not_do_is_refused(vault: Vault, name: Any) -> None:
    made = vault.make()
    with pytest.raises(Invalid) as refused:
        vault.restore(made, args={"backup_id": str(made.id), "name": name})
    assert set(refused.value.fields) == {"name"}


def test_a_restored_workspace_that_is_closed_later_stays(vault: Vault) -> None:
    job_id = vault.restore(vault.make())
    vault.desk.work()
    copy = restored(vault, job_id)
    with vault.database.transaction() as session:
        members.set_workspace_enabled(session, copy.desk.team.workspace, False, copy.desk.team.actor)
    other = vault.restore(vault.make())
    vault.desk.cancel(other)
    vault.desk.work()
    assert len(rows(vault.database, "select from hub.workspace")) == 2
    assert workspace_restore.slug_of("Restored") == copy.desk.team.workspace.slug
