"""Who may go on watching: what every open stream is asked about at each beat, all in one statement."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Session

# A sign-in and the workspace that it looks into.
Watcher = tuple[UUID, UUID]


def still_in(session: Session, watchers: Iterable[Watcher]) -> set[Watcher]:
    """Those of `watchers` whose session still lives and whose person may still see the workspace.

    The rules are those of entering it: person, workspace and membership enabled, or support with a stated reason.
    """
    pairs = list(set(watchers))
    values = {"sessions": [pair[0] for pair in pairs], "workspaces": [pair[1] for pair in pairs]}
    return {(row.session_id, row.workspace_id) for row in session.execute(_STILL_IN, values)}


_STILL_IN = text("""
    select w.session_id, w.workspace_id
    from unnest(cast(:sessions as uuid[]), cast(:workspaces as uuid[])) as w(session_id, workspace_id)
    join hub.session s on s.id = w.session_id
        and s.expires_at > statement_timestamp()
        and s.seen_at + make_interval(secs => s.idle_seconds) > statement_timestamp()
    join hub.person p on p.id = s.person_id and p.enabled
    join hub.workspace o on o.id = w.workspace_id and o.enabled
    where exists (
        select from hub.membership m where m.workspace_id = o.id and m.person_id = p.id and m.enabled
    ) or (p.staff = 'support' and exists (
        select from hub.support_visit v where v.session_id = s.id and v.workspace_id = o.id
    ))
""")
