"""``-o html`` in a real browser, opened from a file as a reader has it before him."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from tests.roots import ROOT
from tests.scenes.chromium import needs_chromium, shown
from tests.scenes.page_pictures import FOLDER, MOST
from tests.scenes.plan_picture import NAME, take

pytestmark = needs_chromium

EXAMPLES: Final = ROOT / "examples"
NODE: Final = ("--kubelet-config", "kubelet.yaml", "pods")
PAGES: Final = {
    "plan": ("--machine", "2s8c2t", *NODE),
    "compare": ("--machine", "2s8c2t", *NODE, "--compare", "kubelet-new.yaml"),
    "kubelets": (
        *("--machine", "2s8c2t", *NODE),
        *("--kubelet-version", "1.34", "--compare-kubelet-version", "1.36"),
    ),
    "large": ("--machine", "2s4n128c2t", *NODE),
    "devices": (
        *("--machine", "gpu-node/machine.json", "--devices", "gpu-node/devices.yaml"),
        *("--kubelet-config", "gpu-node/kubelet.yaml", "gpu-node/pods.yaml"),
    ),
    "nodes": ("--node", "n1=2s4c2t", "--node", "n2=2s8c2t", *NODE),
    "empty": ("--machine", "1s1c1t", "pods/03-web.yaml"),
}
CPU: Final = re.compile(r"^CPU \d+")
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as the command line prints them, by their names."""
    folder = tmp_path_factory.mktemp("plans")
    for name, arguments in PAGES.items():
        done = subprocess.run(
            [sys.executable, "-m", "pinfold", "plan", *arguments, "-o", "html"],
            cwd=EXAMPLES,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        (folder / f"{name}.html").write_bytes(done.stdout)
    return folder


@pytest.mark.parametrize("width", [400, 1200, 3840])
@pytest.mark.parametrize("name", PAGES)
def test_it_is_drawn_and_asks_for_nothing(
    browser: Browser, folder: Path, name: str, width: int
) -> None:
    file = folder / f"{name}.html"
    with shown(browser, file, width=width) as seen:
        assert seen.told == []
        assert seen.asked == [file.as_uri()]
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        assert seen.page.locator("h1").count() == 1
        assert cells(seen.page) > 0


def cells(page: Page) -> int:
    return page.get_by_label(CPU).count()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", PAGES)
def test_everybody_can_read_it(
    browser: Browser, folder: Path, name: str, scheme: Literal["light", "dark"]
) -> None:
    with shown(browser, folder / f"{name}.html", scheme=scheme) as seen:
        found = Axe().run(seen.page)
        assert found.violations_count == 0, found.generate_report()


def test_a_plan_tells_why(browser: Browser, folder: Path) -> None:
    with shown(browser, folder / "plan.html") as seen:
        page = seen.page
        assert page.locator("h1").inner_text() == "2s8c2t"
        assert cells(page) == 32
        page.get_by_label("CPU 2,").first.click()
        page.get_by_text("took 2 whole cores on NUMA node 0: 2-5").wait_for(timeout=2000)
        page.keyboard.press("Escape")
        page.get_by_text("matching-engine").first.click()
        page.get_by_text("What would admit it").first.wait_for(timeout=2000)


def test_a_comparison_shows_both_and_what_changes(browser: Browser, folder: Path) -> None:
    with shown(browser, folder / "compare.html") as seen:
        page = seen.page
        assert cells(page) == 64
        told = page.locator(".changes li").all_inner_texts()
        assert told[0] == "2 pods changed, 6 unchanged"
        assert "trading/risk-model: model  [c] 16-25 → model  [c] 20-29" in [
            " ".join(line.split()).replace("model [c]", "model  [c]") for line in told
        ]
        cut = """() => [...document.querySelectorAll('.title > span')]
            .filter(one => one.scrollWidth > one.clientWidth).map(one => one.textContent)"""
        assert page.locator(".title > span").count() >= 16
        assert page.evaluate(cut) == []  # a part of a title is there, or is not
        for name in ("kubelet.yaml", "kubelet-new.yaml"):
            assert page.get_by_role("heading", name=name, exact=True).count() == 1


def test_nodes_are_not_compared(browser: Browser, folder: Path) -> None:
    with shown(browser, folder / "nodes.html") as seen:
        assert seen.page.locator(".changes").count() == 0
        seen.page.get_by_text("Pods and their nodes").click()
        assert "trading/feed-handler" in seen.page.locator("details pre").last.inner_text()


def test_the_picture_of_the_documents_can_be_taken_again(browser: Browser, tmp_path: Path) -> None:
    take(browser, tmp_path)
    assert (tmp_path / NAME).stat().st_size > 20_000
    assert (FOLDER / NAME).stat().st_size < MOST
