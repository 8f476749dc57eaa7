"""The page of a node in a real browser: what is drawn, for whom, and how large."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from msgspec.structs import replace
from playwright.sync_api import Browser, expect

from pinfold.documents.live.scene import ScenePage
from pinfold.page.files_of_page import whole_page
from tests.scenes.chromium import needs_chromium, shown
from tests.scenes.page_pictures import FOLDER, MOST, take
from tests.scenes.page_scenes import NODES, compared, cpus_of, page_of, small

pytestmark = needs_chromium

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
PAGES: dict[str, ScenePage] = {name: page_of(build()) for name, build in NODES.items()} | {
    "compared": compared()
}
WIDTHS = (400, 1200, 3840)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pages, by their names."""
    folder = tmp_path_factory.mktemp("pages")
    for name, page in PAGES.items():
        (folder / f"{name}.html").write_text(whole_page(page), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", PAGES)
def test_every_cpu_is_drawn_once_and_the_console_is_silent(
    browser: Browser, folder: Path, name: str
) -> None:
    file = folder / f"{name}.html"
    with shown(browser, file) as seen:
        assert seen.told == []
        assert seen.asked == [file.as_uri()]
        maps = seen.page.locator(".map")
        assert maps.count() == len(PAGES[name].scenes)
        for place, scene in enumerate(PAGES[name].scenes):
            assert scene.root
            drawn = (
                maps.nth(place)
                .locator(".cell")
                .evaluate_all("all => all.map(one => [Number(one.dataset.cpu), one.ariaLabel])")
            )
            assert [cpu for cpu, _ in drawn] == list(cpus_of(scene.root))
            labels = dict(drawn)
            for owner in scene.owners:
                first = int(owner.cpus.replace(",", "-").split("-")[0])
                assert f": {owner.label}, exclusive" in labels[first]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_nothing_runs_out_of_the_window(
    browser: Browser, folder: Path, name: str, width: int
) -> None:
    with shown(browser, folder / f"{name}.html", width=width) as seen:
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        small = seen.page.evaluate(
            """() => [...document.querySelectorAll('.cell')].map(cell => {
                const {width, height, right} = cell.getBoundingClientRect()
                return {width, height, right}
            }).filter(one => one.width < 24 || one.height < 24 || one.right > innerWidth)"""
        )
        assert small == []


@pytest.mark.parametrize(
    ("size", "least", "most"),
    [((400, 850), 24, 49), ((1200, 800), 40, 49), ((3840, 2160), 100, 120)],
)
def test_a_small_machine_is_larger_on_a_large_screen(
    browser: Browser, folder: Path, size: tuple[int, int], least: float, most: float
) -> None:
    with shown(browser, folder / "small.html") as seen:
        seen.page.set_viewport_size({"width": size[0], "height": size[1]})
        expect(seen.page.locator(".map")).to_be_in_viewport(ratio=0.9)
        cell = seen.page.locator(".cell").first.bounding_box()
        assert cell is not None
        assert least <= cell["height"] <= most


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", PAGES)
def test_nobody_is_kept_out(
    browser: Browser, folder: Path, name: str, scheme: Literal["light", "dark"]
) -> None:
    """All rules of axe, best practices too: contrast, names, landmarks, roles."""
    with shown(browser, folder / f"{name}.html", scheme=scheme) as seen:
        seen.page.evaluate("document.querySelectorAll('details').forEach(it => it.open = true)")
        found = Axe().run(seen.page)
        assert found.violations_count == 0, found.generate_report()


def test_the_pictures_of_the_documents_can_be_taken_again(browser: Browser, tmp_path: Path) -> None:
    take(browser, tmp_path)
    for scheme in SCHEMES:
        name = f"page-{scheme}.png"
        assert (tmp_path / name).stat().st_size > 20_000
        assert (FOLDER / name).stat().st_size < MOST


def test_pods_that_are_alike_are_one_row_that_can_be_opened(browser: Browser, folder: Path) -> None:
    """150 replicas of a deployment, and three that were refused for one reason."""
    with shown(browser, folder / "large.html") as seen:
        rows = seen.page.locator(".pod")
        web = rows.filter(has_text="deployment/web")
        assert web.locator(".times").text_content() == "× 150"
        web.locator("summary").click()
        assert web.locator("details li").count() == 101  # the last says how many more
        late = rows.filter(has_text="team-1/late-0")
        assert (rows.filter(has_text="rejected").count(), late.count()) == (1, 1)
        assert late.locator(".times").text_content() == "× 3"


def test_those_rejected_with_the_same_words_are_one_row(browser: Browser, tmp_path: Path) -> None:
    node = small()
    for number in range(20):
        namespace = f"team-{number % 5}"
        node.refused(f"{namespace}/job-{number}", "OutOfpods", "Node has no room for pods")
    (tmp_path / "page.html").write_text(whole_page(page_of(node)), encoding="utf-8")
    with shown(browser, tmp_path / "page.html") as seen:
        row = seen.page.locator(".pod", has_text="OutOfpods")
        assert row.count() == 1
        assert row.locator(".times").text_content() == "× 20"
        row.locator("summary").click()
        assert row.locator("details li").first.text_content() == "team-0/job-0"


def test_the_panel_is_not_over_what_is_pointed_at(browser: Browser, folder: Path) -> None:
    with shown(browser, folder / "compared.html") as seen:
        panel = seen.page.locator(".panel")
        for cpu in ("0", "30"):
            for place in (0, 1):
                cell = seen.page.locator(f".cell[data-cpu='{cpu}']").nth(place)
                seen.page.evaluate("scrollTo(0, 0)")
                cell.hover()
                expect(panel).to_contain_text(f"CPU {cpu}")
                one, other = cell.bounding_box(), panel.bounding_box()
                assert one is not None
                assert other is not None
                below = other["y"] >= one["y"] + one["height"]
                assert below or other["y"] + other["height"] <= one["y"]
        seen.page.set_viewport_size({"width": 1200, "height": 520})
        cell = seen.page.locator(".cell[data-cpu='24']").first
        cell.evaluate("one => one.scrollIntoView({block: 'end'})")
        cell.hover()
        expect(seen.page.locator(".side")).to_have_class("side above")


def test_many_differences_leave_the_maps_in_sight(browser: Browser, tmp_path: Path) -> None:
    page = replace(compared(), changes=[f"difference {number}" for number in range(48)])
    (tmp_path / "page.html").write_text(whole_page(page), encoding="utf-8")
    with shown(browser, tmp_path / "page.html") as seen:
        expect(seen.page.locator(".changes li:visible")).to_have_count(8)
        box = seen.page.locator(".map").first.bounding_box()
        assert box is not None
        assert box["y"] < 600
        seen.page.locator(".changes summary", has_text="40 more").click()
        expect(seen.page.locator(".changes li:visible")).to_have_count(48)
