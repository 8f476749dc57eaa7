"""Two scenes beside each other, in a real browser: what differs is told of both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, expect

from pinfold.page.files_of_page import whole_page
from tests.scenes.chromium import Shown, needs_chromium, shown
from tests.scenes.page_scenes import compared

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("pages") / "compared.html"
    file.write_text(whole_page(compared()), encoding="utf-8")
    return file


@pytest.fixture
def seen(browser: Browser, file: Path) -> Iterator[Shown]:
    with shown(browser, file, width=1280) as seen:
        yield seen


def meet(one: Locator, other: Locator) -> bool:
    first, second = one.bounding_box(), other.bounding_box()
    assert first is not None
    assert second is not None
    return (
        first["y"] < second["y"] + second["height"] and second["y"] < first["y"] + first["height"]
    )


@pytest.mark.parametrize("place", [0, 1])
def test_a_cpu_that_changes_is_told_with_both_owners_and_reasons(seen: Shown, place: int) -> None:
    page = seen.page
    page.locator(".cell[data-cpu='16']").nth(place).click()
    panel = page.locator(".panel.pinned")
    expect(panel.locator("h2")).to_contain_text("CPU 16")
    expect(panel.locator(".whose")).to_have_text(
        "trading/risk-model model, exclusive → trading/backtest backtest, exclusive"
    )
    before, after = panel.locator(".told").all()
    expect(before.locator("h3").first).to_contain_text("kubelet.yaml")
    expect(after.locator("h3").first).to_contain_text("kubelet-new.yaml")
    for side, reason in ((before, "took 4 whole cores"), (after, "8 exclusive CPUs")):
        expect(side.locator(".line", has_text=reason)).to_be_in_viewport(ratio=1)
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert seen.told == []
    page.keyboard.press("Escape")
    page.locator(".cell[data-cpu='2']").nth(place).click()
    expect(panel.locator(".told:visible")).to_have_count(1)


def test_a_cpu_that_is_given_to_nobody_is_told_with_why_its_owner_has_it_no_more(
    seen: Shown,
) -> None:
    seen.page.locator(".cell[data-cpu='22']").first.click()
    panel = seen.page.locator(".panel.pinned")
    expect(panel.locator(".whose")).to_have_text(
        "trading/risk-model model, exclusive → Shared pool"
    )
    after = panel.locator(".told").last
    expect(after).to_contain_text("trading/risk-model")
    expect(after).to_contain_text("UnexpectedAdmissionError not enough cpus")


def test_a_pod_that_changes_is_told_with_both_reasons(seen: Shown) -> None:
    seen.page.locator(".pod-head", has_text="backtest").first.click()
    panel = seen.page.locator(".panel.pinned")
    expect(panel.locator("h2")).to_have_text(["trading/backtest"])
    expect(panel.locator(".told").first).to_contain_text("TopologyAffinityError")
    expect(panel.locator(".told").last).to_contain_text("decided by")


@pytest.mark.parametrize("height", [560, 700, 800, 1100])
@pytest.mark.parametrize("cpu", ["14", "29"])
def test_what_differs_and_what_is_pinned_stay_in_sight(
    browser: Browser, file: Path, height: int, cpu: str
) -> None:
    with shown(browser, file, width=1280) as seen:
        page = seen.page
        page.set_viewport_size({"width": 1280, "height": height})
        cell = page.locator(f".cell[data-cpu='{cpu}']").last
        cell.click()
        panel = page.locator(".panel.pinned")
        expect(panel).to_be_in_viewport(ratio=1)
        assert not meet(panel, page.locator(".changes"))
        assert not meet(panel, cell)
