"""Loads the queue's statements from `.sql` files.

Each statement stands under ``-- name: <name>`` and a sentence on what it does. Parameters are written ``:name``, so a
statement can be pasted into psql after ``\\set name value``; here they become psycopg's ``%(name)s``.
"""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
# A parameter is a colon and a name that no other colon precedes (a cast) and no letter or digit (a time, a slice).
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_COMMENT = re.compile(r"--[^\n]*")


def load(path: Path) -> dict[str, str]:
    """All statements of a file by name, ready for psycopg."""
    parts = _NAME.split(path.read_text(encoding="utf-8"))
    return {name: _translate(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _translate(body: str) -> str:
    statement = _COMMENT.sub("", body).replace("%", "%%").strip().removesuffix(";")
    return _PARAMETER.sub(r"%(\1)s", statement)
