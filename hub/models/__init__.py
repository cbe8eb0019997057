"""Tables and the rules on them. Importing this package declares every table, for Alembic and for the application."""

from hub.models import audit, course, person, rate, session, support, tag, workspace
from hub.models.base import Base

__all__ = ["Base", "audit", "course", "person", "rate", "session", "support", "tag", "workspace"]
