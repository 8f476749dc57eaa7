"""The slider of the page in a real browser: it is dragged, and stays under the pointer."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, Page, expect

from tests.scenes.chromium import needs_chromium
from tests.scenes.page_scenes import empty, small
from tests.scenes.scripted_page import PageServer

pytestmark = needs_chromium

NOW = time.time()
THUMB = 14
"""Pixels; its middle is never nearer to an end of the track than half of that."""
ARROW = 18
"""Pixels that Chromium takes for the arrow of a select."""
PLACE = """() => {
    const {x, y, width, height} = document.querySelector('.track').getBoundingClientRect()
    return [x, y, width, height]
}"""


@pytest.fixture
def server(server: PageServer) -> PageServer:
    server.entries = [
        {
            "number": number, "at": NOW - 900 + 80 * number, "kind": "admitted", "pod_uid": "u",
            "pod": f"default/p-{number}", "document": None, "words": "main: 1 CPU",
        }
        for number in range(10, 0, -1)
    ]  # fmt: skip
    server.every = replace(empty().scene(), live=False)
    server.tell("whole", small().scene())
    return server


@contextmanager
def looking(browser: Browser, server: PageServer, width: int) -> Iterator[Page]:
    with browser.new_context(viewport={"width": width, "height": 900}) as context:
        page = context.new_page()
        page.goto(server.url)
        expect(page.locator(".state")).to_have_text("live")
        expect(page.locator(".tick")).to_have_count(10)
        yield page


@pytest.mark.parametrize("width", [400, 700, 1280, 3840])
def test_the_thumb_stays_under_the_pointer_that_drags_it(
    browser: Browser, server: PageServer, width: int
) -> None:
    with looking(browser, server, width) as page:
        live = page.evaluate(PLACE)
        left, top, wide, _ = live
        right = left + wide - THUMB / 2
        page.mouse.move(right, top + 16)
        page.mouse.down()
        told = set()
        for step in [1, 2, 3, 5, 8, 13, 20, 40, 80, 30, 10, 4]:
            x = right - step / 100 * (wide - THUMB)
            page.mouse.move(x, top + 16)
            share = float(page.get_by_role("slider").input_value())
            thumb = left + THUMB / 2 + share * (wide - THUMB)
            assert abs(thumb - x) <= 0.01 * wide + 1, step
            told.add(page.locator(".moment").inner_text() == "Now")
            assert page.evaluate(PLACE) == live
        page.mouse.up()
        assert told == {False}
        expect(page.locator(".state")).to_have_text(re.compile("^as it was at "))
        assert page.evaluate(PLACE) == live
        page.get_by_role("button", name="Back to now").click()
        expect(page.locator(".state")).to_have_text("live")
        page.mouse.click(left + wide / 2, top + 16)
        share = float(page.get_by_role("slider").input_value())
        assert abs(share - 0.5) <= 0.01


@pytest.mark.parametrize("width", [400, 1280])
def test_what_is_chosen_can_be_read(browser: Browser, server: PageServer, width: int) -> None:
    """The longest of them stands in its box, with the arrow that a browser draws."""
    with looking(browser, server, width) as page:
        room = page.get_by_label("How far back").evaluate(
            """one => {
                const words = document.createElement('span')
                words.textContent = one.selectedOptions[0].textContent
                words.style.font = getComputedStyle(one).font
                words.style.position = 'absolute'
                words.style.whiteSpace = 'nowrap'
                document.body.append(words)
                const {paddingLeft, paddingRight} = getComputedStyle(one)
                const inside = one.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight)
                const needed = words.getBoundingClientRect().width
                words.remove()
                return inside - needed
            }"""
        )
        assert room >= ARROW


def test_the_ring_of_the_slider_is_round(browser: Browser, server: PageServer) -> None:
    with looking(browser, server, 1280) as page:
        round_ = "one => getComputedStyle(one).borderRadius"
        button = page.get_by_role("button", name="What happened")
        assert page.get_by_role("slider").evaluate(round_) == button.evaluate(round_)


def test_what_is_known_last_is_not_called_now(browser: Browser, server: PageServer) -> None:
    with looking(browser, server, 1280) as page:
        words = page.locator(".moment")
        expect(words).to_have_text("Now")
        server.tell("away", problem="the agent does not answer")
        expect(words).to_have_text("Last known")
        expect(page.get_by_role("slider")).to_have_attribute("aria-valuetext", "last known")
        past = "getComputedStyle(document.querySelector('.state')).color"
        assert words.evaluate("one => getComputedStyle(one).color") == page.evaluate(past)
        server.tell("whole", small().scene())
        expect(words).to_have_text("Now")


def test_no_pod_at_a_moment_is_no_word_of_what_was_before(
    browser: Browser, server: PageServer
) -> None:
    with looking(browser, server, 1280) as page:
        page.get_by_role("slider").focus()
        page.keyboard.press("ArrowLeft")
        expect(page.locator(".nothing:visible")).to_have_text("No pod at this moment.")
