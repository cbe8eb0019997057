"""Runs one claimed job, in named steps, to its recorded end."""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from hub import log as logs
from hub.config import Settings
from hub.db import Database, driver, is_conflict, is_connection_loss
from hub.queue import backoff, plans, store, text
from hub.queue.closing import TRIES, ClosingFailed, close
from hub.queue.complete import Completer
from hub.queue.context import Context
from hub.queue.job import Cancelled, Claimed, Ended, Fail, Interrupted, LeaseLost, Snooze
from hub.queue.kind import Kind
from hub.queue.lease import Held, LeaseKeeper

log = logging.getLogger(__name__)


class Execution:
    """One attempt at a job by this worker."""

    def __init__(
        self,
        job: Claimed,
        held: Held,
        declared: Kind,
        database: Database,
        keeper: LeaseKeeper,
        settings: Settings,
        completer: Completer | None = None,
    ) -> None:
        self.job = job
        self.held = held
        self.declared = declared
        self._database = database
        self._keeper = keeper
        self._settings = settings
        self._completer = completer

    def run(self) -> None:
        """Run the handler and record how the attempt ended; raises nothing."""
        self._record(self._attempt)

    def _record(self, attempt: Callable[[], None]) -> None:
        with logs.context(job_id=self.job.id, kind=self.job.kind, attempt=self.job.attempt, claim=self.job.claim):
            log.info("job started")
            try:
                self._through_outages(attempt)
            except LeaseLost:
                log.warning("lease lost: another worker may have the job, nothing more is written")
            except Exception:
                # Whatever happened, the claim lapses and the job is taken up again.
                log.exception("the end of the attempt could not be recorded")
            finally:
                self._keeper.drop(self.held, [self.job.id])

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
                time.sleep(random.uniform(0.2, 0.6))
                if self.held.is_lost():
                    raise LeaseLost from error

    def _attempt(self) -> None:
        self._reread()
        if self.job.cancelled:
            self._end("cancelled")
        elif self.job.used_up:
            self._end("failed", code=self.job.cause or "handler_failed", dead=True)
        else:
            try:
                result = self._call()
            except BaseException as error:
                self._judge(error)
            else:
                self._succeed(result)

    def _reread(self) -> None:
        with self._database.autocommit() as connection:
            now = store.held(connection, self.job.id, self.job.claim)
        if now is None:
            raise LeaseLost
        self.job.changed, self.job.skipped, self.job.failed = now["changed"], now["skipped"], now["failed"]
        self.job.cancelled = now["cancelled"]

    def _succeed(self, result: dict[str, Any] | None) -> None:
        """End in success, unless the kind's own record of it finds at the last moment that it may not be."""
        try:
            self._end("succeeded", result=result)
        except Fail as failure:
            self._end("failed", code=failure.code)

    def _call(self) -> dict[str, Any] | None:
        args = self.declared.args.model_validate(self.job.args)
        with Context(self.job, self._database, self.held, self._keeper, self._settings) as context:
            result = self.declared.run(context, args)
            if result is not None:
                # A result that the database cannot hold is the handler's failure: found here, not when it is recorded.
                context.connection.execute("select %s::jsonb", [json.dumps(result)])
            return result

    def _judge(self, error: BaseException) -> None:
        """Record what the handler raised, whatever it is: what it calls may want to end a process, or panic.

        Nothing of this kind is meant for the lane, which would be gone with it.
        """
        if isinstance(error, LeaseLost) or _passes(error):
            raise error
        if isinstance(error, Cancelled):
            self._end("cancelled")
        elif isinstance(error, Interrupted):
            self._put_back(store.release, "job given back: the worker stops")
        elif isinstance(error, Snooze):
            self._put_back(partial(store.snooze, wait=error.seconds, code=error.code), "job snoozes")
        elif isinstance(error, Fail):
            self._end("failed", code=error.code)
        else:
            log.error("attempt failed", exc_info=error)
            self._failed(text.describe(error))

    def _failed(self, error: str) -> None:
        self._reread()
        if self.job.cancelled:
            self._end("cancelled")
        elif self.job.attempt >= self.job.max_attempts:
            self._end("failed", code="handler_failed", error=error, dead=True)
        else:
            ceiling = plans.longest_wait(self.declared, self._settings)
            wait = backoff.wait(self.job.attempt, base=self._settings.queue_retry_base, ceiling=ceiling)
            self._put_back(partial(store.retry, wait=wait, code="handler_failed", error=error), "job waits for a retry")

    def _put_back(self, statement: Callable[[store.Connection, Claimed], bool], told: str) -> None:
        with self._database.transaction() as session:
            put_back = statement(driver(session), self.job)
        if put_back:
            log.info(told)
            return
        # It either was cancelled meanwhile or is no longer ours.
        self._reread()
        self._end("cancelled")

    def _end(self, state: str, *, code: str | None = None, **values: Any) -> None:
        """End the job with its record and closing hook in one transaction.

        A hook that raises is tried three times, here or by the workers that it killed; then the job ends without it.
        """
        if self.job.closing_tries <= TRIES:
            for _ in range(TRIES):
                try:
                    return self._write_end(state, code=code, **values)
                except ClosingFailed:
                    log.exception("the closing hook failed")
        self._write_end(state, code=code, closing_failed=True, **values)

    def _write_end(self, state: str, **values: Any) -> None:
        declared = self.declared
        with self._database.transaction() as session:
            if declared.locks:
                declared.locks(session, self.job)
            ended = store.finish(driver(session), self.job, state=state, **values)
            if ended is None:
                raise LeaseLost
            if declared.recorded:
                declared.recorded(session, ended)
            if not values.get("closing_failed"):
                close(declared, session, ended)
            if declared.follow_up and state == "succeeded" and (item := declared.follow_up(session, ended)):
                self._enqueue_next(driver(session), item)
        log.info("job %s", state, extra={"code": values.get("code")})
        self._tidy(ended)

    def _tidy(self, ended: Ended) -> None:
        if self.declared.tidy is None:
            return
        try:
            self.declared.tidy(self._database, self._settings, ended)
        except Exception:
            log.exception("what the job left outside the database could not be removed")

    def _enqueue_next(self, connection: store.Connection, item: store.Item) -> None:
        store.enqueue(
            connection,
            self.declared,
            item.args,
            ceiling=self._settings.queue_max_attempts,
            key=item.key,
            subject=item.subject,
            workspace_id=item.workspace_id,
        )


class AheadExecution(Execution):
    """One attempt at a job that was claimed ahead of its lane: success is handed on to be written with others'."""

    def run(self) -> None:
        """Run the handler; only what is not a plain success is recorded here. Raises nothing."""
        try:
            self.held.check()
            result = self._call()
        except BaseException as error:
            # Away or busy: the handler is called again, as after any outage. Else what it raised is judged.
            self._record(self._attempt if _passes(error) else partial(self._judge, error))
        else:
            if result is None and self._completer:
                self._completer.done(self.held, self.job.id)
            else:
                self._record(partial(self._succeed, result))


def _passes(error: BaseException) -> bool:
    return is_connection_loss(error) or is_conflict(error)
