"""Tables and the rules on them. Importing this package declares every table, for Alembic and for the application."""

from hub.models import audit, backup, course, person, rate, session, support, tag, workspace
from hub.models.base import Base

__all__ = ["Base", "audit", "backup", "course", "person", "rate", "session", "support", "tag", "workspace"]
