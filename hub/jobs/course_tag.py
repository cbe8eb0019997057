"""course.tag: put tags on all pages of a course, or on those without any.

One page a transaction and a round trip: fence, cancel flag, the actor's right, the page at its current version, only
the missing tags; title and body are never touched. It may run twice over a page without harm, and resumes after the
last page done. A course of 100,000 pages takes about a minute on a small server.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from sqlalchemy.orm import Session

from hub import words
from hub.errors import Invalid, NotFound
from hub.jobs import PEOPLE, people
from hub.models import course, tag
from hub.models.workspace import Workspace
from hub.queue import Context, Fail, Kind, register

# A page that others keep changing is read again this often before that is recorded as its failure.
READS = 3


class Command(BaseModel):
    """What a person asks for."""

    model_config = ConfigDict(extra="forbid", strict=True)

    course_id: Annotated[UUID, Field(strict=False)]
    tags: Annotated[list[str], BeforeValidator(tag.tag_names), Field(min_length=1, max_length=20)]
    pages: Literal["all", "untagged"] = "all"


class Args(BaseModel):
    """What the handler is given; `asked` is the command, kept for "run again" and for the job's page."""

    course_id: UUID
    tag_ids: list[UUID]
    asked: dict[str, Any]


def form(session: Session, workspace: Workspace, asked: dict[str, Any]) -> people.Form:
    """What the start page tells: the course and its pages. Raises NotFound for a course of another workspace."""
    try:
        course_id = UUID(str(asked.get("course_id")))
    except ValueError:
        raise NotFound from None
    found = course.find_course(session, workspace.id, course_id)
    pages, tagged = course.count_pages(session, course_id)
    values = {"pages": pages, "untagged": pages - tagged}
    return people.Form(f"course:{course_id}", found.title, values, empty=pages == 0)


def open_job(order: people.Order) -> people.Opening:
    """Find the course and make the tags; the worklist is the course's pages, in their order."""
    command: Command = order.args
    try:
        found = course.find_course(order.session, order.workspace.id, command.course_id)
    except NotFound:
        raise Invalid({"course_id": words.say("jobs.error.course_id")}) from None
    tags = tag.ensure_tags(order.session, order.workspace.id, command.tags)
    most = order.settings.jobs_max_course_pages
    return people.Opening(
        args={
            "course_id": str(found.id),
            "tag_ids": [str(row.id) for row in tags],
            "asked": command.model_dump(mode="json"),
        },
        subject=f"course:{found.id}",
        subject_name=found.title,
        items=ALL_PAGES if command.pages == "all" else UNTAGGED_PAGES,
        # One more than allowed tells "too many" without listing a million.
        values={"course_id": found.id, "most": most + 1},
        most=most,
        told={"tags": command.tags, "pages": command.pages},
    )


def run(context: Context, args: Args) -> None:
    """Tag page after page."""
    actor_id, actor_name = people.actor_of(context.connection, context.job.id)
    values = {
        "course_id": args.course_id,
        "tag_ids": args.tag_ids,
        "workspace_id": context.job.workspace_id,
        "actor_id": actor_id,
        "actor_name": actor_name,
        "most_tags": tag.MAX_ON_PAGE,
    }
    for page_id in context.items():
        _tag_page(context, page_id, values)


def _tag_page(context: Context, page_id: UUID, values: dict[str, Any]) -> None:
    problem: str | None = None
    title = ""
    for _ in range(READS):
        problem, title = context.step(TAG_PAGE, page_id=page_id, **values)
        if problem is None:
            return
        if problem == "actor_not_authorized":
            raise Fail(problem)
        if problem != "edit_conflict":
            break
    context.fail_item(page_id, title, problem or "edit_conflict")


ALL_PAGES = """
    select p.id as item, (p.position, p.id) as place from hub.page p
    where p.course_id = %(course_id)s order by p.position, p.id limit %(most)s
"""

UNTAGGED_PAGES = """
    select p.id as item, (p.position, p.id) as place from hub.page p
    where p.course_id = %(course_id)s and not exists (select from hub.page_tag t where t.page_id = p.id)
    order by p.position, p.id limit %(most)s
"""

# The update compares the version with the one that `seen` read: whoever changed the page in between wins, and the page
# is read again. A page that has the tags already is skipped without touching it. The page's tags are read as one array,
# because a join could be planned as a scan of all tags of all pages; "is true" keeps the planner from reading the whole
# course to find the page.
TAG_PAGE = """
seen as materialized (
    select
        page.id, page.version, page.title, cardinality(had.tags) as had,
        array(select wanted from unnest(%(tag_ids)s::uuid[]) wanted where wanted <> all (had.tags)) as missing,
        coalesce((
            select m.role = 'admin' and m.enabled and p.enabled and w.enabled
            from hub.membership m
            join hub.person p on p.id = m.person_id
            join hub.workspace w on w.id = m.workspace_id
            where m.workspace_id = %(workspace_id)s and m.person_id = %(actor_id)s
        ), false) as allowed
    from fence
    left join hub.page on page.id = %(page_id)s and (page.course_id = %(course_id)s) is true
    cross join lateral (
        select coalesce(array_agg(h.tag_id), '{}') as tags from hub.page_tag h where h.page_id = %(page_id)s
    ) had
), written as (
    update hub.page set
        version = page.version + 1, updated_at = statement_timestamp(), updated_by = %(actor_name)s
    from seen
    where page.id = %(page_id)s and page.version = seen.version
      and seen.allowed and seen.missing <> '{}' and seen.had + cardinality(seen.missing) <= %(most_tags)s
    returning page.id, seen.missing
), added as (
    insert into hub.page_tag (page_id, tag_id, job_id, added_by)
    select written.id, unnest(written.missing), %(id)s, %(actor_name)s from written
), outcome as materialized (
    select
        (written.id is not null)::integer as changed,
        (seen.id is not null and seen.allowed and seen.missing = '{}')::integer as skipped,
        case
            when not seen.allowed then 'actor_not_authorized'
            when seen.id is null then 'page_missing'
            when seen.missing = '{}' or written.id is not null then null
            when seen.had + cardinality(seen.missing) > %(most_tags)s then 'too_many_tags'
            else 'edit_conflict'
        end as problem,
        coalesce(seen.title, '') as title
    from seen left join written on true
)
"""

register(
    Kind(
        name="course.tag",
        queue=PEOPLE,
        command=Command,
        args=Args,
        run=run,
        attempts=5,
        deadline=300.0,
        steps=True,
        form=form,
        opening=open_job,
        recorded=people.record_end,
    )
)
