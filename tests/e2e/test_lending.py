"""Idle CPUs of an owner are lent on a real kernel, and back as soon as it wants them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pinfold.adapters.cgroup import open_cgroups
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.agent_process import AgentProcess, manifest, skip_unless_an_agent_can_run
from tests.scenes.bell import bell, ring
from tests.scenes.process_world import processes_of
from tests.scenes.waiting import wait_until

SPINS = ("sh", "-c", "while :; do :; done")
WHEN_TOLD = """
import pathlib, sys
told, bell = map(pathlib.Path, sys.argv[1:])
while True:
    bell.read_bytes()
    while told.exists():
        pass
"""
"""Rests until it is rung, and is busy as long as a file is there."""


EVERYTHING = CPUSet(os.sched_getaffinity(0))
RESERVED = CPUSet([0])


class Node:
    """An agent that lends, an owner of a core that is busy when it is told, and a borrower."""

    def __init__(self, agent: AgentProcess) -> None:
        self.agent = agent
        self.busy, self.bell = agent.folder / "busy", bell(agent.folder)
        # No less than a whole core is lent.
        threads = Path("/sys/devices/system/cpu/cpu1/topology/thread_siblings_list").read_text()
        command = (sys.executable, "-c", WHEN_TOLD, str(self.busy), str(self.bell))
        owner = manifest("owner", ("main", command, str(len(CPUSet.parse(threads)))))
        owner["metadata"]["annotations"] = {"lend-cpus.pinfold.dev/pod": "true"}
        agent.apply(owner)
        agent.apply(manifest("batch", ("work", SPINS, "")))
        agent.pids("owner")
        (self.borrower,) = agent.pids("batch").values()
        self.own = CPUSet.parse(agent.pod("owner")["containers"][0]["cpus"])
        # Where nothing else is left, the pool is what is reserved.
        self.pool = EVERYTHING - self.own - RESERVED or RESERVED

    def allowed(self) -> CPUSet:
        """Where the kernel lets the borrower run."""
        text = Path(f"/proc/{self.borrower}/status").read_text()
        (line,) = [line for line in text.splitlines() if line.startswith("Cpus_allowed_list:")]
        return CPUSet.parse(line.split()[1])

    def said(self) -> Any:
        return self.agent.client.get("/v1/status")["agent"]["control"]["lending"]

    def decided(self, rank: str) -> list[str]:
        """Why something of a rank was decided, as the history has it: the newest first."""
        history = self.agent.client.get("/v1/history")["entries"]
        told = [one["document"] for one in history if one["kind"] == "controlled"]
        return [one["why"] for one in told if one["rank"] == rank and not one["problem"]]

    def until(self, cpus: CPUSet) -> None:
        wait_until(lambda: self.allowed() == cpus)

    def until_lent(self) -> None:
        self.until(self.pool | self.own)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    skip_unless_an_agent_can_run()
    agent = AgentProcess(tmp_path)
    # Whatever else goes on here: others may be on these CPUs, who are not the agent's.
    agent.config["pinfold"]["lending"] = {
        "use": True,
        "idleFor": "1s",
        "pause": "1s",
        "maxWait": "90000ms",
        "maxPressure": "100%",
        "lendBelow": "20%",
        "siblingsBelow": "20%",
        "returnAbove": "30%",
    }
    try:
        agent.start()
        if why := open_cgroups(name=agent.name).no_idle_side:
            pytest.skip(why)
        yield Node(agent)
    finally:
        agent.clean_up()


def test_what_is_idle_is_lent_and_back_when_the_owner_is_busy(node: Node) -> None:
    node.until_lent()
    (lent,) = wait_until(lambda: node.said()["lent"])
    assert (lent["container"], lent["cpus"]) == ("default/owner/main", str(node.own))
    assert node.said()["borrowers"] == ["default/batch/work"]
    named = f"CPU {node.own}" if len(node.own) == 1 else f"CPUs {node.own}"
    text = f"lent: {named} of default/owner/main to default/batch/work"
    wait_until(lambda: text in node.agent.run("status").stdout)
    # It is the owner's all the same.
    assert node.agent.pod("owner")["containers"][0]["cpus"] == str(node.own)
    node.until_lent()
    node.busy.touch()
    ring(node.bell)
    node.until(node.pool)
    wait_until(lambda: node.said()["lent"] == [])
    wait_until(lambda: node.decided("return"))
    assert "of a CPU there" in node.decided("return")[0]
    assert node.said()["not_lent"]["default/owner/main"]
    node.busy.unlink()
    node.until_lent()
    wait_until(lambda: len(node.decided("lending")) > 1)


def test_the_agent_is_quick_and_containers_are_as_others(node: Node) -> None:
    node.until_lent()
    assert node.agent.client.get("/v1/status")["agent"]["control"]["nice"] == -10
    assert node.agent.process is not None
    assert os.getpriority(os.PRIO_PROCESS, node.agent.process.pid) == -10
    (guardian,) = processes_of(str(node.agent.state / "guardian.log"))
    assert os.getpriority(os.PRIO_PROCESS, guardian) == -10
    assert os.getpriority(os.PRIO_PROCESS, node.borrower) == 0


def test_what_is_lent_is_back_where_somebody_takes_the_rank(node: Node) -> None:
    undoing = open_cgroups(name=node.agent.name).undoing()
    node.until_lent()
    (rank,) = {Path(file).with_name("cpu.idle") for file in undoing.uncapped}
    rank.write_text("0")
    node.until(node.pool)
    assert rank.read_text().strip() == "1"

    def told() -> list[tuple[str, str]]:
        history = node.agent.client.get("/v1/history")["entries"]
        found = [one["document"] for one in history if one["kind"] == "repaired"]
        return [(one["expected"], one["found"]) for one in found]

    wait_until(lambda: (f"cpu.idle 1, with {node.own} lent", "cpu.idle 0") in told())
    node.until_lent()


@pytest.mark.parametrize("how", ["owner ends", "agent is killed", "agent stops"])
def test_nothing_stays_lent(node: Node, how: str) -> None:
    node.until_lent()
    ways: dict[str, Callable[[], object]] = {
        "owner ends": lambda: node.agent.run("delete", "owner"),
        "agent is killed": node.agent.kill,
        "agent stops": node.agent.stop,
    }
    ways[how]()
    # Once the owner has gone, its CPUs are in the pool, without the reserved one.
    node.until(EVERYTHING - RESERVED if how == "owner ends" else node.pool)
