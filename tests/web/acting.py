"""A test client with somebody signed in: forms and JSON with what each needs."""

from __future__ import annotations

from typing import Any

from flask import Flask

from hub.db import Database
from hub.models.person import Person
from tests.factories_jobs import sign_in

JSON = {"Accept": "application/json"}


class Acting:
    """Somebody's browser. `at` is put before every address."""

    def __init__(self, app: Flask, database: Database, person: Person, at: str = "") -> None:
        self.client = app.test_client()
        self.at = at
        self._token = {"X-CSRFToken": sign_in(self.client, database, person)}

    def page(self, path: str, status: int = 200) -> str:
        """The HTML of a page."""
        answer = self.client.get(self.at + path, headers={"Accept": "text/html"})
        assert answer.status_code == status, answer.text
        return answer.text

    def json(self, path: str, status: int = 200) -> Any:
        """The JSON at an address."""
        return self.send("GET", path, status=status).get_json()

    def send(self, method: str, path: str, json: Any = None, status: int | None = None, **headers: str) -> Any:
        """The answer to a JSON request; headers with ``_`` for ``-``."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self.client.open(self.at + path, method=method, json=json, headers=JSON | self._token | named)
        assert status is None or answer.status_code == status, (answer.status_code, answer.text)
        return answer

    def form(self, path: str, status: int = 303, **fields: Any) -> Any:
        """The answer to a browser's form."""
        answer = self.client.post(self.at + path, data=fields, headers={"Accept": "text/html"} | self._token)
        assert answer.status_code == status, (answer.status_code, answer.text)
        return answer
