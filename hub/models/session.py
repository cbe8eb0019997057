"""Sign-in sessions: rows, so that signing out, disabling and expiry end them at once and everywhere.

The browser holds a random token; the row holds only its SHA-256. A session ends by sign-out (the row goes), when idle
too long, or at its absolute age; all by the database's clock.
"""

from __future__ import annotations

import hashlib
import secrets
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, ForeignKey, Index, LargeBinary, delete, func, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from hub.models.base import Base, id_column, time_column
from hub.models.person import Person

# How stale "last seen" may be: one small write a minute and person instead of one a request.
TOUCH_EVERY = timedelta(seconds=60)


class SignIn(Base):
    """One signed-in browser."""

    __tablename__ = "session"
    __table_args__ = (
        Index("session_token_hash_key", "token_hash", unique=True),
        Index("session_person_id_idx", "person_id"),
    )

    id: Mapped[uuid.UUID] = id_column()
    token_hash: Mapped[bytes] = mapped_column(LargeBinary)
    person_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("hub.person.id"))
    created_at: Mapped[datetime] = time_column()
    seen_at: Mapped[datetime] = time_column()
    expires_at: Mapped[datetime]
    idle_seconds: Mapped[int]
    address: Mapped[str]
    user_agent: Mapped[str]


@dataclass(frozen=True)
class Visitor:
    """A live session with its person."""

    session_id: uuid.UUID
    person: Person
    seen_at: datetime
    now: datetime


def start(
    session: Session, person: Person, *, idle: float, absolute: float, address: str, user_agent: str
) -> tuple[str, SignIn]:
    """Begin a session; returns the token for the browser and the row. `idle` and `absolute` are seconds."""
    token = secrets.token_urlsafe(32)
    row = SignIn(
        token_hash=_hash(token),
        person_id=person.id,
        expires_at=func.statement_timestamp() + timedelta(seconds=absolute),
        idle_seconds=int(idle),
        address=address[:100],
        user_agent=user_agent[:300],
    )
    session.add(row)
    session.flush()
    return token, row


def find(session: Session, token: str) -> Visitor | None:
    """The live session of a token: not expired, not idle too long, its person enabled."""
    return _visitor(session, SignIn.token_hash == _hash(token))


def get(session: Session, session_id: uuid.UUID) -> Visitor | None:
    """The live session with this id, by the same rules."""
    return _visitor(session, SignIn.id == session_id)


def touch(session: Session, session_id: uuid.UUID) -> None:
    """Note that the person used the session just now."""
    session.execute(update(SignIn).where(SignIn.id == session_id).values(seen_at=func.statement_timestamp()))


def end(session: Session, session_id: uuid.UUID) -> None:
    """Sign out: the row goes, and with it every way to use its token."""
    session.execute(delete(SignIn).where(SignIn.id == session_id))


def end_own(session: Session, person_id: uuid.UUID, session_id: uuid.UUID) -> bool:
    """End one session if it is this person's; returns whether it was."""
    query = delete(SignIn).where(SignIn.id == session_id, SignIn.person_id == person_id)
    return session.execute(query.returning(SignIn.id)).one_or_none() is not None


def end_others(session: Session, person_id: uuid.UUID, keep: uuid.UUID | None) -> int:
    """End all other sessions of a person, as after a change of password; returns how many."""
    query = delete(SignIn).where(SignIn.person_id == person_id)
    if keep is not None:
        query = query.where(SignIn.id != keep)
    return len(session.execute(query.returning(SignIn.id)).all())


def forget_expired(session: Session) -> int:
    """Remove up to 1,000 sessions past their absolute age, with their support visits; returns how many."""
    old = select(SignIn.id).where(SignIn.expires_at < func.statement_timestamp()).limit(1000)
    ids = old.with_for_update(skip_locked=True)
    return len(session.execute(delete(SignIn).where(SignIn.id.in_(ids)).returning(SignIn.id)).all())


def of_person(session: Session, person_id: uuid.UUID) -> list[SignIn]:
    """The person's live sessions, newest first."""
    return list(
        session.scalars(select(SignIn).where(SignIn.person_id == person_id, *_live()).order_by(SignIn.seen_at.desc()))
    )


def _visitor(session: Session, which: ColumnElement[bool]) -> Visitor | None:
    row = session.execute(
        select(SignIn.id, Person, SignIn.seen_at, func.statement_timestamp())
        .join(Person, Person.id == SignIn.person_id)
        .where(which, Person.enabled, *_live())
    ).one_or_none()
    return Visitor(row[0], row[1], row[2], row[3]) if row else None


def _live() -> tuple[ColumnElement[bool], ...]:
    now = func.statement_timestamp()
    return (
        SignIn.expires_at > now,
        SignIn.seen_at + func.make_interval(0, 0, 0, 0, 0, 0, SignIn.idle_seconds) > now,
    )


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
