"""A real agent, a real kernel, and a pod with resources of its own: who runs where?"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinfold.core.values.cpuset import CPUSet
from tests.scenes.agent_process import (
    IDLE,
    AgentProcess,
    allowed,
    manifest,
    skip_unless_an_agent_can_run,
)
from tests.scenes.published_schemas import check_document

GATES = {"PodLevelResourceManagers": True}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AgentProcess]:
    skip_unless_an_agent_can_run()
    found = AgentProcess(tmp_path)
    found.config |= {
        "featureGates": GATES,
        "topologyManagerPolicy": "best-effort",
        "topologyManagerScope": "pod",
    }
    try:
        yield found
    finally:
        found.clean_up()


def whole(budget: int, *own: str) -> dict[str, Any]:
    """A pod of ``budget`` CPUs: containers with ``own`` ones, one that shares, and a sidecar."""
    names = [(f"own{number}", IDLE, cpus) for number, cpus in enumerate(own)]
    pod = manifest("whole", *names, ("shared", IDLE, ""), ("beside", IDLE, ""))
    containers = pod["spec"]["containers"]
    sidecar = containers.pop()
    pod["spec"]["initContainers"] = [{**sidecar, "restartPolicy": "Always"}]
    limits = {"cpu": str(budget), "memory": "256Mi"}
    pod["spec"]["resources"] = {"limits": limits, "requests": limits}
    return pod


def masks(node: AgentProcess) -> dict[str, CPUSet]:
    """Where the kernel lets each container run."""
    return {name: allowed(pid) for name, pid in node.pids("whole").items()}


def test_a_bubble_holds_on_the_running_kernel(node: AgentProcess) -> None:
    """Its containers are in it, nobody else is, also after its agent was killed."""
    online = sorted(os.sched_getaffinity(0))
    node.start()
    node.apply(manifest("web", ("main", IDLE, "")))
    budget = min(len(online) - 1, 3)
    own = ("1",) if budget > 1 else ()
    node.apply(whole(budget, *own))
    there = masks(node)
    bubble = CPUSet.union_of(there.values())
    assert len(bubble) == budget
    assert there["shared"] == there["beside"]
    assert len(there["shared"]) == budget - len(own)
    for name in there.keys() - {"shared", "beside"}:
        assert there[name].isdisjoint(there["shared"])
    outside = allowed(node.pids("web")["main"])
    assert outside.isdisjoint(bubble)
    pod = node.pod("whole")
    assert pod["bubble"]["cpus"] == str(bubble)
    assert pod["bubble"]["pool"] == str(there["shared"])
    audited = json.loads(node.run("audit", "-o", "json").stdout)["findings"]
    ours = {"cpuset-differs", "cgroup-missing", "record-broken", "shared-overlaps"}
    assert [one for one in audited if one["slug"] in ours] == []
    state = json.loads((node.state / "cpu_manager_state").read_text())
    assert list(state["podEntries"].values()) == [{"cpuSet": str(bubble)}]
    node.kill()
    node.start()
    assert masks(node) == there
    assert allowed(node.pids("web")["main"]) == outside
    node.run("delete", "pod/whole")
    assert CPUSet(online) - allowed(node.pids("web")["main"]) <= CPUSet([0])


def test_it_is_told_of_in_text_and_in_documents(node: AgentProcess) -> None:
    """``status``, ``explain`` and ``history`` of a running agent, by what the kernel says."""
    node.start()
    free = len(os.sched_getaffinity(0)) - 1
    budget = min(free, 3)
    own = ("1",) if budget > 1 else ()
    node.apply(whole(budget, *own))
    there = masks(node)
    bubble, pool = CPUSet.union_of(there.values()), there["shared"]
    cpus = f"{budget} CPU{'s' * (budget > 1)}"

    status = node.run("status").stdout
    assert f"✓ default/whole  bubble {bubble}, {cpus}" in status
    shares = [line.split() for line in status.splitlines() if "pod shared pool" in line]
    assert {line[0] for line in shares} == {"beside", "shared"}
    assert all(str(pool) in line for line in shares)
    told = json.loads(node.run("status", "-o", "json").stdout)
    check_document("status", told)

    explained = node.run("explain", "pod/whole").stdout
    assert f"As a whole  requests cpu {budget}, memory 256Mi\n  CPUs        {bubble}" in explained
    assert f"which of its pod's {budget} CPUs no other has for itself" in " ".join(
        explained.split()
    )
    told = json.loads(node.run("explain", "pod/whole", "-o", "json").stdout)
    check_document("explanation", told)
    assert (told["bubble"]["cpus"], told["bubble"]["pool"]) == (str(bubble), str(pool))
    owned = {one["name"]: one["cpus"] for one in told["containers"]}
    assert owned == dict.fromkeys(("beside", "shared")) | {
        name: str(mask) for name, mask in there.items() if name.startswith("own")
    }

    history = node.run("history", "pod/whole").stdout
    assert f"admitted  default/whole  bubble {bubble}, pod shared pool {pool}; " in history
    for name in ("beside", "shared"):
        assert f"{name}: shares in the bubble" in history
    told = json.loads(node.run("history", "pod/whole", "-o", "json").stdout)
    check_document("history", told)
    # Of one that is gone it can still be told.
    node.run("delete", "pod/whole")
    gone = node.run("explain", "pod/whole").stdout
    assert f"CPUs        {bubble}" in gone
    assert "released" in node.run("history", "pod/whole").stdout
