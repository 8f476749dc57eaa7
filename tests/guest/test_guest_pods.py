"""The specification's pods in guests with two sockets, SMT and two NUMA nodes, with containerd.

``make guest``.  Here the pods that a small host has no CPUs for are really placed.  cgroup v2, and
one boot with cgroup v1.  An emulated machine takes half an hour for them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from tests.containerd_node import why_no_containerd
from tests.guest.test_guest import DIED, ROOT, TESTBED

V2 = (
    "tests/e2e/test_spec_pods.py",
    "tests/e2e/test_pod_facts.py",
)
V1 = (
    "tests/e2e/test_spec_pods.py::test_all_example_pods_of_the_cpu_manager_together",
    "tests/e2e/test_pod_facts.py",
)
SECONDS = os.environ.get("PINFOLD_GUEST_SECONDS", "2400")


@pytest.mark.parametrize(
    ("cgroup", "kernel", "tests"),
    [pytest.param("v2", "6.12", V2, id="v2"), pytest.param("v1", "6.1", V1, id="v1")],
)
def test_pods_in_the_guest(cgroup: str, kernel: str, tests: tuple[str, ...]) -> None:
    if not TESTBED.exists():
        pytest.skip("the test bed is not beside the repository")
    if (reason := why_no_containerd()) is not None:
        pytest.skip(reason)
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("not installed: qemu-system-x86")
    subprocess.run([sys.executable, str(TESTBED), "kernel", kernel], check=True)
    command = (
        # A first group of one's own: kernel 6.1 was seen to panic under emulation without it.
        f"mkdir -p /sys/fs/cgroup/keep /sys/fs/cgroup/cpuset/keep 2>/dev/null; cd {ROOT} && "
        f"PINFOLD_TEST_PATIENCE=12 PYTHONPATH={ROOT / 'src'} PYTHONDONTWRITEBYTECODE=1 "
        f"{sys.executable} -m pytest -v --durations=15 -rs -p no:cacheprovider " + " ".join(tests)
    )
    for _ in range(3):
        done = subprocess.run(
            [
                *(sys.executable, str(TESTBED), "run", "-v", "--timeout", SECONDS),
                *("--cpus", "2s4c2t", "--numa", "2", "--mem", "3600", "--hugepages", "600"),
                *("--cgroup", cgroup),
                *("--kernel", kernel, "--", command),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != DIED:
            break
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert " skipped" not in done.stdout
