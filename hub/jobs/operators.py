"""Who may act on the queue itself, rather than on jobs of a workspace: operators."""

from __future__ import annotations

from sqlalchemy.orm import Session

from hub import words
from hub.errors import Forbidden, Invalid
from hub.models import audit, content
from hub.models.person import Person

MAX_REASON = 200


def require(session: Session, actor: audit.Actor) -> None:
    """Raise Forbidden if the actor is no enabled operator; whoever runs Hub itself, and names nobody, is one."""
    if actor.id is None and actor.kind == "hub":
        return
    person = session.get(Person, actor.id, populate_existing=True) if actor.id else None
    if person is None or not person.enabled or person.staff != "operator":
        raise Forbidden("operators_only")


def reason(text: str) -> str:
    """The reason that an act was given, trimmed. Raises Invalid, naming the field, for none that people could read."""
    text = text.strip()
    if not content.has_visible(text) or content.has_control(text) or len(text) > MAX_REASON:
        raise Invalid({"reason": words.say("ops.reason.invalid", most=MAX_REASON)})
    return text
