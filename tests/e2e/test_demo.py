"""What ``make run`` ends with: a demonstration in whole sentences, of which nothing stays."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

from tests.roots import ROOT
from tests.scenes.agent_process import (
    skip_unless_an_agent_can_run,
)
from tests.scenes.waiting import PATIENCE

SCRIPT = ROOT / "examples" / "demo.sh"
PINFOLD = Path(sysconfig.get_path("scripts")) / "pinfold"


def test_the_demonstration(tmp_path: Path) -> None:
    skip_unless_an_agent_can_run()
    done = subprocess.run(
        ["/bin/sh", str(SCRIPT)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120 * PATIENCE,
        env={**os.environ, "PINFOLD": str(PINFOLD), "TMPDIR": str(tmp_path), "COLUMNS": "80"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "pod/quiet-owner admitted: main " in done.stdout
    *_, audit, seen, last = done.stdout.rstrip().split("\n\n")
    # A cross does not come as a surprise, and no sentence breaks off.
    assert "a cross is what is to be expected" in done.stdout
    assert seen.startswith("== That was all ==\nYou have seen ")
    assert last.endswith("Go on with docs/tutorial.md.")
    assert not audit.endswith(",")
    assert "  fix  " not in audit
    assert list(tmp_path.iterdir()) == []
