"""What all tables share: naming convention, ids, times, version."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, MetaData, Text, func, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from uuid_utils.compat import uuid7

NAMES = {
    "pk": "%(table_name)s_pkey",
    "fk": "%(table_name)s_%(column_0_name)s_fkey",
    "uq": "%(table_name)s_%(column_0_N_name)s_key",
    "ix": "%(table_name)s_%(column_0_N_name)s_idx",
    "ck": "%(table_name)s_%(constraint_name)s_check",
}


class Base(DeclarativeBase):
    """Declarative base of the schemas `hub` and `audit`."""

    metadata = MetaData(schema="hub", naming_convention=NAMES)
    type_annotation_map = {
        str: Text,
        int: BigInteger,
        datetime: DateTime(timezone=True),
    }


def new_id() -> uuid.UUID:
    """A fresh uuid version 7: ordered by time, so that inserts stay at the end of an index."""
    return uuid7()


def id_column() -> Mapped[uuid.UUID]:
    """A primary key that the application draws."""
    return mapped_column(primary_key=True, default=new_id)


def version_column() -> Mapped[int]:
    """The optimistic token: every writer raises it by one, in SQL."""
    return mapped_column(server_default=text("1"))


def time_column(**options: Any) -> Mapped[datetime]:
    """A time that the database sets when the row is made."""
    return mapped_column(server_default=func.statement_timestamp(), **options)
