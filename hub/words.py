"""Every sentence and label that a person reads, by key.

English stands in the sections below; a second language is one more set of the same keys. `say` fills in ``{name}``
fields. A key ending in ``.one`` is the singular of the same key without it, chosen when `count` is 1.
"""

from __future__ import annotations

from typing import Any

# --- common ---
COMMON = {
    "app.name": "Hub",
    "yes": "Yes",
    "no": "No",
    "none": "none",
}

# --- errors ---
ERRORS = {
    "error.malformed": "Hub could not read this request.",
}

# --- people ---
PEOPLE: dict[str, str] = {}

# --- courses ---
COURSES: dict[str, str] = {}

# --- jobs ---
JOBS: dict[str, str] = {}

# --- audit ---
AUDIT: dict[str, str] = {}

WORDS: dict[str, str] = COMMON | ERRORS | PEOPLE | COURSES | JOBS | AUDIT


def say(key: str, **values: Any) -> str:
    """The words of `key` with `values` filled in; a missing key is a programming error and raises KeyError.

    With ``count=1`` the key's ``.one`` form is taken, if there is one. Whole numbers are grouped: 100,000.
    """
    if values.get("count") == 1 and f"{key}.one" in WORDS:
        key = f"{key}.one"
    return WORDS[key].format(**{name: _shown(value) for name, value in values.items()})


def has(key: str) -> bool:
    """Whether there are words for `key`."""
    return key in WORDS


def _shown(value: Any) -> Any:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else value
