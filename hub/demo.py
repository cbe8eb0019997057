"""What a first start brings along: one workspace, a person of each role, and a small course about Hub itself."""

from __future__ import annotations

from sqlalchemy.orm import Session

from hub import config, words
from hub.config import Settings
from hub.db import Database
from hub.models import audit, importing, people, person
from hub.models.importing import PageSource

DOMAIN = "hub.example"
MEMBERS = ("admin", "member", "viewer")
STAFF = ("support", "operator")
SLUG = "demo"


def ensure(database_url: str, settings: Settings) -> dict[str, str] | None:
    """Make the demo people in a database that has no people yet.

    Returns each address with the password, on later starts too; None in production, and where the people of the
    database are not these.
    """
    if settings.env != "development":
        return None
    password = settings.demo_password or config.kept_secret(settings.data_dir, "demo.password")
    database = Database(database_url, application_name="hub demo", size=1)
    try:
        with database.transaction() as session:
            if person.count_people(session) == 0:
                _make(session, password)
            made = person.find(session, f"admin@{DOMAIN}")
            if made is None or not person.check_password(made, password):
                return None
    finally:
        database.close()
    return {f"{who}@{DOMAIN}": password for who in (*MEMBERS, *STAFF)}


def _make(session: Session, password: str) -> None:
    actor = audit.Actor(None, words.say("app.name"), kind="hub", channel="hub")
    workspace = people.add_workspace(session, SLUG, words.say("demo.workspace"), actor)
    for role in MEMBERS:
        hashed = person.hash_password(password)
        added = people.add_person(session, f"{role}@{DOMAIN}", hashed, actor=actor, name=words.say(f"demo.{role}"))
        people.add_member(session, workspace, added, role, actor)
    for staff in STAFF:
        name = words.say(f"demo.{staff}")
        hashed = person.hash_password(password)
        people.add_person(session, f"{staff}@{DOMAIN}", hashed, actor=actor, name=name, staff=staff)
    pages = [PageSource(title, body, "") for title, body in COURSE]
    importing.import_course(session, workspace.id, words.say("demo.course"), pages, actor, words.say("app.name"))


# Title and body of each page.
COURSE: list[tuple[str, str]] = [
    (
        "What Hub is for",
        """Hub keeps the knowledge of an organisation in courses. A course is a set of pages in an order; a page has a
title, a text and any number of tags. People read pages, search for them and mark what belongs together.

Some work takes longer than a click: putting a tag on every page of a long course, for one. Hub does such work in the
background as a **job**. You start it, you may close the browser, and the job carries on.
""",
    ),
    (
        "Workspaces and roles",
        """Everything in Hub lies in a workspace, and what you may do there depends on your role.

| Role | Reads pages | Changes pages | Starts jobs |
| --- | --- | --- | --- |
| Viewer | yes | no | no |
| Member | yes | yes | no |
| Admin | yes | yes | yes |

An admin can give somebody another role on the page *Members*. At least one admin always stays.
""",
    ),
    (
        "Reading and editing a page",
        """Open a course and choose a page to read it. If your role allows it, *Edit* opens its title, text and tags.

Text is written in Markdown:

- a line that begins with `#` is a heading;
- a line that begins with `-` is an item of a list;
- `**words**` between two stars are set in bold.

If somebody else saved the page while you were writing, Hub does not overwrite their work. It shows both versions and
keeps what you typed, so that you can decide.
""",
    ),
    (
        "Tags",
        """A tag is a short word that many pages can share. Tags do not care about capital letters or double spaces:
“Getting Started” and “getting  started” are the same tag, written as it was first.

Choose words that a reader would search for. Ten good tags help more than a hundred that are used once.
""",
    ),
    (
        "Tagging a whole course",
        """An admin can put tags on all pages of a course, or only on those that have none yet:

1. Open the course and choose *Tag this course*.
2. Enter one or more tags.
3. Start the job.

The job goes through the pages one by one. It adds what is missing and touches nothing else; titles and texts stay as
they are, to the letter.
""",
    ),
    (
        "Watching a job",
        """The page of a job shows how far it is: how many pages are done, how many were changed, and how many could not
be. It refreshes by itself, and says so when it cannot.

What the page shows is what is stored. If the connection breaks, the last known numbers stay, with the time at which
they were true.
""",
    ),
    (
        "Stopping a job",
        """*Cancel job* asks a running job to stop. It finishes the page it is working on and then ends; pages that are
tagged already stay tagged. A job that still waits ends at once.

Nobody can take a request to stop back. You can start the same job again: pages that have the tags are passed over
quickly.
""",
    ),
    (
        "When something fails",
        """A page can be in the way of a job: perhaps somebody was editing it at that moment. The job notes the page and
goes on with the next. At the end it is *Finished with problems*, and its page lists what could not be done.

If a whole job breaks, Hub tries again by itself, a little later each time. After the last try the job is marked *Needs
attention*. An admin can then look at the reason and run it again.
""",
    ),
    (
        "Who did what",
        """The audit trail records every change: who made it, when, from which address, and what was changed. It can
only grow. Nobody, whatever their role, can change or remove an entry.

Support staff may look into a workspace after saying why, and their visit is in the trail too.
""",
    ),
    (
        "Where to go next",
        """Try it: tag this course with a word of your own, watch the job run, and find it in the audit trail.

Then add a course of your own. A folder or zip file of Markdown files becomes a course in one step, with *Import* on the
page *Courses*.
""",
    ),
]
