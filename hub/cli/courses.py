"""`hub course`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from hub.cli import base


@click.group()
def course() -> None:
    """Courses."""


@course.command("import")
@click.argument("source", metavar="FOLDER|ZIP", type=click.Path(exists=True, path_type=Path))
@click.option("--workspace", "slug", required=True, help="Where the course goes.")
@click.option("--title", default="", help="Default: the name of the folder or file.")
@base.acting_as
@base.as_json
def course_import(source: Path, slug: str, title: str, email: str | None, as_json: bool) -> None:
    """Import Markdown files as a course of pages."""
    from hub.models import importing

    with ExitStack() as stack:
        if source.is_dir():
            found = importing.read_folder(source)
        else:
            found = importing.read_zip(stack.enter_context(source.open("rb")))
        pages = stack.enter_context(importing.spooled(found))
        session, actor = stack.enter_context(base.transaction(email))
        target = base.workspace(session, slug)
        base.require(session, target, actor, "course.edit")
        # Resolved, so that "." has a name too.
        name = source.resolve().name
        title = title or (name if source.is_dir() else source.stem)
        course_id, count = importing.import_course(session, target.id, title, pages, actor, name)
    pages_word = "page" if count == 1 else "pages"
    base.answer({"course_id": str(course_id), "pages": count}, as_json, f"{count} {pages_word} imported.")
