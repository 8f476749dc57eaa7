"""Several tabs with the page of one node in a real browser, of which one is in front."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.scenes.chromium import SEEN, hide, needs_chromium, reveal
from tests.scenes.page_scenes import small
from tests.scenes.scripted_page import PageServer

pytestmark = needs_chromium


@pytest.fixture
def server(server: PageServer) -> PageServer:
    server.tell("whole", small().scene())
    return server


@contextmanager
def window(browser: Browser) -> Iterator[BrowserContext]:
    with browser.new_context(viewport={"width": 1300, "height": 900}) as context:
        context.add_init_script(SEEN)
        yield context


def streams(server: PageServer) -> int:
    """How many were opened."""
    return server.asked.count("/v1/events")


def test_more_tabs_than_a_browser_has_connections(browser: Browser, server: PageServer) -> None:
    with window(browser) as context:
        tabs: list[Page] = []
        for _ in range(9):
            for other in tabs[-1:]:
                hide(other)
            tabs.append(context.new_page())
            tabs[-1].goto(server.url, timeout=10_000)
            expect(tabs[-1].locator(".state")).to_have_text("live")
        hide(tabs[-1])
        reveal(tabs[0])
        expect(tabs[0].locator(".state")).to_have_text("live")


def test_a_tab_that_comes_to_the_front_has_what_is_now_and_no_stir(
    browser: Browser, server: PageServer
) -> None:
    with window(browser) as context:
        page = context.new_page()
        page.goto(server.url)
        state, row = page.locator(".state"), page.locator('.pod[data-pod="default/newcomer"]')
        expect(state).to_have_text("live")
        hide(page)
        expect(state).not_to_have_text("live")
        node = small()
        node.pod("default/newcomer", {"main": 4})
        server.tell("whole", node.scene())
        page.wait_for_timeout(300)
        expect(row).to_have_count(0)
        assert streams(server) == 1
        page.evaluate(
            """() => {
                window.said = []
                new MutationObserver(() => said.push(document.querySelector('.state').textContent))
                    .observe(document.querySelector('.state'), {childList: true})
            }"""
        )
        reveal(page)
        expect(row).to_have_count(1)
        expect(state).to_have_text("live")
        assert streams(server) == 2
        assert page.evaluate("said") == ["live"], "what it said meanwhile is that it connects"
        assert page.evaluate("document.getAnimations().length") == 0
        page.wait_for_timeout(400)
        expect(page.locator(".spoken")).to_have_text("")
        server.tell("away", problem="the agent does not answer")
        expect(state).to_have_text("agent away")
        server.hang_up()
        expect(state).to_have_text("live")  # told the whole again


def test_a_tab_that_is_opened_behind_others_begins_when_it_is_shown(
    browser: Browser, server: PageServer
) -> None:
    with window(browser) as context:
        context.add_init_script("setHidden(true)")
        page = context.new_page()
        page.goto(server.url)
        page.wait_for_timeout(300)
        expect(page.locator(".state")).to_have_text("connecting")
        assert streams(server) == 0
        reveal(page)
        expect(page.locator(".state")).to_have_text("live")
        reveal(page)  # once more changes nothing
        assert streams(server) == 1


def test_who_is_not_let_in_is_asked_for_no_more_behind_others(
    browser: Browser, server: PageServer
) -> None:
    with window(browser) as context:
        page = context.new_page()
        page.goto(server.url)
        state = page.locator(".state")
        expect(state).to_have_text("live")
        server.refuses = True
        server.hang_up()
        expect(state).to_have_text("not let in")
        hide(page)
        before = streams(server)
        page.wait_for_timeout(3500)  # it would be tried again within 3000
        assert streams(server) == before
        server.refuses = False
        reveal(page)
        expect(state).to_have_text("live", timeout=2000)
        expect(page.locator(".problem")).to_be_hidden()
