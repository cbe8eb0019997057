"""The main navigation: where a visitor can go from here. A page that this app does not have is left out."""

from __future__ import annotations

from dataclasses import dataclass

from flask import Flask, current_app, g, request

from hub.web import auth


@dataclass(frozen=True)
class Entry:
    """A page of the navigation; its words are ``nav.<key>``, and `action` is the right that opens it."""

    key: str
    rule: str
    action: str
    icon: str


# Where no workspace is chosen; the right to these is to be signed in.
ELSEWHERE = [Entry("workspaces", "/workspaces", "", "home"), Entry("account", "/account", "", "people")]
WORKSPACE: dict[str, list[Entry]] = {
    "overview": [Entry("dashboard", "/w/<slug>/", "workspace.see", "home")],
    "content": [
        Entry("courses", "/w/<slug>/courses", "workspace.see", "book"),
        Entry("tags", "/w/<slug>/tags", "workspace.see", "tag"),
        Entry("knowledge", "/w/<slug>/knowledge", "workspace.see", "document"),
        Entry("sharepoint", "/w/<slug>/sharepoint", "workspace.see", "cloud"),
        Entry("departments", "/w/<slug>/departments", "workspace.see", "people"),
    ],
    "activity": [
        Entry("jobs", "/w/<slug>/jobs", "workspace.see", "jobs"),
        Entry("backups", "/w/<slug>/backups", "workspace.see", "archive"),
        Entry("audit", "/w/<slug>/audit", "audit.read", "audit"),
    ],
    "workspace": [Entry("members", "/w/<slug>/members", "members.manage", "people")],
}
STAFF: dict[str, list[Entry]] = {
    "staff": [
        Entry("all_audit", "/audit", "support", "audit"),
        Entry("queues", "/ops/queues", "staff", "jobs"),
        Entry("dead_letters", "/ops/dead-letters", "staff", "alert"),
        Entry("schedules", "/ops/schedules", "staff", "clock"),
        Entry("workers", "/ops/workers", "staff", "server"),
    ]
}


@dataclass(frozen=True)
class Link:
    """One link as drawn."""

    key: str
    url: str
    icon: str
    current: bool


def install(app: Flask) -> None:
    """Give templates of `app` ``navigation()``."""
    app.jinja_env.globals["navigation"] = navigation


def navigation() -> dict[str, list[Link]]:
    """The links of the current page, by group; groups without any are left out."""
    visitor = auth.current()
    if visitor is None:
        return {}
    existing = {rule.rule for rule in current_app.url_map.iter_rules()}
    groups: dict[str, list[Link]] = {}
    place = g.get("place")
    if place is None:
        groups["overview"] = [_link(entry, "") for entry in ELSEWHERE]
    else:
        for group, entries in WORKSPACE.items():
            allowed = [entry for entry in entries if entry.rule in existing and place.may(entry.action)]
            groups[group] = [_link(entry, place.workspace.slug) for entry in allowed]
    staff = visitor.person.staff
    if staff:
        allowed = [e for e in STAFF["staff"] if e.rule in existing and e.action in (staff, "staff")]
        groups["staff"] = [_link(entry, "") for entry in allowed]
    return {group: links for group, links in groups.items() if links}


def _link(entry: Entry, slug: str) -> Link:
    url = entry.rule.replace("<slug>", slug)
    inside = request.path == url or (not url.endswith("/") and request.path.startswith(f"{url}/"))
    return Link(entry.key, url, entry.icon, inside)
