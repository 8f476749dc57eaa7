"""The picture of a plan's page in the documents: ``python -m tests.scenes.plan_picture``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from playwright.sync_api import Browser

from tests.roots import ROOT
from tests.scenes.chromium import chromium, shown
from tests.scenes.page_pictures import FOLDER

NAME: Final = "plan-compared.png"
COMMAND: Final = (
    *("plan", "--machine", "2s8c2t", "--kubelet-config", "kubelet.yaml"),
    *("--compare", "kubelet-new.yaml", "pods", "-o", "html"),
)


def take(browser: Browser, folder: Path) -> None:
    """Write it: what another configuration changes, as the page begins."""
    with TemporaryDirectory() as made:
        file = Path(made) / "change.html"
        command = [sys.executable, "-m", "pinfold", *COMMAND]
        done = subprocess.run(command, cwd=ROOT / "examples", capture_output=True, check=True)
        file.write_bytes(done.stdout)
        with shown(browser, file, width=1140) as seen:
            seen.page.set_viewport_size({"width": 1140, "height": 700})
            seen.page.wait_for_selector(".cell")
            seen.page.screenshot(path=folder / NAME)


if __name__ == "__main__":
    with chromium() as browser:
        take(browser, FOLDER)
