"""The programs: everything at once, the web server, a worker; and whether all is well."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

from hub import config
from hub.cli import base
from hub.config import Settings

if TYPE_CHECKING:
    from hub.readiness import Finding


@click.command()
def up() -> int:
    """Start everything on this machine: database, web server, one worker. Ctrl-C stops all."""
    from hub import up

    return up.run(_checked(config.load()))


@click.command()
def web() -> None:
    """Run the web server."""
    from hub import schema, up

    settings = _checked(base.with_database())
    schema.check(settings.database_url)
    up.exec_web(settings)


@click.command()
@click.option("--lanes", help="Lanes for each queue, as workspace.jobs=2,knowledge.ingest=4; default: HUB_LANES.")
def worker(lanes: str | None) -> int:
    """Run a worker, which does the jobs of the queues it has lanes for."""
    from hub import log, schema
    from hub.queue import kind, worker

    settings = _checked(base.with_database())
    try:
        wanted = settings.lanes if lanes is None else config.parse_lanes(lanes)
    except ValueError as error:
        raise click.UsageError(f"--lanes {error}") from None
    schema.check(settings.database_url)
    log.setup()
    for queue in wanted:
        if not kind.of_queue(queue):
            logging.getLogger("hub").warning("no kind of job uses the queue %s", queue)
    return worker.main(settings, wanted)


def _checked(settings: Settings) -> Settings:
    """The settings, if those of the schedules make sense too. Raises ConfigError."""
    # Importing the kinds is what makes them and their schedules known.
    import hub.jobs  # noqa: F401
    from hub.queue import plans

    plans.load(settings)
    return settings


@click.command()
@base.as_json
def check(as_json: bool) -> int:
    """Say whether this machine's Hub is ready: one line each; exit code 1 if anything is not."""
    from hub import readiness

    with base.embedded_or_named() as settings:
        findings = [*readiness.findings(settings), _storage(settings)]
        findings += _queue_findings(settings) if findings[0].ok and findings[1].ok else []
    if as_json:
        base.print_json([finding.as_dict() for finding in findings])
    else:
        for finding in findings:
            told = "FAIL" if not finding.ok else "look" if finding.look else "ok  "
            click.echo(f"{told} {finding.name}: {finding.text}")
    return 0 if all(finding.ok for finding in findings) else 1


def _queue_findings(settings: Settings) -> list[Finding]:
    """Whether jobs are taken up, the schedules are ticked, and what need not be kept is removed."""
    import hub.jobs  # noqa: F401
    from hub import db
    from hub.queue import health, plans, retention, timetable
    from hub.readiness import Finding

    with db.connect(settings.database_url, application_name="hub check", autocommit=True) as connection:
        lines = timetable.lines(connection, settings)
        pruning = retention.trouble(connection)
    wrong = [trouble for line in lines if (trouble := line.trouble)]
    wrong += [f"no schedule has the setting {name}" for name in plans.unknown(settings)]
    on = sum(1 for line in lines if line.cron)
    return [
        *health.findings(settings),
        Finding("schedules", not wrong, "; ".join(wrong) or f"{on} are on, and none is late"),
        Finding("retention", pruning is None, pruning or "nothing keeps the removal of old rows from working"),
    ]


def _storage(settings: Settings) -> Finding:
    from hub.clients.blob import BlobError, open_store
    from hub.readiness import Finding

    try:
        return Finding("storage of backups", True, f"{open_store(settings).probe()} can be written and read")
    except BlobError as error:
        return Finding("storage of backups", False, str(error))


@click.command()
@base.as_json
def settings(as_json: bool) -> None:
    """List all settings: name, value, unit, reason."""
    from hub.queue import plans

    loaded = _checked(config.load())
    rows = config.describe(loaded) + plans.describe(loaded)
    if as_json:
        base.print_json(rows)
        return
    for row in rows:
        value = row["value"] or "(empty)"
        changed = "" if row["value"] == row["default"] else f"  (default: {row['default'] or 'empty'})"
        click.echo(f"{row['name']}={value} {row['unit']}{changed}\n    {row['why']}")
