"""Hub's exceptions, grouped by what a caller can do about them.

HubError
├── ConfigError            a setting is wrong: the process does not start
├── SchemaMismatch         database and code do not fit: the process does not start
└── Refusal                a request cannot be granted: `status` and `code` tell why
    ├── Malformed          400  the request cannot be read
    ├── Unauthenticated    401  nobody is signed in
    ├── Forbidden          403  a member whose role does not suffice
    ├── NotFound           404  absent, another workspace's, or not to be known
    ├── Conflict           409  the state of things is in the way
    ├── Stale              412  changed since it was read
    ├── TooLarge           413  more than a limit of content
    ├── WrongType          415  not a type that is read here
    ├── Invalid            422  fields are wrong: `fields` names each
    ├── PreconditionRequired 428  an edit without the ETag it is based on
    ├── TooMany            429  a limit is reached: `retry_after` says until when
    └── Unavailable        503  something Hub needs is away for now

The sentence a person reads for a `code` stands in `hub.words` under ``error.<code>``.
"""

from __future__ import annotations

from typing import Any, ClassVar


class HubError(Exception):
    """Base of everything that Hub raises on purpose."""


class ConfigError(HubError):
    """A setting is missing or makes no sense; the message names it."""


class SchemaMismatch(HubError):
    """The database is not as this code needs it; the message is one clear sentence."""


class Refusal(HubError):
    """A request that is not granted.

    `code` is the stable key of the reason, `data` the values its sentence in `hub.words` needs.
    """

    status: ClassVar[int] = 400
    default_code: ClassVar[str] = "malformed"

    def __init__(self, code: str | None = None, **data: Any) -> None:
        self.code = code or self.default_code
        self.data = data
        super().__init__(self.code)


class Malformed(Refusal):
    """The request cannot be read."""


class Unauthenticated(Refusal):
    """Nobody is signed in."""

    status = 401
    default_code = "unauthenticated"


class Forbidden(Refusal):
    """The person may see this place but not do this."""

    status = 403
    default_code = "forbidden"


class NotFound(Refusal):
    """Absent, or not to be known about."""

    status = 404
    default_code = "not_found"


class Conflict(Refusal):
    """Another row or the present state is in the way."""

    status = 409
    default_code = "conflict"


class Stale(Refusal):
    """The thing changed since the caller read it."""

    status = 412
    default_code = "stale"


class TooLarge(Refusal):
    """More than a limit of content allows."""

    status = 413
    default_code = "too_large"


class WrongType(Refusal):
    """A type of content that is not read here."""

    status = 415
    default_code = "wrong_type"


class Invalid(Refusal):
    """Fields are wrong. `fields` maps each field's name to a sentence."""

    status = 422
    default_code = "invalid"

    def __init__(self, fields: dict[str, str], code: str | None = None, **data: Any) -> None:
        super().__init__(code, **data)
        self.fields = fields


class PreconditionRequired(Refusal):
    """An edit must say which version it is based on."""

    status = 428
    default_code = "precondition_required"


class TooMany(Refusal):
    """A limit is reached. `retry_after` is in whole seconds, at least 1."""

    status = 429
    default_code = "rate_limited"

    def __init__(self, code: str | None = None, *, retry_after: float, **data: Any) -> None:
        super().__init__(code, **data)
        self.retry_after = max(1, int(-(-retry_after // 1)))


class Unavailable(Refusal):
    """Something Hub needs is away for now. `retry_after` is in whole seconds."""

    status = 503
    default_code = "unavailable"

    def __init__(self, code: str | None = None, *, retry_after: int = 5, **data: Any) -> None:
        super().__init__(code, **data)
        self.retry_after = retry_after
