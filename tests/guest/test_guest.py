"""The same live tests in a guest with two sockets, SMT, two NUMA nodes and cgroup v2.

``make guest``.  The guest is started by the test bed beside the repository; without it, or
without root, these tests are skipped.  An emulated machine takes some ten minutes for them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TESTBED = ROOT.parent / "shared" / "testbed" / "vm.py"
KERNEL = os.environ.get("PINFOLD_GUEST_KERNEL", "6.1")
PACKAGES = ("busybox-static", "qemu-system-x86")
DIED = 125
"""The guest's own failure: an emulated CPU now and then trips over the kernel's self-patching."""

TESTS = (
    "tests/test_cgroup_live.py",
    "tests/test_agent_live.py::test_an_exclusive_pod_beside_noisy_neighbours",
    "tests/test_agent_live.py::test_containers_outlive_the_agent_and_are_adopted",
    "tests/test_agent_live.py::test_foreign_writes_are_repaired_and_reported",
)


def test_the_live_tests_pass_in_the_guest() -> None:
    if not TESTBED.exists():
        pytest.skip("the test bed is not beside the repository")
    if os.geteuid() != 0:
        pytest.skip("needs root")
    _install()
    command = (
        f"cd {ROOT} && PINFOLD_TEST_PATIENCE=10 PYTHONPATH={ROOT / 'src'} "
        f"PYTHONDONTWRITEBYTECODE=1 {sys.executable} -m pytest -p no:cacheprovider "
        + " ".join(TESTS)
    )
    for _ in range(3):
        done = subprocess.run(
            [
                *(sys.executable, str(TESTBED), "run", "-v", "--timeout", "900"),
                *("--cpus", "2s4c2t", "--numa", "2", "--kernel", KERNEL, "--", command),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != DIED:
            break
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert " skipped" not in done.stdout


def _install() -> None:
    """What the guest needs of the system's packages."""
    if shutil.which("qemu-system-x86_64") is None or not Path("/bin/busybox").exists():
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run(["apt-get", "install", "-y", "-qq", *PACKAGES], check=True)
    subprocess.run([sys.executable, str(TESTBED), "kernel", KERNEL], check=True)
