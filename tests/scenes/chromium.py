"""A page in a headless Chromium that is installed on this machine, with all that it tells."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


class Shown:
    """An open page; ``told`` is what the console said, ``asked`` each address it wanted."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.told: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.told.append(message.text))
        page.on("pageerror", lambda error: self.told.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser; as root it has no sandbox of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def shown(
    browser: Browser, file: Path, *, width: int = 1200, scheme: Literal["light", "dark"] = "light"
) -> Iterator[Shown]:
    """A file in a window of this width, as a reader who prefers the scheme sees it."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    try:
        page = Shown(context.new_page())
        page.page.goto(file.as_uri())
        yield page
    finally:
        context.close()


SEEN: Final = """
    let hidden = false
    Object.defineProperties(document, {
        hidden: {get: () => hidden},
        visibilityState: {get: () => (hidden ? "hidden" : "visible")},
    })
    window.setHidden = value => {
        hidden = value
        document.dispatchEvent(new Event("visibilitychange"))
    }
"""
"""A script by which a test says which page is in front: without a screen, all of them are."""


def hide(page: Page) -> None:
    """Put a page behind others, in a context with that script."""
    page.evaluate("setHidden(true)")


def reveal(page: Page) -> None:
    """Put it in front again."""
    page.evaluate("setHidden(false)")
