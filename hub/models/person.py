"""People and their passwords."""

from __future__ import annotations

import threading
import uuid
from datetime import datetime

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerifyMismatchError
from sqlalchemy import CheckConstraint, Index, func, select, text, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from hub.models.base import Base, id_column, time_column, version_column

# OWASP's Password Storage Cheat Sheet: Argon2id with 19 MiB, two passes, one lane (about 45 ms of one core).
_HASHER = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
# Two at once in a process: more would only fight for the cores and starve every other request.
_SLOTS = threading.BoundedSemaphore(2)
MIN_PASSWORD = 12
MAX_PASSWORD = 200


class Person(Base):
    """Somebody who can sign in; `email` is kept in lower case."""

    __tablename__ = "person"
    __table_args__ = (
        CheckConstraint("staff in ('support', 'operator')", name="staff"),
        Index("person_email_key", "email", unique=True),
    )

    id: Mapped[uuid.UUID] = id_column()
    email: Mapped[str]
    name: Mapped[str]
    password_hash: Mapped[str]
    enabled: Mapped[bool] = mapped_column(server_default=text("true"))
    staff: Mapped[str | None]
    # An IANA name; null means the workspace's.
    time_zone: Mapped[str | None]
    version: Mapped[int] = version_column()
    created_at: Mapped[datetime] = time_column()


def find(session: Session, email: str) -> Person | None:
    """The person with this address, whatever its letter case."""
    return session.scalar(select(Person).where(Person.email == normal_email(email)))


def normal_email(email: str) -> str:
    """The form in which addresses are kept and compared."""
    return email.strip().lower()


def hash_password(password: str) -> str:
    """The Argon2id hash to keep."""
    with _SLOTS:
        return _HASHER.hash(password)


def check_password(person: Person | None, password: str) -> bool:
    """Whether this is the person's password; takes equally long for nobody, so that accounts cannot be probed."""
    kept = person.password_hash if person else _NOBODY
    with _SLOTS:
        try:
            _HASHER.verify(kept, password[:MAX_PASSWORD])
        except (VerifyMismatchError, InvalidHashError):
            return False
    return person is not None and len(password) <= MAX_PASSWORD


def refresh_hash(session: Session, person: Person, password: str) -> None:
    """Hash the password anew if the kept hash was made with other parameters than today's."""
    if _HASHER.check_needs_rehash(person.password_hash):
        session.execute(update(Person).where(Person.id == person.id).values(password_hash=hash_password(password)))


def count_people(session: Session) -> int:
    """How many people there are: none means a fresh database."""
    return session.scalar(select(func.count()).select_from(Person)) or 0


_NOBODY = _HASHER.hash("nobody has this password")
