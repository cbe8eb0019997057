"""How the variable parts of addresses are read, so that nothing reaches the database that it cannot hold."""

from __future__ import annotations

from flask import Flask
from werkzeug.routing import BaseConverter, ValidationError

MAX_BIGINT = 2**63 - 1


class BigInt(BaseConverter):
    """``<int:…>``: plain ASCII digits within PostgreSQL's bigint; anything else is not found.

    Werkzeug's own takes other scripts' digits and numbers of any length.
    """

    regex = "[0-9]{1,19}"

    def to_python(self, value: str) -> int:
        """The number; ValidationError, which is "not found", above the range."""
        number = int(value)
        if number > MAX_BIGINT:
            raise ValidationError
        return number


def install(app: Flask) -> None:
    """Replace Werkzeug's converter of numbers."""
    app.url_map.converters["int"] = BigInt
