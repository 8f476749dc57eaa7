"""Idle CPUs of an owner are lent on a real kernel, and back as soon as it wants them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pinfold.adapters.cgroup import open_cgroups
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.agent_process import AgentProcess, manifest, skip_unless_an_agent_can_run
from tests.scenes.waiting import wait_until

SPINS = ("sh", "-c", "while :; do :; done")
WHEN_TOLD = """
import pathlib, sys, time
told = pathlib.Path(sys.argv[1])
while True:
    if not told.exists():
        time.sleep(0.002)
"""
"""Rests until a file is there, and is busy while it is."""


class Node:
    """An agent that lends, an owner of CPU 1 that is busy when it is told, and a borrower."""

    def __init__(self, agent: AgentProcess) -> None:
        self.agent = agent
        self.busy = agent.folder / "busy"
        owner = manifest("owner", ("main", (sys.executable, "-c", WHEN_TOLD, str(self.busy)), "1"))
        owner["metadata"]["annotations"] = {"lend-cpus.pinfold.dev/pod": "true"}
        agent.apply(owner)
        agent.apply(manifest("batch", ("work", SPINS, "")))
        agent.pids("owner")
        (self.borrower,) = agent.pids("batch").values()

    def allowed(self) -> CPUSet:
        """Where the kernel lets the borrower run."""
        text = Path(f"/proc/{self.borrower}/status").read_text()
        (line,) = [line for line in text.splitlines() if line.startswith("Cpus_allowed_list:")]
        return CPUSet.parse(line.split()[1])

    def said(self) -> Any:
        return self.agent.client.get("/v1/status")["agent"]["control"]["lending"]

    def until(self, cpus: str) -> None:
        wait_until(lambda: self.allowed() == CPUSet.parse(cpus))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    skip_unless_an_agent_can_run()
    agent = AgentProcess(tmp_path)
    # Whatever else goes on here: others may be on CPU 1, who are not the agent's.
    agent.config["pinfold"]["lending"] = {
        "use": True,
        "idleFor": "1s",
        "pause": "1s",
        "maxWait": "90000ms",
        "maxPressure": "100%",
        "lendBelow": "10%",
        "returnAbove": "20%",
    }
    try:
        agent.start()
        if why := open_cgroups(name=agent.name).no_idle_side:
            pytest.skip(why)
        yield Node(agent)
    finally:
        agent.clean_up()


def test_what_is_idle_is_lent_and_back_when_the_owner_is_busy(node: Node) -> None:
    node.until("0-1")
    (lent,) = node.said()["lent"]
    assert (lent["container"], lent["cpus"]) == ("default/owner/main", "1")
    assert node.said()["borrowers"] == ["default/batch/work"]
    assert "lent: CPUs 1 of default/owner/main" in node.agent.run("status").stdout
    # It is the owner's all the same.
    assert node.agent.pod("owner")["containers"][0]["cpus"] == "1"
    node.busy.touch()
    node.until("0")
    wait_until(lambda: node.said()["lent"] == [])
    assert "of a CPU there" in node.said()["not_lent"]["default/owner/main"]
    node.busy.unlink()
    node.until("0-1")
    history = node.agent.client.get("/v1/history")["entries"]
    ranks = [one["document"]["rank"] for one in history if one["kind"] == "controlled"]
    assert sorted(ranks[-3:]) == ["lending", "lending", "return"]


@pytest.mark.parametrize("how", ["owner ends", "agent is killed", "agent stops"])
def test_nothing_stays_lent(node: Node, how: str) -> None:
    node.until("0-1")
    ways: dict[str, Callable[[], object]] = {
        "owner ends": lambda: node.agent.run("delete", "owner"),
        "agent is killed": node.agent.kill,
        "agent stops": node.agent.stop,
    }
    ways[how]()
    # Once the owner has gone, its CPU is the pool, without the reserved one.
    node.until("1" if how == "owner ends" else "0")
