"""Sliding windows over a table: a limit that holds over all processes, replicas and restarts.

No maintained library keeps such windows in PostgreSQL (docs/decisions.md). One row a key holds the times of at most
`limit` accepted hits; one statement decides and records, so concurrent callers serialise on the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import DateTime, delete, func, select, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, Session, mapped_column

from hub.models.base import Base


class RateWindow(Base):
    """The accepted hits of one key that may still count."""

    __tablename__ = "rate_window"

    key: Mapped[str] = mapped_column(primary_key=True)
    hits: Mapped[list[datetime]] = mapped_column(ARRAY(DateTime(timezone=True)))
    touched_at: Mapped[datetime] = mapped_column(index=True)
    # The verdict on the latest hit.
    allowed: Mapped[bool]


@dataclass(frozen=True)
class Verdict:
    """Whether the hit is within the limit; if not, after how many seconds one will be."""

    allowed: bool
    retry_after: float


def hit(session: Session, key: str, *, limit: int, seconds: float = 60.0) -> Verdict:
    """Count a hit of `key` unless `limit` hits lie within the last `seconds`: a strict sliding window.

    The caller commits at once: until then the key's other callers wait.
    """
    row = session.execute(_HIT, {"key": key[:300], "limit": limit, "seconds": seconds}).one()
    return Verdict(allowed=row.allowed, retry_after=0.0 if row.allowed else max(0.0, float(row.wait)))


def forget_old(session: Session, seconds: float = 86_400.0) -> int:
    """Remove up to 1,000 windows that nothing touched for so long; returns how many."""
    old = RateWindow.touched_at < func.statement_timestamp() - func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    # Skipping what another caller removes at this moment, so that the two never wait for each other in a ring.
    keys = select(RateWindow.key).where(old).limit(1000).with_for_update(skip_locked=True)
    return len(session.execute(delete(RateWindow).where(RateWindow.key.in_(keys)).returning(RateWindow.key)).all())


# clock_timestamp(): a caller that waited for the row must judge by the time it got it, not by when it began to wait.
_HIT = text("""
    insert into hub.rate_window as w (key, hits, touched_at, allowed)
    values (:key, array[clock_timestamp()], clock_timestamp(), true)
    on conflict (key) do update set (hits, touched_at, allowed) = (
        select case when known.count < :limit then known.hits || known.now else known.hits end,
               known.now,
               known.count < :limit
        from (
            select moment.now, count(h), coalesce(array_agg(h order by h) filter (where h is not null), '{}') as hits
            from (select clock_timestamp() as now) moment
            left join unnest(w.hits) h on h > moment.now - make_interval(secs => :seconds)
            group by moment.now
        ) known
    )
    returning allowed, extract(epoch from
        hits[greatest(1, cardinality(hits) - :limit + 1)] + make_interval(secs => :seconds) - touched_at) as wait
""")
