"""How templates show times, numbers and words."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from zoneinfo import ZoneInfo

from flask import Flask, current_app, g, request, url_for
from markupsafe import Markup

from hub import words
from hub.web import auth, headers, respond

THEME_COOKIE = "hub_theme"
THEMES = ("light", "dark")
# The first mark that occurs in a User-Agent decides: most browsers also name those that they descend from.
BROWSERS = (("Edg", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrom", "Chrome"), ("Safari/", "Safari"))
SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("Mac OS", "macOS"),
    ("Linux", "Linux"),
)


def install(app: Flask) -> None:
    """Give templates of `app` their filters and globals."""
    app.jinja_env.filters.update(when=when, when_exact=when_exact, number=number, iso=respond.iso, browser=browser)
    app.jinja_env.globals.update(
        t=words.say, has_words=words.has, asset=asset, viewer_zone=viewer_zone, now=now, theme=theme
    )
    app.jinja_env.globals.update(request_id=headers.request_id, retry_at=retry_at, zone_label=zone_label)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.context_processor(lambda: {"place": g.get("place"), "visitor": auth.current()})


def viewer_zone() -> ZoneInfo:
    """The zone in which this page's times are shown: the person's, else the workspace's, else UTC."""
    if g.get("place") is not None:
        zone: ZoneInfo = g.place.zone
        return zone
    visitor = auth.current()
    return auth.zone_of(visitor.person if visitor else None)


def when(moment: datetime | None, zone: ZoneInfo | None = None) -> Markup:
    """A time to the minute, ``30 Nov 2026, 15:02``, in the viewer's zone; nothing for None."""
    return _time(moment, "%b %Y, %H:%M", zone, named=False)


def when_exact(moment: datetime | None, zone: ZoneInfo | None = None) -> Markup:
    """A time to the second with its zone, ``30 Nov 2026, 15:02:11 CET``."""
    return _time(moment, "%b %Y, %H:%M:%S", zone, named=True)


def number(value: int) -> str:
    """A whole number in groups of three: ``100,000``."""
    return f"{value:,}"


def now() -> datetime:
    """The time at which the page is made."""
    return datetime.now(UTC)


def retry_at(seconds: int) -> datetime:
    """The time so many seconds from now."""
    return now() + timedelta(seconds=seconds)


def theme() -> str:
    """The colours that this browser chose: light, dark, or empty for the system's."""
    chosen = request.cookies.get(THEME_COOKIE, "")
    return chosen if chosen in THEMES else ""


def browser(user_agent: str) -> str:
    """A browser in a few words, ``Firefox on Windows``; for others the beginning of what they say of themselves."""
    name = next((name for mark, name in BROWSERS if mark in user_agent), "")
    system = next((name for mark, name in SYSTEMS if mark in user_agent), "")
    if name and system:
        return words.say("account.sessions.browser_on", browser=name, system=system)
    return name or user_agent[:60]


def asset(path: str) -> str:
    """The address of a static file, which changes with its content, so that browsers may keep it for ever."""
    static = Path(current_app.static_folder or "") / path
    return url_for("static", filename=path, v=_digest(static, static.stat().st_mtime_ns))


@lru_cache(maxsize=64)
def _digest(path: Path, _changed: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def _time(moment: datetime | None, pattern: str, zone: ZoneInfo | None, named: bool) -> Markup:
    if moment is None:
        return Markup("")
    local = moment.astimezone(zone or viewer_zone())
    text = f"{local.day} {local.strftime(pattern)}"
    if named:
        text += f" {zone_label(local)}"
    return Markup('<time datetime="{}">{}</time>').format(respond.iso(moment.replace(microsecond=0)), text)


def zone_label(local: datetime) -> str:
    """The short name of a local time's zone: ``CET``, or ``UTC+07:00`` where the zone has none."""
    name = local.tzname() or "UTC"
    return name if name[0].isalpha() else f"UTC{name[:3]}:{name[3:] or '00'}"
