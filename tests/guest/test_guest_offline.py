"""A whole NUMA node goes offline under a real agent, and comes back."""

from __future__ import annotations

import os
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
from tests.scenes.two_nodes import cpus_of, node_ids
from tests.scenes.waiting import eventually

from pinfold.core.values.cpuset import CPUSet

EVERY = CPUSet(os.sched_getaffinity(0))


def switch(online: CPUSet) -> None:
    """Make these the CPUs that are online."""
    for cpu in EVERY:
        file = Path(f"/sys/devices/system/cpu/cpu{cpu}/online")
        wanted = "1" if cpu in online else "0"
        if file.exists() and file.read_text().strip() != wanted:
            file.write_text(wanted)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AgentProcess]:
    skip_unless_an_agent_can_run()
    if not os.environ.get("PINFOLD_TEST_HOTPLUG"):
        pytest.skip("takes CPUs offline: set PINFOLD_TEST_HOTPLUG=1 on a machine of your own")
    if len(node_ids()) < 2:
        pytest.skip("needs a second NUMA node (make guest has one)")
    found = AgentProcess(tmp_path)
    try:
        yield found
    finally:
        switch(EVERY)
        found.clean_up()


def run(node: AgentProcess, name: str, cpus: str = "") -> int:
    """A pod of one container; its process."""
    node.apply(manifest(name, ("main", IDLE, cpus)))
    return node.pids(name)["main"]


@pytest.mark.parametrize("policy", ["share", "freeze"])
def test_a_numa_node_goes_offline_and_comes_back(node: AgentProcess, policy: str) -> None:
    gone = cpus_of(1)
    near, far = EVERY - gone, gone
    node.config["pinfold"]["ownerOffline"] = policy
    node.start()
    web = run(node, "web")
    first = run(node, "first", str(len(near) - 2))
    assert allowed(first) <= near
    far_owner = run(node, "far", str(len(far)))
    own, firsts = allowed(far_owner), allowed(first)
    assert own == far
    place = "shared" if policy == "share" else "frozen"

    switch(EVERY - gone)
    eventually(lambda: node.pod("far")["containers"][0]["place"], place)
    assert node.client.post("/v1/reconcile")["drifts"] == []
    pool = CPUSet.parse(node.client.get("/v1/status")["pool"])
    assert pool.isdisjoint(firsts | gone)
    assert allowed(far_owner) == allowed(web) == pool
    assert allowed(first) == firsts

    # Started again at this moment, it knows the CPUs that are offline, and whose they are.
    node.kill()
    node.start()
    assert node.client.post("/v1/reconcile")["drifts"] == []
    assert node.pod("far")["containers"][0]["cpus"] == str(own)
    assert allowed(far_owner) == pool
    late = node.apply(manifest("late", ("main", IDLE, "2")))
    assert late["phase"] == "Rejected", "no CPU of the other node can be had"

    switch(EVERY)
    eventually(lambda: allowed(far_owner), own)
    eventually(lambda: node.pod("far")["containers"][0]["place"], "own")
    assert node.client.post("/v1/reconcile")["drifts"] == []
    assert allowed(first) == firsts
    assert str(node.client.get("/v1/status")["shared"]) == str(EVERY - own - firsts)
