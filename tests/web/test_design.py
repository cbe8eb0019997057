"""The design's own promises: colours that can be read, a shape for each state, small files, a strict policy."""

from __future__ import annotations

import gzip
import re

import pytest

from tests.factories_jobs import STORED
from tests.processes import ROOT

CSS = ROOT / "static" / "app.css"
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))


def tokens() -> dict[str, tuple[str, str]]:
    """Each colour of the palette as (light, dark)."""
    found = re.findall(r"--([a-z0-9-]+): (?:light-dark\((#\w{6}), (#\w{6})\)|(#\w{6}));", CSS.read_text())
    return {name: (light or both, dark or both) for name, light, dark, both in found}


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio of two colours."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


STATES = (
    *("waiting", "scheduled", "running", "stopping", "retrying", "finished", "problems"),
    *("failed", "attention", "cancelled", "quiet"),
)
PAIRS = [
    *[(text, ground, 4.5) for text in ("text", "muted", "link") for ground in ("bg", "surface", "hover", "selected")],
    *[("control", ground, 3.0) for ground in ("bg", "surface")],
    *[("focus", ground, 3.0) for ground in ("bg", "surface", "hover", "selected")],
    ("primary-text", "primary", 4.5),
    ("danger-text", "danger", 4.5),
    ("bar", "track", 3.0),
    ("added", "added-fill", 4.5),
    ("removed", "removed-fill", 4.5),
    *[(state, ground, 4.5) for state in STATES for ground in (f"{state}-fill", "bg", "surface", "hover")],
]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_pair_of_colours_can_be_read(theme: int) -> None:
    palette = tokens()
    for front, ground, least in PAIRS:
        ratio = contrast(palette[front][theme], palette[ground][theme])
        assert ratio >= least, (front, ground, round(ratio, 2))


def test_the_sheets_and_scripts_stay_small() -> None:
    assert len(gzip.compress(CSS.read_bytes())) <= 12 * 1024
    own = b"".join(path.read_bytes() for path in sorted((ROOT / "static").glob("*.js")))
    assert len(gzip.compress(own)) <= 25 * 1024


def test_every_state_has_a_shape_of_its_own() -> None:
    sprite = (ROOT / "static" / "icons.svg").read_text()
    shapes = dict(re.findall(r'<symbol id="(state-[a-z-]+)"[^>]*>(.*?)</symbol>', sprite))
    names = [f"state-{label.replace('_', '-')}" for label in STORED]
    assert set(names) <= set(shapes)
    assert len({shapes[name] for name in names}) == len(names)


def test_every_icon_that_is_used_is_in_the_sprite() -> None:
    sprite = set(re.findall(r'id="([a-z-]+)"', (ROOT / "static" / "icons.svg").read_text()))
    used = {icon for path in TEMPLATES for icon in re.findall(r"#([a-z-]+)\"></use>", path.read_text())}
    assert used <= sprite


def test_no_template_breaks_the_policy_or_escapes_escaping() -> None:
    for path in TEMPLATES:
        text = path.read_text()
        assert not re.search(r"\sstyle=|\son[a-z]+=|hx-on|js:|\|\s*safe|<style|<script(?![^>]*src=)", text), path
        assert not re.search(r'hx-trigger="[^"]*\[', text), path
