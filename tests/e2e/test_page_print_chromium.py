"""The page on paper, in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, Page, expect

from pinfold.documents.live.scene import ScenePage
from pinfold.page.files_of_page import whole_page
from tests.scenes.chromium import needs_chromium, shown
from tests.scenes.page_scenes import Node, compared, machine, page_of, small

pytestmark = needs_chromium

PAPERS = (718, 1280)
"""A4 upright, and what is wider than a window in which the pods stand beside the map."""


def printed(page: Page) -> None:
    page.emulate_media(media="print")


def written(folder: Path, page: ScenePage) -> Path:
    file = folder / "page.html"
    file.write_text(whole_page(page), encoding="utf-8")
    return file


@pytest.mark.parametrize("width", PAPERS)
def test_what_is_pinned_is_told_and_all_else_is_as_it_was(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    with shown(browser, written(tmp_path, page_of(small())), width=width) as seen:
        page = seen.page
        colors = "all => all.map(one => getComputedStyle(one).backgroundColor)"
        before = page.locator(".cell").evaluate_all(colors)
        page.locator(".cell[data-cpu='16']").click()
        expect(page.locator(".panel.pinned")).to_be_visible()
        printed(page)
        assert page.locator(".cell").evaluate_all(colors) == before
        expect(page.locator(".panel pre")).to_contain_text("took 4 whole cores")
        expect(page.locator("main .sets")).to_contain_text("Shared pool")
        expect(page.locator(".panel .close")).to_be_hidden()
        left = "one => one.getBoundingClientRect().left"
        assert page.locator(".pods").evaluate(left) == page.locator(".map").evaluate(left)
        panel = page.locator(".panel")
        assert panel.evaluate("one => one.scrollHeight - one.clientHeight") <= 1
        box, pods = panel.bounding_box(), page.locator(".pods").bounding_box()
        assert box is not None
        assert pods is not None
        assert box["y"] + box["height"] <= pods["y"]


def test_a_comparison_that_is_pinned_is_told_below_it(browser: Browser, tmp_path: Path) -> None:
    with shown(browser, written(tmp_path, compared())) as seen:
        page = seen.page
        page.locator(".cell[data-cpu='16']").first.click()
        printed(page)
        panel, maps = page.locator(".panel").bounding_box(), page.locator("main").bounding_box()
        assert panel is not None
        assert maps is not None
        assert panel["y"] >= maps["y"] + maps["height"]
        shadow = "all => [...new Set(all.map(one => getComputedStyle(one).boxShadow))]"
        assert page.locator(".cell").evaluate_all(shadow) == ["none"], "it is what differs else"


def test_outlines_are_around_the_digits(browser: Browser, tmp_path: Path) -> None:
    with shown(browser, written(tmp_path, compared())) as seen:
        seen.page.locator(".cell[data-cpu='2']").first.click()
        printed(seen.page)
        drawn = seen.page.locator(".cell.marked").evaluate_all(
            """all => [...new Set(all.map(one => {
                const {boxShadow, outlineStyle, outlineOffset} = getComputedStyle(one)
                return [boxShadow, outlineStyle, outlineOffset].join()
            }))]"""
        )
        assert drawn == ["none,solid,0px"]


def test_cells_have_the_size_that_fits_on_the_paper(browser: Browser, tmp_path: Path) -> None:
    """It is narrower than the window, and nobody has drawn the map for it."""
    scenes = [
        Node(machine(2, 1, 32, 2)).scene(name, at=None, marked="100-120") for name in ("a", "b")
    ]
    with shown(browser, written(tmp_path, replace(compared(), scenes=scenes)), width=1920) as seen:
        seen.page.evaluate(
            """() => {
                const cut = cell => cell.firstElementChild.scrollWidth > cell.clientWidth + 1 ||
                    cell.firstElementChild.getBoundingClientRect().width > cell.clientWidth
                matchMedia("print").addEventListener("change", event => {
                    if (!event.matches) return
                    const cells = [...document.querySelectorAll(".cell")]
                    window.told = [cells.length, cells.filter(cut).length]
                })
            }"""
        )
        seen.page.pdf()
        assert seen.page.evaluate("told") == [256, 0]
