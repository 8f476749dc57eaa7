"""The pictures of the page in the documents: ``python -m tests.scenes.page_pictures``."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import Browser

from tests.roots import ROOT
from tests.scenes.chromium import chromium
from tests.scenes.page_scenes import HOST, Node, example, zones
from tests.scenes.scripted_page import PageServer

FOLDER: Final = ROOT / "docs" / "pictures"
MOST: Final = 150_000
"""Bytes of a picture."""

WHY: Final = (
    "Container postgres  requests cpu 16, memory 16Gi",
    "  decided by  16 exclusive CPUs: Guaranteed pod",
    "              with a whole cpu request; from NUMA",
    "              nodes {0} (preferred under",
    "              single-numa-node)",
    "  CPUs        12-27",
    "    1. took 8 whole cores on NUMA node 0: 12-27",
    "",
    "  Guaranteed · kubelet 1.36 · topology manager single-numa-node",
)
NOW: Final = 1_790_000_000
"""Seconds since the epoch: a Monday in September 2026, at 14:13 UTC."""


def history() -> Iterator[Mapping[str, object]]:
    """What has happened on the node of the pictures, the newest first."""
    rng = random.Random(7)  # noqa: S311 - a picture
    at = float(NOW - 40)
    for number in range(60, 0, -1):
        kind = rng.choice(["admitted", "admitted", "ended", "released", "rejected"])
        yield {"number": number, "at": at, "kind": kind, "pod": f"default/job-{number}",
               "pod_uid": "", "document": None, "words": "main: shared pool"}  # fmt: skip
        at -= rng.expovariate(1 / 70)


def observed(node: Node) -> Mapping[str, object]:
    """What its CPUs do."""
    rng = random.Random(3)  # noqa: S311 - a picture
    owned = {owner.key for owner in node.owners}
    busy = {cpu: (0.55 if owned else 0.1) + 0.45 * rng.random() for cpu in node.cpus - node.free}
    idle = {str(cpu): 1 - busy.get(cpu, 0.35 * rng.random()) for cpu in node.cpus}
    used = [{"pod": "trading/order-db-0", "container": "postgres", "last": {"usage": 6.42}}]
    return {"idle": idle, "containers": used}


def take(browser: Browser, folder: Path) -> None:
    """Write both pictures."""
    with PageServer().running() as server:
        node = example()
        server.why = list(WHY)
        server.entries = list(history())
        server.tell("whole", node.scene(HOST, at=NOW, zones=zones()))
        picture(browser, server, node, folder / "page-light.png", "light")
        picture(browser, server, node, folder / "page-dark.png", "dark")


def picture(
    browser: Browser, server: PageServer, node: Node, file: Path, scheme: Literal["light", "dark"]
) -> None:
    """Write one: the node, and on a light page also who has some of its CPUs, and why."""
    context = browser.new_context(
        viewport={"width": 1140, "height": 650},
        color_scheme=scheme,
        reduced_motion="reduce",
        timezone_id="UTC",
    )
    page = context.new_page()
    page.clock.install(time=NOW)
    page.goto(server.url)
    page.wait_for_selector(".cell")
    server.tell("observed", observed=observed(node))
    page.clock.run_for(1000)
    page.locator(".use").first.wait_for()
    if scheme == "light":
        page.locator(".pod-head", has_text="order-db-0").click()
        page.locator(".why pre").wait_for()
    page.mouse.move(1, 1)
    page.clock.run_for(1000)
    page.screenshot(path=file)
    context.close()


if __name__ == "__main__":
    with chromium() as found:
        take(found, FOLDER)
