"""Best-effort work is capped by a real agent on a real kernel, and not without an agent."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinfold.adapters.cgroup import open_cgroups
from pinfold.ports.guardian import Undoing
from tests.scenes.agent_process import (
    BUSY,
    AgentProcess,
    manifest,
    skip_unless_an_agent_can_run,
)
from tests.scenes.process_world import processes_of
from tests.scenes.waiting import wait_until

WORKERS = 4


class Node:
    """An agent that suppresses, and best-effort work that wants more than it is to have."""

    def __init__(self, agent: AgentProcess) -> None:
        self.agent = agent
        self.undoing: Undoing = open_cgroups(name=agent.name).undoing()

    def caps(self) -> list[str]:
        """The quotas of the idle side, where they are not what no cap is."""
        words = {
            file: Path(file).read_text().split()[0]
            for file in self.undoing.uncapped
            if Path(file).exists()
        }
        return [word for file, word in words.items() if word != self.undoing.uncapped[file]]

    def held_back(self) -> int:
        """In how many periods the kernel let the idle side run no more."""
        return sum(
            int(line.split()[1])
            for file in self.undoing.uncapped
            for line in Path(file).with_name("cpu.stat").read_text().splitlines()
            if line.startswith("nr_throttled ")
        )

    def taken_back(self) -> list[dict[str, Any]]:
        history = self.agent.client.get("/v1/history")["entries"]
        return [one["document"] for one in history if one["kind"] == "taken-back"]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    skip_unless_an_agent_can_run()
    agent = AgentProcess(tmp_path)
    # Of a small part of the node nothing is left but the least.
    agent.config["pinfold"] |= {
        "suppression": {"use": True, "threshold": "1%", "leastCPUs": 1},
        "observationPeriod": "500ms",
    }
    try:
        agent.start()
        if why := open_cgroups(name=agent.name).no_idle_side:
            pytest.skip(why)
        for number in range(WORKERS):
            agent.apply(manifest(f"batch-{number}", ("work", BUSY, "")))
            agent.pids(f"batch-{number}")
        yield Node(agent)
    finally:
        agent.clean_up()


def test_the_cap_is_in_force_and_gone_with_the_agent(node: Node) -> None:
    wait_until(node.caps)
    assert node.caps() == ["100000"], "one CPU's worth of a period of 100 ms"
    if len(os.sched_getaffinity(0)) > WORKERS:
        before = node.held_back()
        wait_until(lambda: node.held_back() > before)

    node.agent.kill()
    wait_until(lambda: not node.caps())
    wait_until(lambda: not processes_of(str(node.agent.state / "guardian.log")))
    node.agent.start()
    wait_until(node.caps)
    assert [(one["why"], one["uncapped"]) for one in node.taken_back()] == [
        ("the agent has ended", True)
    ]

    agent = node.agent.process
    assert agent is not None
    os.kill(agent.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: not node.caps())
    finally:
        os.kill(agent.pid, signal.SIGCONT)
    wait_until(node.caps)
    assert len(node.taken_back()) == 2

    node.agent.stop()
    assert not node.caps()
