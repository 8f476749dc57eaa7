"""A short trial: faults by chance, which a longer one has more of (``make trial``)."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

from tests.roots import ROOT
from tests.scenes.agent_process import (
    skip_unless_an_agent_can_run,
)
from tests.scenes.waiting import PATIENCE

SECONDS: Final = os.environ.get("PINFOLD_TEST_TRIAL_SECONDS", "60")
SEED: Final = os.environ.get("PINFOLD_TEST_TRIAL_SEED", "20")


def test_a_short_trial() -> None:
    skip_unless_an_agent_can_run()
    done = subprocess.run(
        [sys.executable, "-m", "trial", "--seconds", SECONDS, "--seed", SEED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=(float(SECONDS) + 200) * max(PATIENCE, 1),
    )
    print(done.stdout)  # noqa: T201 - the table is the result
    assert done.returncode == 0, done.stdout + done.stderr
