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
COURSES = {
    "content.empty": "Enter a title.",
    "content.long": "At most {most} characters.",
    "content.control": "Remove line ends and control characters.",
    "content.large": "At most {most} bytes of text.",
    "content.not_text": "This must be text.",
    "content.unreadable": "This holds characters that cannot be stored.",
    "content.not_list": "This must be a list of tags.",
    "content.tag_empty": "A tag needs at least one visible character.",
    "content.tag_long": "A tag has at most {most} characters.",
    "content.tag_many": "A page has at most {most} tags.",
    "content.tag_control": "A tag has no line ends and no control characters.",
}

# --- admission ---
ADMISSION = {
    "jobs.title": "{kind}: {subject}",
    "jobs.kind.course.tag": "Tag a course",
    "jobs.error.kind": "Choose a kind of job that can be started here.",
    "jobs.error.idempotency_key": "Send a key of 1 to 200 visible characters.",
    "jobs.error.args": "“{name}” is not what this kind of job takes.",
    "jobs.error.course_id": "Choose a course of this workspace.",
    "jobs.error.tags": "Give a list of 1 to 20 tags.",
    "jobs.error.tags.too_short": "Choose at least one tag.",
    "jobs.error.pages": "Choose which pages to tag: “all” or “untagged”.",
    "jobs.error.no_items": "There are no pages to tag with these choices.",
    "jobs.error.too_many_items": "This course has more than {most} pages, which is the most that one job takes on.",
}

# --- jobs ---
JOBS: dict[str, str] = {}

# --- audit ---
AUDIT: dict[str, str] = {}

WORDS: dict[str, str] = COMMON | ERRORS | PEOPLE | COURSES | ADMISSION | JOBS | AUDIT


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
