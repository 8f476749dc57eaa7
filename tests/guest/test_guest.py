"""The live tests in guests with two sockets, SMT, two NUMA nodes and huge pages.

``make guest``.  Here cgroup v2 and v1 are both at hand, and CPUs that the kernel isolates; the pods
that a small host has no CPUs for are really placed, and huge pages and memory come from one node or
the other.  The guests are started by the test bed beside the repository; without it, or without
root, these tests are skipped.  Emulated machines take an hour for them; ``ARGS="-k load"`` chooses
one.  What a guest prints is in ``build/guest-v1.log``, ``-v2``, ``-load`` or ``-isolated``
while it runs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import Final

import pytest
from tests.roots import ROOT
from tests.scenes.containerd_node import why_no_containerd

TESTBED: Final = ROOT.parent / "shared" / "testbed" / "vm.py"
SECONDS: Final = os.environ.get("PINFOLD_GUEST_SECONDS", "3600")
DIED: Final = 125
"""The guest's own failure: an emulated CPU now and then trips over the kernel's self-patching."""

_MOVING: Final = "tests/adapters/cgroup/test_cgroup_moving.py"
_ESCAPES: Final = "tests/adapters/cgroup/test_cgroup_escapes.py"
NEED_V1: Final = (
    "tests/adapters/cgroup/test_cgroup_idle.py::test_without_the_cpu_controller_there_is_none",
    "tests/adapters/cgroup/test_cgroup_live.py::test_a_kernel_with_nothing_but_cpusets_meets_the_contract",
    f"{_MOVING}::test_forking_processes_are_moved_and_ended_whatever_the_clock_says[cpuset_only",
    f"{_ESCAPES}::test_who_leaves_is_found_and_brought_back[cpuset_only",
    f"{_ESCAPES}::test_who_has_left_is_ended_with_its_container[cpuset_only",
)
MEMORY: Final = "tests/adapters/cgroup/test_cgroup_memory.py"
MOVES: Final = "tests/guest/test_guest_moves.py"
CONTAINERD: Final = "tests/guest/test_guest_containerd.py"
V2: Final = (
    "tests/adapters/cgroup/test_cgroup_live.py",
    "tests/adapters/cgroup/test_cgroup_idle.py",
    "tests/adapters/cgroup/test_cgroup_narrowing.py",
    "tests/adapters/cgroup/runtime/test_runtime_gates.py",
    _MOVING,
    _ESCAPES,
    *(f"'--deselect={test}'" for test in NEED_V1),
    "tests/agent/test_agent_live.py::test_an_exclusive_pod_beside_noisy_neighbours",
    "tests/agent/test_agent_live.py::test_containers_outlive_the_agent_and_are_adopted",
    "tests/agent/test_agent_live.py::test_foreign_writes_are_repaired_and_reported",
    "tests/agent/test_mixed_live.py",
    "tests/guest/test_guest_smt.py",
    "tests/guest/test_guest_domains.py",
    "tests/e2e/test_spec_pods.py",
    "tests/e2e/test_pod_facts.py",
    "tests/adapters/cgroup/test_cgroup_offline.py",
    MEMORY,
    MOVES,
    CONTAINERD,
    # Last: it changes the pools of huge pages.
    "tests/guest/test_guest_memory.py",
)
LOAD: Final = (
    "tests/adapters/guardian",
    "tests/e2e/test_suppression_live.py",
    "tests/e2e/test_lending.py",
    "tests/e2e/test_lending_sampled.py",
    "tests/e2e/test_load_driven_agent.py",
    "tests/guest/test_guest_lending.py",
    "tests/guest/test_guest_qos.py",
)
"""What is done by load, and by QoS class."""
V1: Final = (
    "tests/adapters/cgroup/test_cgroup_live.py",
    MEMORY,
    "tests/agent/test_mixed_live.py",
    MOVES,
    "tests/e2e/test_spec_pods.py::test_all_example_pods_of_the_cpu_manager_together",
    "tests/e2e/test_pod_facts.py",
    "tests/guest/test_guest_memory.py",
)
ISOLATED: Final = ("tests/guest/test_guest_isolated.py",)
BOOTED: Final = "isolcpus=4-7 nohz_full=4-7 rcu_nocbs=4-7"

FIRST_GROUP: Final = {"v2": "/sys/fs/cgroup/keep", "v1": "/sys/fs/cgroup/cpuset/keep"}


@pytest.mark.parametrize(
    ("name", "cgroup", "kernel", "tests", "booted"),
    # The shorter ones first.
    [
        pytest.param("isolated", "v2", "6.12", ISOLATED, BOOTED, id="isolated"),
        pytest.param("v1", "v1", "6.1", V1, "", id="v1"),
        pytest.param("load", "v2", "6.12", LOAD, "", id="load"),
        pytest.param("v2", "v2", "6.12", V2, "", id="v2"),
    ],
)
def test_the_live_tests_pass_in_the_guest(
    name: str, cgroup: str, kernel: str, tests: tuple[str, ...], booted: str
) -> None:
    if not TESTBED.exists():
        pytest.skip("the test bed is not beside the repository")
    if (reason := why_no_containerd()) is not None:
        pytest.skip(reason)
    if shutil.which("qemu-system-x86_64") is None:
        pytest.skip("not installed: qemu-system-x86")
    told = [sys.executable, str(TESTBED), "kernel", kernel]
    modules = subprocess.run(told, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
    command = (
        # A first group of one's own: kernel 6.1 was seen to panic under emulation without it.
        f"mkdir {FIRST_GROUP[cgroup]} && cd {ROOT} && "
        "PINFOLD_TEST_HOTPLUG=1 "  # its CPUs are nobody else's
        "PINFOLD_CRASH_POINTS=2 "  # each takes a while here
        f"PINFOLD_TEST_MODULES={modules} "
        f"PINFOLD_TEST_PATIENCE=12 PYTHONPATH={ROOT / 'src'} PYTHONDONTWRITEBYTECODE=1 "
        f"{sys.executable} -m pytest -vv --color=no --durations=15 -rs -p no:cacheprovider "
        + " ".join(tests)
    )
    log = ROOT / "build" / f"guest-{name}.log"
    log.parent.mkdir(exist_ok=True)
    for _ in range(3):
        with log.open("w") as out:
            done = subprocess.run(
                [
                    *(sys.executable, str(TESTBED), "run", "-v", "--timeout", SECONDS),
                    *("--cpus", "2s4c2t", "--numa", "2", "--mem", "3600", "--hugepages", "600"),
                    *("--cgroup", cgroup, "--kernel", kernel, f"--append={booted}", "--", command),
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if done.returncode != DIED:
            break
    said = log.read_text(errors="replace")
    assert done.returncode == 0, f"{log}: status {done.returncode}\n{said[-9000:]}"
    assert re.search(r"\d+ skipped", said) is None, f"{log}\n{said[-3000:]}"
