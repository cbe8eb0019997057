"""A workspace's first page: what needs somebody, what runs, what was done last, and the courses."""

from __future__ import annotations

from datetime import timedelta

from flask import Blueprint, Response

from hub.db import driver
from hub.jobs import view
from hub.models import course
from hub.queue import reads
from hub.web import auth, filters, respond
from hub.web.state import database

bp = Blueprint("dashboard", __name__)

SHOWN = 5
# What is older has been seen; it also bounds how far back the query looks.
RECENT = timedelta(days=30)


@bp.get("/w/<slug>/")
def show(slug: str) -> Response:
    """The dashboard."""
    with database().transaction() as session:
        place = auth.enter(session, slug, "workspace.see")
        connection = driver(session)
        running = reads.unended(connection, place.workspace.id, SHOWN)
        latest = reads.page(connection, place.workspace.id, reads.Filters(), limit=SHOWN).jobs
        recent = reads.Filters(bucket="needs_attention", since=filters.now() - RECENT)
        troubled = reads.page(connection, place.workspace.id, recent, limit=SHOWN)
        courses = course.list_courses(session, place.workspace.id, limit=SHOWN)
    if respond.wants_json():
        return respond.as_json(
            {
                "slug": place.workspace.slug,
                "name": place.workspace.name,
                "role": place.role,
                "needs_attention": [view.snapshot(job, place.zone) for job in troubled.jobs],
                "running": [view.snapshot(job, place.zone) for job in running],
            }
        )
    return respond.render(
        "dashboard/show.html",
        running=running,
        latest=[job for job in latest if job.finished_at],
        troubled=troubled.jobs,
        courses=courses,
        view=view,
    )
