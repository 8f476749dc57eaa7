"""``pinfold serve`` and its page in a real browser: from an agent's books to what is drawn."""

from __future__ import annotations

import re
import time
from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.scenes.chromium import Shown, needs_chromium
from tests.scenes.manager_harness import manifest
from tests.scenes.served_page import served_page
from tests.scenes.web_world import Served, served

pytestmark = needs_chromium


def test_a_node_from_the_door_to_the_past(browser: Browser, tmp_path: Path) -> None:
    socket = tmp_path / "agent.sock"
    with (
        served(socket, machine="2s8c2t", observes=True) as api,
        served_page(socket) as serving,
        browser.new_context(viewport={"width": 1300, "height": 900}) as context,
    ):
        api.backend.node_name = "worker-7"
        seen = Shown(context.new_page())
        page = seen.page
        page.goto(f"http://127.0.0.1:{serving.port}/?token={serving.token}")
        assert "token" not in page.url
        expect(page.locator(".state")).to_have_text("live")
        expect(page.locator("h1")).to_have_text("worker-7")
        expect(page).to_have_title("worker-7 · Pinfold")
        expect(page.locator(".cell")).to_have_count(32)
        started = time.monotonic()
        assert api.ask("POST", "/v1/pods", manifest("first", "4")).status == 201
        row = page.locator(".pod", has_text="first")
        expect(row).to_contain_text("Guaranteed")
        assert time.monotonic() - started < 5
        row.hover()
        lines = page.locator(".why .line")
        expect(lines.filter(has_text="decided by")).to_be_in_viewport(ratio=1)
        expect(lines.first).to_have_text(re.compile("^Container "))
        row.locator(".pod-head").click()
        expect(page.locator(".cell.on")).to_have_count(4)
        expect(page.locator(".why pre")).to_contain_text("exclusive CPUs")
        page.keyboard.press("Escape")
        assert api.ask("POST", "/v1/pods", manifest("second", "6")).status == 201
        expect(page.locator(".pod", has_text="second")).to_have_count(1)
        page.get_by_role("button", name="What happened").click()
        entries = page.locator(".entry")
        expect(entries.filter(has_text="second").first).to_contain_text("CPUs")
        page.get_by_role("slider").focus()
        for _ in range(entries.count()):
            page.keyboard.press("ArrowLeft")
        expect(page.locator(".state")).to_have_text(re.compile("as it was at "))
        expect(page.locator(".pod", has_text="second")).to_have_count(0)
        page.keyboard.press("End")
        expect(page.locator(".pod", has_text="second")).to_have_count(1)
        idle_of(api)
        expect(page.locator(".cell .use:visible").first).to_be_visible()
        assert seen.told == []
        api.end()
        expect(page.locator(".state")).to_have_text("agent away")
        # What happened may just be asked for: a browser tells of an answer 503 in its console.
        assert all("503" in one for one in seen.told), seen.told
        assert {address.split("/")[2] for address in seen.asked if "data:" not in address} == {
            f"127.0.0.1:{serving.port}"
        }


def idle_of(api: Served) -> None:
    """Have the agent observe what its CPUs do, twice."""
    observation = api.backend.observation
    assert observation is not None
    for _ in range(3):
        api.backend.clock += 1.0
        api.call(observation.observe())
