"""Huge pages of the running kernel, added and taken away beside a running agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.adapters.hugetlb import HugePagePools
from pinfold.core.values.quantity import Quantity
from tests.scenes.agent_process import (
    IDLE,
    AgentProcess,
    manifest,
    skip_unless_an_agent_can_run,
)
from tests.scenes.hugepages_scene import SMALL, more_pages
from tests.scenes.waiting import eventually

HUGE = "hugepages-2Mi"
MIB = 1 << 20


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    skip_unless_an_agent_can_run()
    made = AgentProcess(
        tmp_path,
        memoryManagerPolicy="Static",
        kubeReserved={"memory": "28Mi"},
        evictionHard={"memory.available": "100Mi"},
        reservedMemory=[{"numaNode": 0, "limits": {"memory": "128Mi"}}],
    )
    try:
        yield made
    finally:
        made.clean_up()


def total(pools: HugePagePools) -> int:
    return sum(pool.kept for pool in pools.of_size(SMALL).values()) * 2 * MIB


def test_the_agent_follows(agent: AgentProcess, tmp_path_factory: pytest.TempPathFactory) -> None:
    agent.start()

    def told(kind: str) -> int:
        return Quantity.parse(agent.client.get("/v1/node")[kind][HUGE]).value()

    before, size = told("capacity"), 4 * MIB
    pod = manifest("huge", ("c", IDLE, "1"))
    limits = pod["spec"]["containers"][0]["resources"]
    with more_pages(tmp_path_factory, 6) as pools:
        # Who applies a pod right after he made pages for it gets them.
        limits["limits"] = limits["requests"] = {"cpu": "1", "memory": "8Mi", HUGE: f"{size}"}
        assert agent.apply(pod)["reason"] is None
        assert told("capacity") == told("allocatable") == total(pools)
        zone = agent.client.get("/v1/node")["zones"][0]["resources"][HUGE]
        assert Quantity.parse(zone["available"]).value() == total(pools) - size
        # The record of the memory is read, and the kernel agrees.
        agent.pids("huge")
        findings = json.loads(agent.run("audit", "-o", "json").stdout)["findings"]
        assert not {"mems-differ", "record-broken"} & {found["slug"] for found in findings}
        machine = agent.client.get("/v1/machine")
        assert machine["hugepages_machine"][str(SMALL)]["total"] == total(pools) // SMALL
    eventually(lambda: told("capacity"), before)
    if before < size:
        # The pages that the pod was given are gone; it says so, and nobody else gets any.
        problem = agent.client.get("/v1/status")["agent"]["hugepages"]["problem"]
        assert "pod default/huge, container c: 4Mi of hugepages-2Mi on NUMA node" in problem
        assert problem in " ".join(agent.run("status").stdout.split())
        other = manifest("other", ("c", IDLE, "1"))
        other["spec"]["containers"][0]["resources"] = limits
        assert agent.apply(other)["reason"] is not None
    agent.client.delete("/v1/pods/default/huge")
    eventually(lambda: "hugepages" in agent.client.get("/v1/status")["agent"], expected=False)
