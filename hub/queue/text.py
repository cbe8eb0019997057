"""Text of errors, made safe before it meets the database: recording a failure must never fail itself."""

from __future__ import annotations

import re

MAX_ERROR = 2000

# Anything that looks like a secret in an error's text is masked: passwords in addresses, keys, tokens, signatures.
_SECRETS = re.compile(
    r"""(?ix)
    (?P<address> ://[^:/@\s]*: ) \S+ (?=@)
    | (?P<name> (?: password | passwd | secret | token | api[_-]?key | authorization | \bsig ) ['"]?\s*[=:]\s* )
      (?: (?:bearer|basic)\s+ )? \S+
    | (?P<scheme> \bbearer\s+ ) [\w.~+/=-]{8,}
    """
)


def clean(text: str, most: int = MAX_ERROR) -> str:
    """`text` without NUL, lone surrogates and what looks like a secret, cut to `most` characters with a mark."""
    text = text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "\N{REPLACEMENT CHARACTER}")
    text = _SECRETS.sub(lambda found: f"{found['address'] or found['name'] or found['scheme']}***", text[: most * 4])
    return text if len(text) <= most else text[: most - 2] + " …"


def describe(error: BaseException) -> str:
    """An exception as one line: its class and message; nothing of its own can raise here."""
    try:
        message = str(error)
    except Exception:
        message = "(its message cannot be shown)"
    return clean(f"{type(error).__name__}: {message}")
