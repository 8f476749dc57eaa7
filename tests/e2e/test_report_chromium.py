"""The report of a simulation in a real browser, as a reader has it before him."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from pinfold.cli.report_files import write_pictures, write_report
from pinfold.documents.simulation.results import Simulation
from pinfold.views.report.view import report_view
from tests.roots import ROOT
from tests.scenes.chromium import needs_chromium, shown
from tests.scenes.simulation_results import (
    HOSTILE_NAMES,
    LONG_NAMES,
    empty,
    interrupted,
    simulation,
    without_pods,
)

pytestmark = needs_chromium

PINFOLD = (sys.executable, "-m", "pinfold")

TWENTY = tuple(f"{LONG_NAMES[place % len(LONG_NAMES)]} {place}" for place in range(20))
KINDS = {
    "three configurations": simulation(seeds=3, warm_up=86400.0),
    "one": simulation(("static",), needed=False),
    "twenty": simulation(TWENTY, seeds=10),
    "hostile": simulation(HOSTILE_NAMES),
    "interrupted": interrupted(),
    "empty": empty(),
    "without pods": without_pods(),
}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def test_what_the_command_writes_is_such_a_page(browser: Browser, tmp_path: Path) -> None:
    """An experiment of the examples, for some hours, from the command line to the reader."""
    example = (ROOT / "examples" / "simulation" / "small.yaml").read_text(encoding="utf-8")
    assert "after: 4d" in example
    file = tmp_path / "experiment.yaml"
    file.write_text(example.replace("after: 4d", "after: 14h"), encoding="utf-8")
    report, pictures = tmp_path / "report.html", tmp_path / "pictures"
    done = subprocess.run(
        [*PINFOLD, "simulate", file, "--report", report, "--svg", pictures],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with shown(browser, report) as seen:
        assert seen.told == []
        assert seen.page.locator("h1").inner_text() == "a small fleet"
        assert seen.page.locator("#answer li").count() == 3
        plots = seen.page.locator("figure").evaluate_all("all => all.map(one => one.id)")
    assert {path.stem for path in pictures.glob("*.svg")} == {
        plot.removeprefix("plot-") for plot in plots
    }
    assert {"plot-rejected-by-reason", "plot-time-running-pods", "plot-cpus"} <= set(plots)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reports of all kinds, by their names."""
    folder = tmp_path_factory.mktemp("reports")
    for name, results in KINDS.items():
        write_report(results, folder / f"{name}.html")
    return folder


@pytest.mark.parametrize("name", KINDS)
def test_a_page_says_nothing_to_the_console_and_asks_for_nothing(
    browser: Browser, folder: Path, name: str
) -> None:
    file = folder / f"{name}.html"
    with shown(browser, file) as seen:
        assert seen.told == []
        assert seen.asked == [file.as_uri()]
        assert seen.page.evaluate("document.scripts.length") == 0
        ids = seen.page.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
        assert sorted(ids) == sorted(set(ids))
        for link in seen.page.locator("nav a").all():
            assert (link.get_attribute("href") or "").removeprefix("#") in ids


@pytest.mark.parametrize("width", [400, 1200, 2000])
@pytest.mark.parametrize("name", KINDS)
def test_every_plot_is_there_once_and_nothing_is_cut_off(
    browser: Browser, folder: Path, name: str, width: int
) -> None:
    wanted = [figure.name for figure in report_view(KINDS[name]).figures()]
    with shown(browser, folder / f"{name}.html", width=width) as seen:
        plots = seen.page.evaluate(
            """() => [...document.querySelectorAll('figure')].map(figure => {
                const all = [...figure.querySelectorAll('svg')]
                const seen = all.filter(svg => svg.checkVisibility())
                const box = seen[0]?.getBoundingClientRect()
                const marks = seen[0]?.querySelectorAll('path, line, rect').length
                const spoken = seen[0]?.querySelector('title').textContent
                return {name: figure.id, seen: seen.length, width: box?.width, right: box?.right,
                        height: box?.height, marks, spoken,
                        heading: figure.querySelector('h3').textContent}
            })"""
        )
        assert [plot["name"] for plot in plots] == [f"plot-{name}" for name in wanted]
        for plot in plots:
            assert plot["seen"] == 1, plot
            assert plot["width"] > 250
            assert plot["height"] > 60
            assert plot["right"] <= width
            assert plot["marks"] > 3
            assert plot["spoken"] == plot["heading"]
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", ["three configurations", "twenty"])
def test_texts_of_plots_stay_inside_and_can_be_read(
    browser: Browser, folder: Path, name: str
) -> None:
    """At least 9 pixels high in each width that a page may have, and nothing runs out of it."""
    for width in (360, 400, 600, 900, 1200, 1600):
        with shown(browser, folder / f"{name}.html", width=width) as seen:
            outside = seen.page.evaluate(
                """() => [...document.querySelectorAll('figure svg')]
                .filter(svg => svg.checkVisibility())
                .flatMap(svg => {
                    const box = svg.getBoundingClientRect()
                    return [...svg.querySelectorAll('text')].filter(text => {
                        const mine = text.getBoundingClientRect()
                        const size = parseFloat(text.getAttribute('font-size'))
                            * box.width / svg.viewBox.baseVal.width
                        return mine.right > box.right + 1 || mine.left < box.left - 1 || size < 9
                    }).map(text => text.textContent)
                })"""
            )
            assert outside == [], width


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_scheme_reaches_the_page_and_its_plots(
    browser: Browser, folder: Path, scheme: Literal["light", "dark"]
) -> None:
    with shown(browser, folder / "three configurations.html", scheme=scheme) as seen:
        found = seen.page.evaluate(
            """() => {
                const bar = document.querySelector('figure .wide path[style*="series-1"]')
                return [getComputedStyle(document.documentElement).backgroundColor,
                        getComputedStyle(bar).fill]
            }"""
        )
        assert (
            found
            == {
                "light": ["rgb(255, 255, 255)", "rgb(47, 88, 188)"],
                "dark": ["rgb(15, 20, 26)", "rgb(38, 164, 255)"],
            }[scheme]
        )


def test_paper_is_white_whatever_the_screen_is(browser: Browser, folder: Path) -> None:
    with shown(browser, folder / "three configurations.html", scheme="dark") as seen:
        seen.page.emulate_media(media="print")
        ink, back = seen.page.evaluate(
            """() => [getComputedStyle(document.body).color,
                      getComputedStyle(document.documentElement).backgroundColor]"""
        )
        assert (ink, back) == ("rgb(28, 36, 48)", "rgb(255, 255, 255)")
        assert seen.page.pdf()[:5] == b"%PDF-"


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", KINDS)
def test_nobody_is_kept_out(
    browser: Browser, folder: Path, name: str, scheme: Literal["light", "dark"]
) -> None:
    """All rules of axe, best practices too: contrast, names, landmarks, headings, tables."""
    with shown(browser, folder / f"{name}.html", scheme=scheme) as seen:
        seen.page.evaluate("document.querySelectorAll('details').forEach(it => it.open = true)")
        found = Axe().run(seen.page)
        assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_picture_stands_alone_in_both_schemes(
    browser: Browser, tmp_path: Path, scheme: Literal["light", "dark"]
) -> None:
    results: Simulation = KINDS["three configurations"]
    write_pictures(results, tmp_path)
    files = sorted(tmp_path.glob("*.svg"))
    assert {file.stem for file in files} == {fig.name for fig in report_view(results).figures()}
    for file in files:
        with shown(browser, file, scheme=scheme) as seen:
            assert seen.told == []
            assert seen.asked == [file.as_uri()]
            back = seen.page.evaluate("getComputedStyle(document.querySelector('rect')).fill")
            assert back == {"light": "rgb(255, 255, 255)", "dark": "rgb(15, 20, 26)"}[scheme]
