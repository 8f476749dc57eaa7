"""A real agent on a machine with SMT: who is alone on its cores has idle siblings, for good."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.scenes.agent_process import (
    IDLE,
    AgentProcess,
    allowed,
    manifest,
    skip_unless_an_agent_can_run,
)
from tests.scenes.waiting import eventually

from pinfold.adapters.machines.discovery import read_live
from pinfold.core.values.cpuset import CPUSet

CORES = read_live().cores
NEEDS = "needs four cores with several threads (make guest has them)"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AgentProcess]:
    skip_unless_an_agent_can_run()
    if sum(len(core) > 1 for core in CORES) < 4:
        pytest.skip(NEEDS)
    found = AgentProcess(tmp_path)
    try:
        yield found
    finally:
        found.clean_up()


def run(node: AgentProcess, name: str, cpus: str = "", said: str = "") -> CPUSet:
    """A pod of one container; the CPUs that the kernel lets its process run on."""
    pod = manifest(name, ("main", IDLE, cpus))
    if said:
        pod["metadata"]["annotations"] = {"smt-isolate.pinfold.dev/pod": said}
    node.apply(pod)
    return allowed(node.pids(name)["main"])


def siblings(cpus: CPUSet) -> CPUSet:
    """The other threads of the cores of some CPUs, as the kernel has them."""
    return CPUSet.union_of(core for core in CORES if core & cpus) - cpus


def test_siblings_are_idle_until_their_container_ends(node: AgentProcess) -> None:
    node.start()
    everybody = run(node, "web")
    alone = run(node, "alone", "2", "true")
    idle = siblings(alone)
    assert (len(alone), len(idle)) == (2, 2)
    eventually(lambda: allowed(node.pids("web")["main"]), everybody - alone - idle)
    plain = run(node, "plain", "2")
    assert plain.isdisjoint(alone | idle)
    told = node.pod("alone")
    assert told["containers"][0]["idle"] == str(idle)
    # Nobody has fallen asleep on the siblings, and the audit finds nothing of it.
    report = node.run("audit", "-o", "json")
    assert "cpuset-differs" not in report.stdout
    node.kill()
    node.start()
    assert allowed(node.pids("alone")["main"]) == alone
    assert allowed(node.pids("web")["main"]).isdisjoint(alone | idle | plain)
    node.run("delete", "pod/alone")
    eventually(lambda: allowed(node.pids("web")["main"]), everybody - plain)


def test_for_the_node(node: AgentProcess) -> None:
    node.config["pinfold"] |= {"smtIsolate": {"use": True}}
    node.start()
    alone, plain = run(node, "alone", "2"), run(node, "plain", "2", "false")
    assert len(siblings(alone)) == 2
    assert plain.isdisjoint(alone | siblings(alone))
    allocatable = node.client.get("/v1/node")["allocatable"]["cpu"]
    assert int(allocatable) < len(CORES)
