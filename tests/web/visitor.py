"""Somebody signed in, for tests of pages: asks for pages and JSON, and carries the token of the session."""

from __future__ import annotations

from typing import Any

from sqlalchemy import text

from hub.db import Database
from hub.models.person import Person
from tests.factories_jobs import sign_in

JSON = {"Accept": "application/json"}
HTML = {"Accept": "text/html"}


class Visitor:
    """A test client with a session of its own."""

    def __init__(self, app: Any, database: Database, person: Person) -> None:
        self.person = person
        self.client = app.test_client()
        self.token = sign_in(self.client, database, person)

    def get(self, path: str, **headers: str) -> Any:
        """The page at `path`."""
        return self.client.get(path, headers=HTML | headers)

    def form(self, path: str, **fields: Any) -> Any:
        """The answer to a form sent from one of our pages."""
        return self.client.post(path, data={"csrf_token": self.token} | fields, headers=HTML)

    def json(self, method: str, path: str, data: Any = None, **headers: str) -> Any:
        """The answer to a JSON request."""
        sent = JSON | {"X-CSRFToken": self.token} | headers
        return self.client.open(path, method=method, json=data, headers=sent)


def rows(database: Database, query: str, **values: Any) -> list[Any]:
    """The rows of a query."""
    with database.transaction() as session:
        return list(session.execute(text(query), values))


def events(database: Database, action: str | None = None) -> list[Any]:
    """Audit events, oldest first: those of an action, or all."""
    found = rows(database, "select * from audit.event order by id")
    return [row for row in found if action in (None, row.action)]
