"""``pinfold serve`` with a real browser: how one gets in, and what is seen of an agent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.scenes.chromium import Shown, needs_chromium
from tests.scenes.served_page import ServedPage, begun, served_page
from tests.scenes.web_world import Served, served

pytestmark = needs_chromium


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "a.sock", observes=True) as found:
        yield found


@pytest.fixture
def page(node: Served) -> Iterator[ServedPage]:
    with served_page(node.path) as found:
        yield found


@contextmanager
def tab(browser: Browser) -> Iterator[Shown]:
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    try:
        yield Shown(context.new_page())
    finally:
        context.close()


def manifest(name: str, cpus: str) -> dict[str, Any]:
    amount = {"cpu": cpus, "memory": "1Gi"}
    resources = {"requests": amount, "limits": amount}
    container = {"name": "c0", "image": "x", "command": ["sh"], "resources": resources}
    metadata = {"name": name, "uid": f"uid-{name}"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container]},
    }


def test_the_address_that_is_printed_opens_the_page(
    browser: Browser, node: Served, page: ServedPage
) -> None:
    address = f"http://127.0.0.1:{page.port}/"
    with tab(browser) as seen:
        seen.page.goto(f"{address}?token={page.token}")
        assert seen.page.url == address, "the token is in no address that is kept"
        assert seen.page.evaluate("history.length") <= 2
        assert seen.page.evaluate("document.cookie") == "", "no script reads the session"
        expect(seen.page.locator(".cell").first).to_be_visible()
        node.ask("POST", "/v1/pods", manifest("web", "2"))
        expect(seen.page.get_by_text("web").first).to_be_visible(timeout=2000)
        assert seen.told == []
        assert all(one.startswith(address) for one in seen.asked if not one.startswith("data:"))
        seen.page.reload()
        expect(seen.page.get_by_text("web").first).to_be_visible()
        node.end()
        expect(seen.page.get_by_text("no agent listens").first).to_be_visible()


def test_without_the_token_there_is_a_form_for_it(browser: Browser, page: ServedPage) -> None:
    address = f"http://localhost:{page.port}/"
    with tab(browser) as seen:
        seen.page.goto(address)
        found = Axe().run(seen.page)
        assert found.violations_count == 0, found.generate_report()
        seen.page.get_by_label("Token").fill("wrong")
        seen.page.get_by_role("button").click()
        expect(seen.page.get_by_role("alert")).to_have_text("This is not the token.")
        seen.page.get_by_label("Token").fill(page.token)
        seen.page.keyboard.press("Enter")
        expect(seen.page.locator(".cell").first).to_be_visible()
        assert seen.page.url == address
        # A browser tells of an answer 401 in its console, and of nothing else.
        assert all("401" in one for one in seen.told), seen.told


def test_a_script_of_another_port_reads_nothing(
    browser: Browser, page: ServedPage, tmp_path: Path
) -> None:
    """Even of a browser that has the cookie, and on the same machine; its server is sent that."""
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    with begun("--socket", str(other / "a.sock"), "--listen", "127.0.0.1:0") as evil:
        evil.begin()
        with tab(browser) as seen:
            seen.page.goto(f"http://127.0.0.1:{page.port}/?token={page.token}")
            expect(seen.page.locator(".cell").first).to_be_visible()
            seen.page.goto(f"http://127.0.0.1:{evil.port}/healthz")
            target = f"http://127.0.0.1:{page.port}/v1/scene"
            asked = (
                "target => fetch(target, {credentials: 'include'}).then(() => 'in', () => 'out')"
            )
            assert seen.page.evaluate(asked, target) == "out"
            asked = """target => fetch(target, {credentials: 'include', mode: 'no-cors'})
                .then(answer => answer.type, () => 'out')"""
            assert seen.page.evaluate(asked, target) in ("opaque", "out")
            assert page.ask("GET", "/v1/scene").status == 200
