"""Runs one claimed job, in named steps, to its recorded end."""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Callable
from typing import Any

from hub import log as logs
from hub.config import Settings
from hub.db import Database, driver, is_conflict, is_connection_loss
from hub.queue import backoff, kind, store, text
from hub.queue.closing import TRIES, ClosingFailed, close
from hub.queue.context import Context
from hub.queue.job import Cancelled, Claimed, Fail, Interrupted, LeaseLost
from hub.queue.kind import Kind
from hub.queue.lease import Held, LeaseKeeper

log = logging.getLogger(__name__)


class Execution:
    """One attempt at a job by this worker."""

    def __init__(self, held: Held, database: Database, keeper: LeaseKeeper, settings: Settings) -> None:
        self.held = held
        self.job: Claimed = held.job
        self._database = database
        self._keeper = keeper
        self._settings = settings
        self._pause = threading.Event()

    def run(self) -> None:
        """Run the handler and record how the attempt ended; raises nothing."""
        with logs.context(job_id=self.job.id, kind=self.job.kind, attempt=self.job.attempt, claim=self.job.claim):
            log.info("job started")
            try:
                self._through_outages(self._attempt)
            except LeaseLost:
                log.warning("lease lost: another worker may have the job, nothing more is written")
            except Exception:
                # Whatever happened, the claim lapses and the job is taken up again.
                log.exception("the end of the attempt could not be recorded")
            finally:
                self._keeper.drop(self.held)

    def _through_outages(self, attempt: Callable[[], None]) -> None:
        """Call `attempt` again after an outage of the database or another's lock, for as long as the lease holds.

        Neither is the job's failure, so it costs no attempt. What was in doubt when the connection broke is read again
        under the same claim.
        """
        while True:
            try:
                attempt()
                return
            except Exception as error:
                if not _passes(error):
                    raise
                log.warning("database away or busy: %s", type(error).__name__)
                self._pause.wait(random.uniform(0.2, 0.6))
                if self.held.is_lost():
                    raise LeaseLost from error

    def _attempt(self) -> None:
        self._reread()
        declared = kind.find(self.job.kind)
        assert declared is not None, "the claim takes only kinds that are known here"
        if self.job.cancelled:
            self._end(declared, "cancelled")
        elif self.job.used_up:
            self._end(declared, "failed", code=self.job.cause or "handler_failed", dead=True)
        else:
            self._handle(declared)

    def _reread(self) -> None:
        with self._database.autocommit() as connection:
            now = store.held(connection, self.job.id, self.job.claim)
        if now is None:
            raise LeaseLost
        self.job.changed, self.job.skipped, self.job.failed = now["changed"], now["skipped"], now["failed"]
        self.job.cancelled = now["cancelled"]

    def _handle(self, declared: Kind) -> None:
        try:
            result = self._call(declared)
        except Cancelled:
            self._end(declared, "cancelled")
        except Interrupted:
            self._release(declared)
        except LeaseLost:
            raise
        except Fail as failure:
            self._end(declared, "failed", code=failure.code)
        except (Exception, SystemExit) as error:
            # SystemExit: what a handler calls may want to end the process, which is not its own.
            if _passes(error):
                raise
            log.exception("attempt failed")
            self._failed(declared, text.describe(error))
        else:
            self._succeed(declared, result)

    def _succeed(self, declared: Kind, result: dict[str, Any] | None) -> None:
        """End in success, unless the kind's own record of it finds at the last moment that it may not be."""
        try:
            self._end(declared, "succeeded", result=result)
        except Fail as failure:
            self._end(declared, "failed", code=failure.code)

    def _call(self, declared: Kind) -> dict[str, Any] | None:
        context = Context(self.job, self._database, self.held, self._keeper, self._settings)
        args = declared.args.model_validate(self.job.args)
        with self._database.autocommit() as connection:
            context.use(connection)
            result = declared.run(context, args)
            if result is not None:
                # A result that the database cannot hold is the handler's failure: found here, not when it is recorded.
                connection.execute("select %s::jsonb", [json.dumps(result)])
            return result

    def _failed(self, declared: Kind, error: str) -> None:
        self._reread()
        if self.job.cancelled:
            self._end(declared, "cancelled")
            return
        if self.job.attempt >= self.job.max_attempts:
            self._end(declared, "failed", code="handler_failed", error=error, dead=True)
            return
        wait = backoff.wait(
            self.job.attempt, base=self._settings.queue_retry_base, ceiling=self._settings.queue_retry_max
        )
        with self._database.transaction() as session:
            put_back = store.retry(driver(session), self.job, wait=wait, code="handler_failed", error=error)
        if not put_back:
            self._end_instead(declared)

    def _release(self, declared: Kind) -> None:
        with self._database.transaction() as session:
            given = store.release(driver(session), self.job)
        if given:
            log.info("job given back: the worker stops")
        else:
            self._end_instead(declared)

    def _end_instead(self, declared: Kind) -> None:
        """A job that cannot be put back either was cancelled meanwhile or is no longer ours."""
        self._reread()
        self._end(declared, "cancelled")

    def _end(self, declared: Kind, state: str, *, code: str | None = None, **values: Any) -> None:
        """End the job with its record and closing hook in one transaction.

        A hook that raises is tried three times, here or by the workers that it killed; then the job ends without it.
        """
        if self.job.closing_tries <= TRIES:
            for _ in range(TRIES):
                try:
                    return self._write_end(declared, state, code=code, **values)
                except ClosingFailed:
                    log.exception("the closing hook failed")
        self._write_end(declared, state, code=code, closing_failed=True, **values)

    def _write_end(self, declared: Kind, state: str, **values: Any) -> None:
        with self._database.transaction() as session:
            ended = store.finish(driver(session), self.job, state=state, **values)
            if ended is None:
                raise LeaseLost
            if declared.recorded:
                declared.recorded(session, ended)
            if not values.get("closing_failed"):
                close(declared, session, ended)
        log.info("job %s", state, extra={"code": values.get("code")})


def _passes(error: BaseException) -> bool:
    return is_connection_loss(error) or is_conflict(error)
