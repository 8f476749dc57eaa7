"""Moves of containers that run, in a guest with two NUMA nodes.

Memory goes along where it is asked to, and a trial of the agent from outside while owners are
resized and rebalanced without pause.  ``make guest`` runs both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from tests.roots import ROOT
from tests.scenes.agent_process import (
    AgentProcess,
    allowed,
    manifest,
    skip_unless_an_agent_can_run,
)
from tests.scenes.two_nodes import (
    anonymous_by_node,
    cpus_of,
    free_memory_of,
    node_ids,
)
from tests.scenes.waiting import wait_until

from pinfold.core.values.cpuset import CPUSet

PAGE: Final = 4096
SIZE: Final = 64 << 20
SLACK: Final = 6 << 20

TRIAL_SECONDS: Final = os.environ.get("PINFOLD_GUEST_TRIAL_SECONDS", "120")
TRIAL_FAULTS: Final = os.environ.get("PINFOLD_GUEST_TRIAL_FAULTS", "--rebalance")
TRIAL_PATIENCE: Final = "5"
"""An emulated machine is slower, but not by more than that once the agent's modules are loaded."""

HOLDER: Final = """
import mmap, os, sys, time
memory = mmap.mmap(-1, int(sys.argv[2]), flags=0x22)
memory[::4096] = b"x" * (len(memory) // 4096)
open(sys.argv[1], "w").close()
time.sleep(100000)
"""

FILLER: Final = """
import ctypes, mmap, sys, time
nodes, size = ctypes.c_ulong(int(sys.argv[1])), int(sys.argv[2])
bound = ctypes.CDLL(None).syscall(238, 2, ctypes.byref(nodes), 64)  # set_mempolicy: MPOL_BIND
memory = mmap.mmap(-1, size, flags=0x22)
memory[::4096] = b"x" * (size // 4096)
print(bound, flush=True)
time.sleep(100000)
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AgentProcess]:
    skip_unless_an_agent_can_run()
    if len(node_ids()) < 2:
        pytest.skip("needs a second NUMA node (make guest has one)")
    agent = AgentProcess(tmp_path)
    agent.program = ("-m", "tests.scenes.moving_agent")
    try:
        agent.start()
        yield agent
    finally:
        agent.clean_up()


def holder(node: AgentProcess, name: str, size: int, cpus: str = "1") -> int:
    """A pod that has so much memory in its hands; its pid."""
    ready = node.folder / f"{name}.ready"
    command = (sys.executable, "-I", "-S", "-c", HOLDER, str(ready), str(size))
    pod = manifest(name, ("main", command, cpus))
    pod["metadata"]["uid"] = f"{name}-uid"
    (container,) = pod["spec"]["containers"]
    for amounts in container["resources"].values():
        amounts["memory"] = "256Mi"
    node.apply(pod)
    wait_until(ready.exists, 60)
    return node.pids(name)["main"]


def move(node: AgentProcess, name: str, cpu: int, mems: CPUSet, *, migrate: bool) -> str:
    """Move a pod to a CPU, and its memory to NUMA nodes; why it was undone."""
    asked = {"uid": f"{name}-uid", "cpus": str(cpu), "mems": str(mems), "migrate": migrate}
    asked["mems_before"] = str(CPUSet(node_ids()))
    new, told = node.folder / "move.new", node.folder / "moved.json"
    new.write_text(json.dumps(asked))
    new.rename(node.folder / "move.json")
    wait_until(told.exists, 120)
    problem: str = json.loads(told.read_text())["problem"]
    told.unlink()
    return problem


def steps(node: AgentProcess, kind: str) -> list[dict[str, Any]]:
    """The steps of the plan that was the last to end so, as the history has it."""
    entries = [e for e in node.client.get("/v1/history")["entries"] if e["kind"] == kind]
    found: list[dict[str, Any]] = entries[0]["document"]["steps"]
    return found


@contextmanager
def filled(home: int) -> Iterator[None]:
    """Somebody else has nearly all memory of a NUMA node."""
    size = free_memory_of(home) - (24 << 20)
    command = [sys.executable, "-I", "-S", "-c", FILLER, str(1 << home), str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as filler:
        assert filler.stdout is not None
        try:
            assert filler.stdout.readline() == b"0\n"
            yield
        finally:
            filler.kill()


def on(pid: int, home: int) -> int:
    return anonymous_by_node(pid).get(home, 0) * PAGE


def test_memory_goes_along_when_it_is_asked_to(node: AgentProcess) -> None:
    """And stays when it is not, or when there is no room for it."""
    pid = holder(node, "owner", SIZE)
    (cpu,) = allowed(pid)
    old = next(one for one in node_ids() if cpu in cpus_of(one))
    new = next(one for one in node_ids() if one != old)
    far, farther = sorted(cpus_of(new))[-2:]
    assert on(pid, old) >= SIZE

    assert move(node, "owner", far, CPUSet(node_ids()), migrate=False) == ""
    assert allowed(pid) == CPUSet([far])
    assert on(pid, old) >= SIZE, "it was not asked for"

    with filled(new):
        problem = move(node, "owner", farther, CPUSet([new]), migrate=True)
        assert f"MiB of memory would go to NUMA node {new}" in problem
        assert allowed(pid) == CPUSet([far])
        assert on(pid, old) >= SIZE
    wait_until(lambda: free_memory_of(new) > 2 * SIZE)

    assert move(node, "owner", farther, CPUSet([new]), migrate=True) == ""
    assert allowed(pid) == CPUSet([farther])
    assert on(pid, new) >= SIZE
    assert on(pid, old) < SLACK
    (told,) = [s["memory"] for s in steps(node, "moved") if s["kind"] == "migrate-memory"]
    assert told["moved"] >= SIZE
    assert told["stayed"] < SLACK
    assert {one["node"] for one in told["nodes"]} >= {old, new}


def test_a_trial_of_moves() -> None:
    skip_unless_an_agent_can_run()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "trial", "--seconds", TRIAL_SECONDS, "--seed", "12"),
            *TRIAL_FAULTS.split(),
        ],
        cwd=ROOT,
        env={**os.environ, "TRIAL_PATIENCE": TRIAL_PATIENCE},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout)  # noqa: T201 - the table is the result
    assert done.returncode == 0, done.stdout
