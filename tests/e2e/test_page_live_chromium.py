"""The page of a live node in a real browser, against a real stream of events."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from msgspec import UNSET
from msgspec.structs import replace
from playwright.sync_api import Browser, expect

from tests.scenes.chromium import Shown, needs_chromium
from tests.scenes.page_scenes import (
    HOSTILE,
    WHY,
    Node,
    hostile,
    large,
    machine,
    mixed,
    small,
)
from tests.scenes.scripted_page import PageServer

pytestmark = needs_chromium

NOW = time.time()


@contextmanager
def looking(browser: Browser, server: PageServer, *, width: int = 1300) -> Iterator[Shown]:
    context = browser.new_context(viewport={"width": width, "height": 900})
    try:
        seen = Shown(context.new_page())
        seen.page.goto(server.url)
        expect(seen.page.locator(".state")).to_have_text("live")
        yield seen
    finally:
        context.close()


def changed(server: PageServer, node: Node) -> None:
    server.tell("changed", replace(node.scene(), root=UNSET))


def entry(number: int, at: float, kind: str = "admitted") -> dict[str, object]:
    return {
        "number": number, "at": at, "kind": kind, "pod_uid": "u", "pod": f"default/p-{number}",
        "document": None, "words": f"main: CPUs {number}",
    }  # fmt: skip


def test_a_change_is_drawn_and_said_and_all_else_is_left_alone(
    browser: Browser, server: PageServer
) -> None:
    node = small()
    server.tell("whole", node.scene())
    with looking(browser, server) as seen:
        assert seen.page.locator("h1").inner_text() == "worker-7"
        seen.page.evaluate(
            """() => {
                window.touched = new Set()
                new MutationObserver(all => all.forEach(({target}) => {
                    const element = target.nodeType === 1 ? target : target.parentElement
                    const cell = element.closest('.cell')
                    if (cell) window.touched.add(Number(cell.dataset.cpu))
                    const pod = element.closest('.pod')
                    if (pod) window.touched.add(pod.dataset.pod)
                })).observe(document.body, {subtree: true, childList: true, attributes: true})
            }"""
        )
        node.pod("default/newcomer", {"main": 4})
        changed(server, node)
        row = seen.page.locator('.pod[data-pod="default/newcomer"]')
        expect(row).to_contain_text("24-27")
        cell = seen.page.locator(".cell[data-cpu='24']")
        expect(cell).to_have_attribute(
            "aria-label",
            "CPU 24, core 12, NUMA node 1, Socket 1: default/newcomer main, exclusive",
        )
        expect(seen.page.locator(".spoken")).to_have_text("came: default/newcomer")
        touched = seen.page.evaluate("[...window.touched]")
        assert {one for one in touched if isinstance(one, int)} == {24, 25, 26, 27}
        assert "trading/order-db-0" not in touched
        assert seen.told == []
        assert all(address.startswith(server.url) for address in seen.asked)


def test_what_is_pointed_at_is_lit_everywhere_and_says_why(
    browser: Browser, server: PageServer
) -> None:
    server.why = list(WHY)
    node = small()
    node.pods = [replace(pod, why=UNSET) for pod in node.pods]
    server.tell("whole", node.scene())
    with looking(browser, server) as seen:
        page = seen.page
        lit = "all => all.map(one => Number(one.dataset.cpu))"
        page.locator(".cell[data-cpu='9']").hover()
        assert page.locator(".cell.on").evaluate_all(lit) == list(range(6, 14))
        expect(page.locator(".pod.on .pod-name")).to_have_text("trading/order-db-0")
        panel = page.locator(".panel")
        expect(panel).to_contain_text("CPU 9")
        expect(panel.locator("pre")).to_contain_text("took 4 whole cores")
        page.locator(".pod", has_text="feed-handler").hover()
        assert page.locator(".cell.on").evaluate_all(lit) == [2, 3, 4, 5]
        page.locator(".pod-head", has_text="feed-handler").click()
        page.locator(".cell[data-cpu='9']").hover()
        assert page.locator(".cell.on").evaluate_all(lit) == [2, 3, 4, 5]
        expect(page.locator(".pod.on .pod-head")).to_have_attribute("aria-pressed", "true")
        page.keyboard.press("Escape")
        page.mouse.move(2, 2)
        assert page.locator(".cell.on").count() == 0
        asked = [path for path in server.asked if path.startswith("/v1/explain/")]
        assert sorted(set(asked)) == sorted(asked)  # each of them once


def test_the_keyboard_reaches_all_of_it(browser: Browser, server: PageServer) -> None:
    server.tell("whole", small().scene())
    with looking(browser, server) as seen:
        page = seen.page
        here = "document.activeElement.dataset.cpu ?? document.activeElement.className"
        for _ in range(30):
            page.keyboard.press("Tab")
            if page.evaluate(here) == "0":
                break
        keys = ["ArrowRight", "ArrowDown", "ArrowRight", "ArrowUp", "End", "Home"]
        walked = []
        for key in keys:
            page.keyboard.press(key)
            walked.append(page.evaluate(here))
        assert walked == ["2", "3", "5", "4", "31", "0"]
        for _ in range(8):
            page.keyboard.press("ArrowRight")
        assert page.evaluate(here) == "16"  # over the edge, into the next box
        page.keyboard.press("Enter")
        expect(page.locator(".panel.pinned")).to_contain_text("CPU 16")
        expect(page.locator(".cell[data-cpu='16']")).to_have_attribute("aria-selected", "true")
        page.keyboard.press("ArrowRight")
        expect(page.locator(".panel.pinned")).to_contain_text("CPU 16")
        page.keyboard.press("Escape")
        assert page.locator(".panel.pinned").count() == 0
        page.keyboard.press("/")
        assert page.evaluate(here) == "filter"
        page.keyboard.type("17")
        expect(page.locator(".pod-name")).to_have_text(["trading/risk-model"])
        page.keyboard.press("Escape")
        expect(page.locator(".pod")).to_have_count(7)
        page.locator(".cell[data-cpu='0']").focus()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("walk over the CPUs")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.parametrize(
    ("filter_", "names"),
    [
        ("order", ["order-db-0"]),
        ("TRADING numa:1", ["risk-model"]),
        ("socket:0 feed", ["feed-handler"]),
        ("rejected", ["backtest"]),
        ("burstable", ["web-0", "web-1"]),
        ("deployment/web web-1", ["web-1"]),
        ("8", ["order-db-0"]),
        ("nobody", []),
    ],
)
def test_pods_are_found_by_what_they_are(
    browser: Browser, server: PageServer, filter_: str, names: list[str]
) -> None:
    server.tell("whole", small().scene())
    with looking(browser, server) as seen:
        seen.page.locator(".filter").fill(filter_)
        found = seen.page.locator(".pod").evaluate_all("all => all.map(one => one.dataset.pod)")
        assert [name.partition("/")[2] for name in found] == names


def test_use_is_drawn_and_can_be_hidden(browser: Browser, server: PageServer) -> None:
    node = small()
    server.tell("whole", node.scene())
    with looking(browser, server) as seen:
        page = seen.page
        used = page.locator(".cell[data-cpu='9'] .use")
        expect(used).to_be_hidden()
        switch = page.get_by_role("button", name="CPU use")
        expect(switch).to_be_hidden()  # an agent may not watch that
        idle = {str(cpu): cpu / 31 for cpu in node.cpus}
        server.tell("observed", observed={"idle": idle, "containers": []})
        expect(used).to_be_visible()
        wide = "one => one.getBoundingClientRect().width / one.parentElement.clientWidth"
        assert 0.5 < used.evaluate(wide) < 0.8
        switch.click()
        expect(used).to_be_hidden()
        page.reload()
        expect(page.locator(".state")).to_have_text("live")
        server.tell("observed", observed={"idle": idle, "containers": []})
        expect(switch).to_have_attribute("aria-pressed", "false")


def test_a_page_that_is_open_for_days_keeps_no_more_measures(
    browser: Browser, server: PageServer
) -> None:
    server.tell("whole", small().scene())
    with looking(browser, server) as seen:
        for number in range(510):
            observed = {"idle": {"0": number / 510}, "containers": []}
            server.tell("observed", observed=observed)
        server.tell("away", problem="all are told")
        expect(seen.page.get_by_role("alert")).to_have_text("all are told")
        kept = "performance.getEntriesByName('pinfold-event').length"
        assert 0 < seen.page.evaluate(kept) <= 500


def test_the_past_is_shown_as_such_and_left_again(browser: Browser, server: PageServer) -> None:
    node = small()
    server.entries = [entry(3, NOW - 60), entry(2, NOW - 300, "rejected"), entry(1, NOW - 600)]
    for told in server.entries:
        server.past[float(str(told["at"]))] = replace(
            mixed().scene(f"then {told['number']}"), live=False
        )
    server.tell("whole", node.scene())
    with looking(browser, server) as seen:
        page = seen.page
        title, state = page.locator("h1"), page.locator(".state")
        slider = page.get_by_role("slider")
        expect(slider).to_have_attribute("aria-valuetext", "now")
        expect(page.locator(".tick")).to_have_count(3)
        slider.focus()
        page.keyboard.press("ArrowLeft")
        expect(title).to_have_text("then 3")
        expect(state).to_have_text(re.compile("as it was at "))
        expect(page.locator(".cell")).to_have_count(48)
        assert Axe().run(page).violations_count == 0
        page.keyboard.press("ArrowLeft")
        expect(title).to_have_text("then 2")
        node.pod("default/newcomer", {"main": 2})
        changed(server, node)
        page.wait_for_timeout(200)
        expect(title).to_have_text("then 2")  # what comes meanwhile is not drawn
        page.get_by_role("button", name="Back to now").click()
        expect(title).to_have_text("worker-7")
        expect(page.locator('.pod[data-pod="default/newcomer"]')).to_have_count(1)
        page.get_by_role("button", name="What happened").click()
        page.get_by_role("button", name="default/p-1").click()
        expect(title).to_have_text("then 1")
        page.keyboard.press("Escape")
        expect(page.locator(".entries")).to_be_hidden()
        expect(title).to_have_text("then 1")
        page.keyboard.press("n")
        expect(state).to_have_text("live")


def test_a_moment_that_is_not_to_be_had_is_never_said_to_be_shown(
    browser: Browser, server: PageServer
) -> None:
    node = small()
    server.entries = [entry(2, NOW - 60), entry(1, NOW - 300)]
    server.tell("whole", node.scene())
    with looking(browser, server) as seen:
        page = seen.page
        state = page.locator(".state")
        expect(page.locator(".tick")).to_have_count(2)
        server.refuses = True
        page.get_by_role("slider").focus()
        page.keyboard.press("ArrowLeft")
        missing = re.compile(r"is not to be had: not let in; this is now")
        expect(state).to_have_text(missing)
        server.tell("observed", observed={"idle": {"0": 0.5}, "containers": []})
        node.pod("default/newcomer", {"main": 2})
        changed(server, node)
        expect(page.locator('.pod[data-pod="default/newcomer"]')).to_have_count(1)  # it is now
        expect(state).to_have_text(missing)
        assert page.locator("body.past").count() == 0
        server.refuses = False
        server.past[NOW - 300] = replace(mixed().scene("then"), live=False)
        page.keyboard.press("ArrowLeft")
        expect(page.locator("h1")).to_have_text("then")
        expect(state).to_have_text(re.compile("^as it was at "))
        # What could not be read of the history is asked for again.
        assert [path for path in server.asked if path.endswith("limit=1000")][1:] != []
        del server.past[NOW - 300]
        page.keyboard.press("ArrowRight")
        expect(state).to_have_text(re.compile("nobody remembers that; this is [0-9]"))
        assert page.locator("body.past").count() == 1
        page.keyboard.press("n")
        expect(state).to_have_text("live")


def test_before_the_first_scene_there_are_no_empty_frames(
    browser: Browser, server: PageServer
) -> None:
    page = browser.new_page()
    page.goto(server.url)
    expect(page.locator(".state")).to_have_text("connecting")
    server.tell("away", problem="the agent does not answer")
    expect(page.get_by_role("alert")).to_have_text("the agent does not answer")
    expect(page.get_by_text("Nothing is known of this node yet.")).to_be_visible()
    expect(page.locator(".maps")).to_be_hidden()
    expect(page.locator(".side")).to_be_hidden()
    assert Axe().run(page).violations_count == 0
    server.tell("whole", small().scene())
    expect(page.locator(".pod")).to_have_count(7)
    expect(page.get_by_text("Nothing is known")).to_be_hidden()
    cell = page.locator(".cell").first.bounding_box()
    assert cell is not None
    assert cell["height"] >= 24
    page.close()


def test_who_shares_reserved_cpus_has_their_mark(browser: Browser, server: PageServer) -> None:
    node = Node(machine(1, 1, 1, 2), reserved="0")
    node.pod("default/own", {"main": 1})
    node.pod("default/sharing", {"main": 0}, word="Burstable")
    scene = node.scene()
    own, sharing = scene.pods
    containers = [replace(one, cpus="0", remark="") for one in sharing.containers]
    server.tell("whole", replace(scene, pods=[own, replace(sharing, containers=containers)]))
    with looking(browser, server) as seen:
        row = seen.page.locator(".pod", has_text="sharing")
        expect(row.locator(".swatch")).to_have_text("R")
        expect(row.locator(".cpus")).to_have_text("shared")
        row.hover()
        expect(seen.page.locator(".panel")).to_contain_text("shares 0 · 1 CPU")


def test_a_rejection_is_told_with_its_lines_below_their_beginning(
    browser: Browser, server: PageServer
) -> None:
    server.why = ["  rejected  Guaranteed  TopologyAffinityError", f"    1. {'took ' * 60}"]
    server.tell("whole", small().scene())
    with looking(browser, server) as seen:
        page = seen.page
        page.locator(".pod", has_text="backtest").hover()
        panel = page.locator(".panel")
        expect(panel.locator(".line")).to_have_count(2)
        expect(panel.locator(".reason")).to_have_count(0)
        ink = """one => {
            const words = document.createRange()
            words.selectNodeContents(one)
            const lefts = [...words.getClientRects()].map(box => box.left)
            return lefts.slice(1).every(left => left >= lefts[0] + 10)
        }"""
        assert panel.locator(".line").last.evaluate(ink)
        page.locator(".pod-head", has_text="order-db-0").hover()
        server.why = [f"line {number}" for number in range(60)]
        page.locator(".pod-head", has_text="feed-handler").hover()
        expect(panel).to_have_class(re.compile("more-below"))


def test_an_agent_that_is_away_is_said_and_comes_back(browser: Browser, server: PageServer) -> None:
    node = small()
    server.tell("whole", node.scene())
    with looking(browser, server) as seen:
        page = seen.page
        server.tell("away", problem="the agent does not answer")
        expect(page.locator(".state")).to_have_text("agent away")
        expect(page.get_by_role("alert")).to_have_text("the agent does not answer")
        assert Axe().run(page).violations_count == 0
        server.tell("whole", node.scene())
        expect(page.locator(".state")).to_have_text("live")
        expect(page.locator(".problem")).to_be_hidden()
        server.hang_up()
        expect(page.locator(".state")).to_have_text("connecting again")
        expect(page.locator(".state")).to_have_text("live")


def test_who_is_not_let_in_any_more_is_told_so(browser: Browser, server: PageServer) -> None:
    server.tell("whole", small().scene())
    with looking(browser, server) as seen:
        server.refuses = True
        server.hang_up()
        expect(seen.page.locator(".state")).to_have_text("not let in")
        expect(seen.page.get_by_role("alert")).to_contain_text("pinfold serve")


def test_names_are_never_more_than_text(browser: Browser, server: PageServer) -> None:
    node = hostile()
    server.why = list(HOSTILE)
    server.entries = [entry(1, NOW - 5) | {"pod": HOSTILE[0], "words": HOSTILE[1]}]
    server.tell("whole", node.scene(HOSTILE[0]))
    with looking(browser, server) as seen:
        page = seen.page
        page.get_by_role("button", name="What happened").click()
        for cell in page.locator(".cell").all():
            cell.hover()
            cell.click()
        page.locator(".filter").fill(HOSTILE[0])
        page.locator(".filter").fill("")
        server.tell("whole", node.scene(HOSTILE[1]))
        expect(page.locator("h1")).to_have_text(HOSTILE[1])
        assert page.locator("img, body script, iframe").count() == 0
        assert seen.told == []


def test_a_touch_pins(browser: Browser, server: PageServer) -> None:
    server.tell("whole", small().scene())
    context = browser.new_context(viewport={"width": 400, "height": 800}, has_touch=True)
    page = context.new_page()
    page.goto(server.url)
    page.locator(".cell[data-cpu='9']").tap()
    expect(page.locator(".panel.pinned")).to_contain_text("trading/order-db-0")
    box = page.locator(".panel.pinned").bounding_box()
    assert box is not None
    assert box["y"] + box["height"] <= 801
    page.get_by_role("button", name="Release what is pinned").tap()
    expect(page.locator(".panel")).to_be_hidden()
    context.close()


def test_how_long_it_takes(
    browser: Browser, server: PageServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Printed, and not asserted: until the first scene of 512 CPUs and 250 pods, and a change."""
    node = large()
    server.tell("whole", node.scene())
    with looking(browser, server, width=1920) as seen:
        for number in range(20):
            node.pod(f"default/more-{number}", {"main": 2})
            changed(server, node)
            row = seen.page.locator(f'.pod[data-pod="default/more-{number}"]')
            expect(row).to_have_count(1)
        told = seen.page.evaluate(
            """() => performance.getEntriesByName('pinfold-event')
                .map(one => [one.detail, one.startTime, one.duration])"""
        )
    (_, at, took), *others = told
    taken = sorted(one[2] for one in others)
    assert len(taken) == 20
    with capsys.disabled():
        sys.stdout.write(
            f"\nfirst scene drawn {at + took:.0f} ms after the request, {took:.0f} of script"
            f"\na change: {taken[0]:.1f} to {taken[-1]:.1f} ms, median {taken[10]:.1f}\n"
        )
