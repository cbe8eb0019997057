"""A real browser for tests: the system's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

AXE = Path(__file__).parent / "vendor" / "axe" / "axe.min.js"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A running browser. Without Chromium the test is skipped, or fails if HUB_REQUIRE_BROWSER is 1."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        (pytest.fail if os.environ.get("HUB_REQUIRE_BROWSER") == "1" else pytest.skip)(
            "there is no Chromium here: install the package chromium"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def axe(page: Page) -> list[str]:
    """What axe-core objects to on the page's address, each as ``rule: element``; empty if nothing.

    The page is opened again in a context of its own with the same cookies, size and colours: there the content
    security policy is off, which axe needs, while the tested page keeps it.
    """
    assert page.context.browser
    context = page.context.browser.new_context(
        bypass_csp=True,
        storage_state=page.context.storage_state(),
        viewport=page.viewport_size,
        color_scheme="dark" if page.evaluate("() => matchMedia('(prefers-color-scheme: dark)').matches") else "light",
    )
    try:
        copy = context.new_page()
        copy.goto(page.url, wait_until="load")
        copy.add_script_tag(path=AXE)
        return [
            f"{violation['id']}: {node['html'][:120]}"
            for violation in _run_axe(copy)["violations"]
            for node in violation["nodes"]
        ]
    finally:
        context.close()


def _run_axe(page: Page) -> dict[str, Any]:
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    result: dict[str, Any] = page.evaluate(
        "tags => axe.run(document, {runOnly: tags, resultTypes: ['violations']})", tags
    )
    return result
