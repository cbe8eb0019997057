"""What may be stored as a title or a body: one rule for forms, JSON and imports.

Each function returns the value as it is stored, or raises Invalid whose one field tells a person what is wrong.
"""

from __future__ import annotations

import re
import unicodedata

from hub import words
from hub.errors import Invalid

MAX_TITLE = 300
# Bytes of UTF-8.
MAX_BODY = 1_000_000


def title(value: object, field: str = "title") -> str:
    """A title of 1 to 300 characters on one line, one of them visible, without outer white space."""
    stripped = plain_text(value, field).strip()
    if not stripped:
        raise invalid(field, "empty")
    if len(stripped) > MAX_TITLE:
        raise invalid(field, "long", most=MAX_TITLE)
    if has_control(stripped):
        raise invalid(field, "control")
    if not has_visible(stripped):
        raise invalid(field, "empty")
    return stripped


def body(value: object, field: str = "body") -> str:
    """A body of at most 1 MB with line ends as LF."""
    text = line_ends(plain_text(value, field))
    if len(text.encode()) > MAX_BODY:
        raise invalid(field, "large", most=MAX_BODY)
    return text


def plain_text(value: object, field: str) -> str:
    """Text without what PostgreSQL's `text` cannot hold: NUL and lone surrogates."""
    if not isinstance(value, str):
        raise invalid(field, "not_text")
    if "\0" in value or _SURROGATE.search(value):
        raise invalid(field, "unreadable")
    return value


def line_ends(text: str) -> str:
    """The text with every line end as LF."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def has_control(text: str) -> bool:
    """Whether there is a control character in the text, a line end of any kind included."""
    return any(unicodedata.category(character) in ("Cc", "Zl", "Zp") for character in text)


def has_visible(text: str) -> bool:
    """Whether anything of the text can be seen: a name of nothing else could not be told from another."""
    return any(unicodedata.category(character)[0] not in "CZ" and character not in _BLANK for character in text)


def invalid(field: str, reason: str, **values: int) -> Invalid:
    """The refusal of `field`, in the words of ``content.<reason>``."""
    return Invalid({field: words.say(f"content.{reason}", **values)})


# Letters, marks and symbols by their category, which nevertheless show nothing: fillers, joiners, variation selectors.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0" + "".join(map(chr, range(0xFE00, 0xFE10))))
_SURROGATE = re.compile("[\ud800-\udfff]")
