"""The page of a node on which something happens all the time, in a real browser."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec import UNSET
from msgspec.structs import replace
from playwright.sync_api import Browser, Page, expect

from tests.scenes.chromium import needs_chromium
from tests.scenes.page_scenes import Node, mixed, small
from tests.scenes.scripted_page import PageServer

pytestmark = needs_chromium

NOW = time.time()
EVERY = 0.1
"""Seconds between two changes: before any patience of the page is over."""


@pytest.fixture
def page(browser: Browser, server: PageServer) -> Iterator[Page]:
    """Of the small node, whose pods have their reasons from the server."""
    server.tell("whole", node().scene())
    with browser.new_context(viewport={"width": 1300, "height": 900}) as context:
        page = context.new_page()
        page.goto(server.url)
        expect(page.locator(".state")).to_have_text("live")
        yield page


def node() -> Node:
    found = small()
    found.pods = [replace(pod, why=UNSET) for pod in found.pods]
    return found


def entry(number: int, at: float) -> dict[str, object]:
    who = {"pod": f"default/p-{number}", "pod_uid": "u", "document": None}
    return {"number": number, "at": at, "kind": "admitted", "words": "main: 1 CPU", **who}


@contextmanager
def churn(server: PageServer) -> Iterator[None]:
    """Pods without CPUs of their own come and go meanwhile, and there is an entry of each."""
    over = threading.Event()

    def tell() -> None:
        number = 0
        while not over.wait(EVERY):
            number += 1
            changed = node()
            changed.pod(f"batch/job-{number}", {"work": 0}, word="Burstable")
            server.entries = [entry(number, time.time()), *server.entries]
            server.tell("changed", replace(changed.scene(), root=UNSET))

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_what_happened_is_told_while_it_goes_on(server: PageServer, page: Page) -> None:
    with churn(server):
        page.get_by_role("button", name="What happened").click()
        expect(page.locator(".entry", has_text="default/p-20")).to_have_count(1)
        assert page.locator(".tick").count() > 0
    asked = [path for path in server.asked if path.startswith("/v1/history")]
    assert len(asked) < 20, "and is not read for each event"


def test_of_moments_that_are_passed_by_only_the_last_is_asked_for(
    server: PageServer, page: Page
) -> None:
    server.entries = [entry(number, NOW - 600 + 10 * number) for number in range(50, 0, -1)]
    for told in server.entries:
        scene = replace(mixed().scene(f"then {told['number']}"), live=False)
        server.past[float(str(told["at"]))] = scene
    server.tell("whole", node().scene())
    expect(page.locator(".tick")).not_to_have_count(0)
    title = page.locator("h1")
    page.evaluate(
        """() => {
            window.titles = []
            new MutationObserver(() => titles.push(document.querySelector('h1').textContent))
                .observe(document.querySelector('h1'), {childList: true})
        }"""
    )
    server.holds.clear()
    page.get_by_role("slider").focus()
    for _ in range(20):
        page.keyboard.press("ArrowLeft")
    page.wait_for_timeout(200)
    moments = [path for path in server.asked if "?at=" in path]
    assert len(moments) == 1
    server.holds.set()
    expect(title).to_have_text("then 31")
    assert len([path for path in server.asked if "?at=" in path]) == 2
    assert page.evaluate("titles") == ["then 31"], "the first answer was too old when it came"
    server.holds.clear()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("n")
    expect(title).to_have_text("worker-7")
    server.holds.set()
    page.wait_for_timeout(200)
    expect(title).to_have_text("worker-7")
    page.get_by_role("slider").focus()
    for _ in range(20):
        page.keyboard.press("ArrowLeft")
    expect(page.locator(".state")).to_have_text(re.compile("as it was at "))
    expect(title).to_have_text("then 31")


def test_why_is_told_while_pods_come_and_go(server: PageServer, page: Page) -> None:
    with churn(server):
        # With the first of them comes the slider, and the map below it is elsewhere.
        expect(page.locator(".tick")).not_to_have_count(0)
        page.locator(".cell[data-cpu='9']").hover()
        expect(page.locator(".why pre")).to_contain_text("CPUs  6-13")


def test_who_reads_why_is_left_alone(server: PageServer, page: Page) -> None:
    """The focus, what is selected, and how far one has scrolled stay while others come and go."""
    server.why = [f"line {number}" for number in range(80)]
    page.locator(".pod-head", has_text="order-db-0").click()
    why, panel = page.locator(".why pre"), page.locator(".panel")
    expect(why).to_contain_text("line 79")
    why.focus()
    page.evaluate("getSelection().selectAllChildren(document.querySelector('.line:nth-child(40)'))")
    panel.evaluate("one => { one.scrollTop = 200 }")
    with churn(server):
        expect(page.locator(".pod", has_text=re.compile(r"job-\d\d"))).to_have_count(1)
    expect(why).to_be_focused()
    assert page.evaluate("getSelection().toString()").strip() == "line 39"
    assert panel.evaluate("one => one.scrollTop") == 200
    assert len([path for path in server.asked if path.startswith("/v1/explain/")]) == 1


def test_what_changes_of_a_pod_is_told_beside_it(server: PageServer, page: Page) -> None:
    page.locator(".pod-head", has_text="order-db-0").click()
    expect(page.locator(".why pre")).to_contain_text("CPUs  6-13")
    facts, why = page.locator(".panel .facts"), page.locator(".why pre")
    expect(facts).to_contain_text("6-13 · 8 CPUs")
    server.why = ["moved", "  CPUs  6-9"]
    moved = node()
    at = next(at for at, pod in enumerate(moved.pods) if pod.name == "order-db-0")
    pod = moved.pods[at]
    moved.pods[at] = replace(pod, containers=[replace(pod.containers[0], cpus="6-9")])
    server.tell("changed", replace(moved.scene(), root=UNSET))
    expect(facts).to_contain_text("6-9 · 4 CPUs")
    expect(why).to_contain_text("moved")
    used = [{"pod": "trading/order-db-0", "container": "postgres", "last": {"usage": 3.25}}]
    server.tell("observed", observed={"idle": {}, "containers": used})
    expect(facts).to_contain_text("3.25 used")
    page.locator(".pod-head", has_text="feed-handler").click()
    expect(page.locator(".panel")).to_contain_text("log-shipper")
    expect(page.locator(".panel")).not_to_contain_text("postgres")


def test_who_scrolls_the_pods_is_not_brought_back(server: PageServer, page: Page) -> None:
    crowded = node()
    for number in range(60):
        crowded.pod(f"batch/one-{number}", {"work": 0}, word="BestEffort")
    server.tell("whole", crowded.scene())
    pods = page.locator(".pods")
    page.locator(".cell[data-cpu='9']").click()
    expect(page.locator(".panel.pinned")).to_have_count(1)
    pods.evaluate("one => { one.scrollTop = 900 }")
    crowded.pod("batch/more", {"work": 0}, word="BestEffort")
    server.tell("changed", replace(crowded.scene(), root=UNSET))
    expect(page.locator(".count-of-pods")).to_contain_text("68 pods")
    assert pods.evaluate("one => one.scrollTop") > 500


def test_how_busy_a_cpu_is_now_is_not_told_of_the_past(server: PageServer, page: Page) -> None:
    server.entries = [entry(1, NOW - 300)]
    server.past[NOW - 300] = replace(node().scene("then"), live=False)
    server.tell("whole", node().scene())
    server.tell("observed", observed={"idle": {"9": 0.25}, "containers": []})
    page.locator(".cell[data-cpu='9']").click()
    expect(page.locator(".tick")).to_have_count(1)
    busy = page.locator(".panel .busy")
    expect(busy).to_have_text("75 % busy")
    page.keyboard.press("[")
    expect(page.locator("h1")).to_have_text("then")
    expect(busy).to_have_count(0)
    server.tell("observed", observed={"idle": {"9": 0.5}, "containers": []})
    page.keyboard.press("n")
    expect(busy).to_have_text("50 % busy")


def test_pods_stay_in_sight_beside_what_is_unfolded_and_pinned(
    server: PageServer, page: Page
) -> None:
    server.entries = [entry(number, NOW - 600 + 10 * number) for number in range(50, 0, -1)]
    server.why = [f"line {number}" for number in range(16)]
    server.tell("whole", node().scene())
    page.set_viewport_size({"width": 1280, "height": 800})
    panel = page.locator(".panel")
    page.locator(".pod-head", has_text="order-db-0").click()
    expect(panel.locator(".line")).to_have_count(16)
    page.get_by_role("button", name="What happened").click()
    expect(panel).to_have_class(re.compile("more-below"))
    for part, least in ((panel, 150), (page.locator(".pods"), 90)):
        box = part.bounding_box()
        assert box is not None
        assert box["height"] > least
        assert box["y"] + box["height"] <= 800
