"""Who may do what: the one place in code.

A person without any right in a workspace gets "not found" for everything in it; a member whose role does not suffice is
told so. Staff rights are apart from membership: support looks (without content) after stating a reason.
"""

from __future__ import annotations

VIEWER = frozenset({"workspace.see", "page.read"})
MEMBER = VIEWER | {"course.edit"}
ADMIN = MEMBER | {"job.start", "backup.manage", "audit.read", "members.manage"}
# Support sees courses, pages, documents, jobs and the list of backups, but no bodies; and the audit trail.
SUPPORT = frozenset({"workspace.see", "audit.read"})

RIGHTS: dict[str, frozenset[str]] = {"viewer": VIEWER, "member": MEMBER, "admin": ADMIN, "support": SUPPORT}
ACTIONS = ADMIN | SUPPORT


def may(role: str, action: str) -> bool:
    """Whether somebody acting as `role` (admin, member, viewer, support) may do `action`.

    Raises KeyError for an action that the table does not have, so that a misspelt guard cannot let anybody in.
    """
    if action not in ACTIONS:
        raise KeyError(action)
    return action in RIGHTS[role]
