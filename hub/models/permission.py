"""Who may do what: the one place in code.

A person without any right in a workspace gets "not found" for everything in it; a member whose role does not suffice is
told so. Staff rights are apart from membership: support looks (without content) after stating a reason, and operators
look after queues and workers.
"""

from __future__ import annotations

VIEWER = frozenset({"workspace.see", "page.read"})
MEMBER = VIEWER | {"course.edit", "backup.see"}
ADMIN = MEMBER | {"job.start", "backup.manage", "audit.read", "members.manage"}
# Support sees courses, pages, documents, jobs and the list of backups, but no bodies; and the audit trail.
SUPPORT = frozenset({"workspace.see", "backup.see", "audit.read"})

RIGHTS: dict[str, frozenset[str]] = {"viewer": VIEWER, "member": MEMBER, "admin": ADMIN, "support": SUPPORT}
ACTIONS = ADMIN | SUPPORT
# Beyond all workspaces: queues, dead letters, workers and the jobs of machines.
STAFF_RIGHTS: dict[str, frozenset[str]] = {
    "support": frozenset({"ops.see"}),
    "operator": frozenset({"ops.see", "ops.act"}),
}


def may(role: str, action: str) -> bool:
    """Whether somebody acting as `role` (admin, member, viewer, support) may do `action`.

    Raises KeyError for an action that the table does not have, so that a misspelt guard cannot let anybody in.
    """
    if action not in ACTIONS:
        raise KeyError(action)
    return action in RIGHTS[role]


def staff_may(staff: str | None, action: str) -> bool:
    """Whether somebody with this staff flag, or None, may do `action` beyond all workspaces. Raises as `may` does."""
    if action not in STAFF_RIGHTS["operator"]:
        raise KeyError(action)
    return staff is not None and action in STAFF_RIGHTS[staff]
