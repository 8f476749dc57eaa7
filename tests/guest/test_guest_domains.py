"""Partitions of a real agent on cgroup v2: who opts in is isolated, through moves and restarts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.scenes.agent_process import (
    IDLE,
    AgentProcess,
    allowed,
    manifest,
    skip_unless_an_agent_can_run,
)
from tests.scenes.waiting import wait_until

from pinfold.core.values.cpuset import CPUSet

PARTITION = "cpuset.cpus.partition"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AgentProcess]:
    skip_unless_an_agent_can_run()
    if not Path("/sys/fs/cgroup/cpuset.cpus.isolated").exists() or (os.cpu_count() or 0) < 8:
        pytest.skip("needs cgroup v2, Linux 6.7 and eight CPUs")
    found = AgentProcess(tmp_path)
    found.config["cpuManagerPolicy"] = "dynamic"
    found.config["cpuManagerReconcilePeriod"] = "1s"
    found.config["pinfold"]["partition"] = "isolated"
    try:
        yield found
    finally:
        found.clean_up()


def run(node: AgentProcess, name: str, *, balanced: bool) -> int:
    pod = manifest(name, ("main", IDLE, "2"))
    if not balanced:
        pod["metadata"]["annotations"] = {"load-balance.pinfold.dev/pod": "false"}
    node.apply(pod)
    return node.pids(name)["main"]


def folder(pid: int) -> Path:
    (line,) = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return Path("/sys/fs/cgroup", line.split(":")[2].lstrip("/"))


def says(pid: int) -> str:
    return (folder(pid) / PARTITION).read_text().strip()


def isolated() -> CPUSet:
    return CPUSet.parse(Path("/sys/fs/cgroup/cpuset.cpus.isolated").read_text())


def domains(node: AgentProcess) -> list[dict[str, Any]]:
    told: Any = node.client.get("/v1/status")["agent"].get("schedulingDomains", {})
    return list(told.get("containers", ()))


def test_who_opts_in_is_isolated_through_moves_and_restarts(node: AgentProcess) -> None:
    node.start()
    owner, other = run(node, "owner", balanced=False), run(node, "other", balanced=True)
    assert says(owner) == "isolated"
    assert says(other) == "member"
    assert isolated() == allowed(owner)
    wait_until(lambda: domains(node))
    (domain,) = domains(node)
    assert (domain["pod"], domain["found"], domain["problem"]) == ("default/owner", "isolated", "")

    # Somebody takes it back; it is made anew.
    (folder(owner) / PARTITION).write_text("member")
    wait_until(lambda: says(owner) == "isolated")

    # Its CPUs change while it runs, both ways.
    before = allowed(owner)
    node.run("resize", "pod/owner", "--cpus", "3")
    wait_until(lambda: len(allowed(owner)) == 3 and says(owner) == "isolated")
    assert before < allowed(owner) == isolated()
    node.run("resize", "pod/owner", "--cpus", "2")
    wait_until(lambda: len(allowed(owner)) == 2 and says(owner) == "isolated")
    wait_until(lambda: isolated() == allowed(owner))

    node.kill()
    assert says(owner) == "isolated"
    node.start()
    wait_until(lambda: domains(node))
    assert says(owner) == "isolated"
    node.client.delete("/v1/pods/default/owner")
    wait_until(lambda: not isolated())
    wait_until(lambda: not domains(node))
