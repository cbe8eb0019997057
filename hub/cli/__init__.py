"""The `hub` command. Errors are one sentence on standard error; the exit code is 1, or 2 for wrong usage.

One module for each noun; `base` holds what they share. Other modules are imported where they are used, so that each
command starts quickly.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from hub import __version__
from hub.cli import backups, base, courses, database, jobs, people, queues, schedules, server
from hub.errors import HubError, Invalid, Refusal

CONTEXT = {"help_option_names": ["-h", "--help"]}


def main() -> NoReturn:
    """Run the command of this process's arguments and exit."""
    try:
        code = cli.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except HubError as error:
        _fail(_sentence(error))
    except UnicodeError:
        _fail("Arguments and input must be valid UTF-8.")
    except Exception as error:
        reason = _database_reason(error)
        if reason is None:
            raise
        _fail(reason)


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, prog_name="hub")
def cli() -> None:
    """Hub: the admin workspace of a knowledge hub."""


COMMANDS = [
    *(server.up, server.web, server.worker, server.check, server.settings),
    *(database.db, people.workspace, people.user, courses.course, backups.backup),
    *(jobs.jobs, queues.queues, schedules.schedules),
]
for command in COMMANDS:
    cli.add_command(command)


def _fail(sentence: str) -> NoReturn:
    click.echo(base.harmless(f"hub: {sentence}"), err=True)
    sys.exit(1)


def _sentence(error: HubError) -> str:
    from hub import words

    if isinstance(error, Invalid):
        return " ".join(f"{name}: {text}" for name, text in error.fields.items())
    if isinstance(error, Refusal):
        return words.refusal(error.code, error.status, error.data)
    return str(error).strip()


def _database_reason(error: Exception) -> str | None:
    """One sentence for an error of the database; None for any other."""
    import psycopg
    from sqlalchemy.exc import DBAPIError

    cause = error.orig if isinstance(error, DBAPIError) else error
    if not isinstance(cause, psycopg.Error):
        return None
    first = str(cause).strip().splitlines()
    return f"The database says: {first[0] if first else type(cause).__name__}"
