"""An agent that gives a pod its part of the caches, against the tests' own resctrl."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinfold.adapters.machines.online import online_cpus
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.agent_process import (
    IDLE,
    AgentProcess,
    manifest,
    skip_unless_an_agent_can_run,
)
from tests.scenes.fuse_folder import why_no_fuse
from tests.scenes.resctrl_kernel import Resource
from tests.scenes.resctrl_world import ResctrlWorld, resctrl_world
from tests.scenes.waiting import wait_until


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ResctrlWorld]:
    if why := why_no_fuse():
        pytest.skip(why)
    with resctrl_world(tmp_path, Resource("L3", 0xFFF), domains={0: online_cpus()}) as found:
        yield found


@pytest.fixture
def node(world: ResctrlWorld, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    skip_unless_an_agent_can_run()
    agent = AgentProcess(tmp_path_factory.mktemp("agent"))
    agent.program = ("-m", "tests.scenes.resctrl_agent")
    agent.environment = {"RESCTRL": str(world.folder), "RESCTRL_SYSFS": str(world.sysfs)}
    agent.config["pinfold"]["cache"] = {"use": True, "classes": {"fast": {"l3": "25%"}}}
    agent.config["cpuManagerReconcilePeriod"] = "1s"
    try:
        yield agent
    finally:
        agent.clean_up()


def asking(name: str, said: str = "fast") -> dict[str, Any]:
    pod = manifest(name, ("main", IDLE, "1"))
    pod["metadata"]["annotations"] = {"cache-class.pinfold.dev/pod": said}
    return pod


def groups(world: ResctrlWorld) -> dict[str, tuple[CPUSet, int]]:
    return {
        name: (group.cpus, group.values["L3"][0]) for name, group in world.kernel.groups.items()
    }


def test_a_pod_has_its_part_as_long_as_it_runs(node: AgentProcess, world: ResctrlWorld) -> None:
    everything = groups(world)
    node.start()
    node.apply(asking("db"))
    wait_until(lambda: len(world.kernel.groups) == 2)
    status = wait_until(
        lambda: (
            node.client.get("/v1/status")["agent"]["cache"]["groups"]
            and (node.client.get("/v1/status"))
        )
    )
    (pod,) = status["pods"]
    (given,) = status["agent"]["cache"]["groups"]
    own = CPUSet.parse(pod["containers"][0]["cpus"])
    assert groups(world)[given["name"]] == (own, 0x007)
    assert groups(world)[""] == (world.kernel.online - own, 0xFF8)
    assert (given["schemata"], given["containers"]) == ("L3:0=7", [f"{pod['uid']}/main"])
    assert "default/db main has L3:0=7" in node.run("status", "--no-color").stdout
    assert 'pinfold_cache_refused{reason="OutOfCacheWays"} 0.0' in node.client.get("/metrics")
    (entry,) = [e for e in node.client.get("/v1/history")["entries"] if e["kind"] == "cache"]
    assert entry["pod"] == "default/db"

    # Killed, its containers run on with what they have; what somebody breaks is made right.
    during = groups(world)
    node.kill()
    assert groups(world) == during
    world.kernel.groups[given["name"]].cpus = CPUSet()
    node.start()
    wait_until(lambda: groups(world)[given["name"]] == during[given["name"]])
    node.stop()
    assert groups(world)[given["name"]] == during[given["name"]]

    # Without the option, the next start puts right what is left.
    del node.config["pinfold"]["cache"]
    node.start()
    wait_until(lambda: groups(world) == everything)
    assert "cache" not in node.client.get("/v1/status")["agent"]


def test_what_is_refused_is_said(node: AgentProcess, world: ResctrlWorld) -> None:
    node.start()
    node.apply(asking("db", "gold"))
    refused = wait_until(lambda: node.client.get("/v1/status")["agent"]["cache"]["refused"])
    assert [one["reason"] for one in refused.values()] == ["UnknownCacheClass"]
    text = " ".join(node.run("status", "--no-color").stdout.split())
    assert "default/db main has no cache class (UnknownCacheClass): there is no class gold" in text
    assert groups(world).keys() == {""}
