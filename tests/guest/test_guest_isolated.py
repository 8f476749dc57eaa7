"""A real agent on a kernel that was booted with ``isolcpus=`` and ``nohz_full=``."""

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
from tests.scenes.waiting import eventually, wait_until

from pinfold.adapters.machines.discovery import read_live
from pinfold.core.values.cpuset import CPUSet

ISOLATED = read_live().isolated
NEEDS = "needs a kernel with isolcpus= (make guest has one)"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AgentProcess]:
    skip_unless_an_agent_can_run()
    if len(ISOLATED) < 4:
        pytest.skip(NEEDS)
    found = AgentProcess(tmp_path)
    try:
        yield found
    finally:
        found.clean_up()


def run(node: AgentProcess, name: str, cpus: str = "", **said: str) -> CPUSet:
    """A pod of one container; the CPUs that the kernel lets its process run on."""
    pod = manifest(name, ("main", IDLE, cpus))
    pod["metadata"]["annotations"] = {
        "load-balance.pinfold.dev/pod": "false",
        **{f"isolated-cpus.pinfold.dev/{k}": v for k, v in said.items()},
    }
    node.apply(pod)
    return allowed(node.pids(name)["main"])


def test_what_the_kernel_says_is_what_it_was_booted_with() -> None:
    line = Path("/proc/cmdline").read_text().split()
    words = dict(word.split("=", 1) for word in line if "=" in word)
    if "isolcpus" not in words:
        pytest.skip(NEEDS)
    machine = read_live()
    assert str(machine.isolated) == words["isolcpus"]
    assert str(machine.nohz_full) == words["nohz_full"]
    assert str(machine.rcu_nocbs) == words["rcu_nocbs"]


@pytest.mark.parametrize("partition", ["member", "isolated"])
def test_exclusive_cpus_are_isolated_and_nobody_shares_these(
    node: AgentProcess, partition: str
) -> None:
    node.config["pinfold"] |= {"isolatedCPUs": {"use": "prefer"}, "partition": partition}
    node.start()
    assert node.client.get("/v1/machine")["isolated"] == str(ISOLATED)
    shared = run(node, "web")
    assert shared.isdisjoint(ISOLATED)
    owner, other = run(node, "owner", "2"), run(node, "other", "1", pod="never")
    assert owner < ISOLATED
    assert len(owner) == 2
    assert other.isdisjoint(ISOLATED)
    eventually(lambda: allowed(node.pids("web")["main"]), shared - other)
    # Whatever the agent's own partitions are: the kernel was booted as it was.
    node.kill()
    node.start()
    assert node.client.get("/v1/machine")["isolated"] == str(ISOLATED)
    assert allowed(node.pids("owner")["main"]) == owner
    assert run(node, "late", "2", pod="require") == ISOLATED - owner
    # None is left, and it is only preferred.
    assert run(node, "last", "1").isdisjoint(ISOLATED)


def test_by_default_isolation_is_ignored(node: AgentProcess) -> None:
    node.start()
    assert run(node, "web") > ISOLATED
    assert run(node, "owner", "2").isdisjoint(ISOLATED)
    # Until a pod asks for them.
    assert run(node, "wished", "2", pod="require") < ISOLATED
    wait_until(lambda: allowed(node.pids("web")["main"]).isdisjoint(ISOLATED))
    node.run("delete", "pod/wished")
    wait_until(lambda: allowed(node.pids("web")["main"]) > ISOLATED)
