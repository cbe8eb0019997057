"""The log: one JSON object a line, with what is needed to find a fault and nothing of what people wrote."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest
from sqlalchemy import text

from hub import log
from hub.db import Database

CANARY = "CANARY-7f3a"


def line(error: BaseException | None = None, **extra: Any) -> dict[str, Any]:
    """What would be written for a record, read again."""
    try:
        if error:
            raise error
    except BaseException:
        record = logging.makeLogRecord({"msg": "something", "exc_info": sys.exc_info()} | extra)
    else:
        record = logging.makeLogRecord({"msg": "something"} | extra)
    written = log.JsonFormatter().format(record)
    assert "\n" not in written
    read: dict[str, Any] = json.loads(written)
    return read


def test_a_line_says_to_which_request_and_job_it_belongs() -> None:
    with log.context(request_id="r1"), log.context(job_id=7):
        written = line()
    assert (written["message"], written["request_id"], written["job_id"]) == ("something", "r1", 7)
    assert "request_id" not in line()


def test_a_fault_of_ours_keeps_its_words_and_its_place() -> None:
    told = line(ValueError("no such kind"))["traceback"]
    assert "ValueError: no such kind" in told and "test_log.py" in told


@pytest.mark.parametrize(
    "statement",
    [
        "insert into hub.person (id, email, name, password_hash) values (null, :canary, '', '')",
        "select cast(:canary as integer)",
        "select 1 / 0, :canary",
    ],
)
def test_an_error_of_the_database_repeats_nothing_that_people_wrote(database: Database, statement: str) -> None:
    with pytest.raises(Exception) as caught, database.transaction() as session:
        session.execute(text(statement), {"canary": CANARY})
    try:
        raise RuntimeError("while saving") from caught.value
    except RuntimeError as outer:
        told = line(outer)["traceback"]
    assert CANARY not in told and statement not in told
    assert "RuntimeError: while saving" in told
