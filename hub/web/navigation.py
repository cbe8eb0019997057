"""The main navigation: where a visitor can go from here."""

from __future__ import annotations

from dataclasses import dataclass

from flask import Flask, g, request

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
    ],
    "activity": [
        Entry("jobs", "/w/<slug>/jobs", "workspace.see", "jobs"),
        Entry("audit", "/w/<slug>/audit", "audit.read", "audit"),
    ],
    "workspace": [
        Entry("backups", "/w/<slug>/backups", "backup.see", "archive"),
        Entry("members", "/w/<slug>/members", "members.manage", "people"),
    ],
}
# For staff; the right is their flag.
STAFF = [Entry("all_audit", "/audit", "support", "audit")]


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
    groups: dict[str, list[Link]] = {}
    place = g.get("place")
    if place is None:
        groups["overview"] = [_link(entry, "") for entry in ELSEWHERE]
    else:
        for group, entries in WORKSPACE.items():
            allowed = [entry for entry in entries if place.may(entry.action)]
            groups[group] = [_link(entry, place.workspace.slug) for entry in allowed]
    groups["staff"] = [_link(entry, "") for entry in STAFF if entry.action == visitor.person.staff]
    return {group: links for group, links in groups.items() if links}


def _link(entry: Entry, slug: str) -> Link:
    url = entry.rule.replace("<slug>", slug)
    inside = request.path == url or (not url.endswith("/") and request.path.startswith(f"{url}/"))
    return Link(entry.key, url, entry.icon, inside)
