"""A worker with one more kind: its first attempt lingers inside an open transaction that has changed a page.

Run as a program: ``python -m tests.limits.lingering``. The first attempt goes on once the file of its arguments exists.
"""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

import pydantic

import hub.jobs  # noqa: F401
from hub import config, log
from hub.db import driver
from hub.queue import Context, Kind, register, worker

QUEUE = "limits.lingering"
TAKE = "update hub.page set title = %(title)s, version = version + 1 where id = %(page)s"


class Args(pydantic.BaseModel):
    """The page that is changed, and the file that the first attempt waits for."""

    page_id: UUID
    file: str


def run(context: Context, args: Args) -> dict[str, Any]:
    """Change the page and commit; the first attempt waits in between."""
    with context.database.transaction() as session:
        values = {"title": f"attempt {context.job.attempt}", "page": args.page_id}
        driver(session).execute(TAKE, values)
        if context.job.attempt == 1:
            _linger(session, Path(args.file))
    return {"attempt": context.job.attempt}


def _linger(session: Any, file: Path) -> None:
    logging.getLogger(__name__).info("inside the transaction")
    while not file.exists():
        # Speaking keeps the transaction alive; a frozen process is silent.
        driver(session).execute("select 1")
        threading.Event().wait(0.05)


KIND = register(Kind(name=QUEUE, args=Args, run=run, attempts=3))

if __name__ == "__main__":
    log.setup()
    sys.exit(worker.main(config.load(), {QUEUE: 1, "workspace.jobs": 1}))
