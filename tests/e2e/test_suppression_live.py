"""Best-effort work is capped by a real agent on a real kernel, and not without an agent."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

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

    def until_capped(self) -> None:
        wait_until(lambda: self.caps() == ["100000"])  # one CPU's worth of a period of 100 ms

    def stop_while_capped(self) -> None:
        """Stop the agent while there is a cap, so that nobody else than the guardian ends it."""
        agent = self.agent.process
        assert agent is not None

        def stopped() -> bool:
            self.until_capped()
            os.kill(agent.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, agent.pid, os.WSTOPPED)
            if self.caps():
                return True
            # On a slow machine a lease is now and then not renewed in time.
            os.kill(agent.pid, signal.SIGCONT)
            return False

        wait_until(stopped)

    def told(self) -> list[tuple[str, bool]]:
        """Why caps were taken away in place of an agent, as the history has it."""
        history = self.agent.client.get("/v1/history")["entries"]
        told = [one["document"] for one in history if one["kind"] == "taken-back"]
        return [(one["why"], one["uncapped"]) for one in told]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    skip_unless_an_agent_can_run()
    agent = AgentProcess(tmp_path)
    # Of a small part of the node nothing is left but the least.
    agent.config["pinfold"] |= {
        "suppression": {"use": True, "threshold": "1%", "margin": "0%", "leastCPUs": 1},
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
    node.until_capped()
    if len(os.sched_getaffinity(0)) > WORKERS:
        before = node.held_back()
        wait_until(lambda: node.held_back() > before)

    def killed() -> bool:
        before = len(node.told())
        node.stop_while_capped()
        node.agent.kill()
        wait_until(lambda: not node.caps())
        wait_until(lambda: not processes_of(str(node.agent.state / "guardian.log")))
        node.agent.start()
        # It is written down while everything else goes on.
        wait_until(lambda: len(node.told()) > before)
        return ("the agent has ended", True) in node.told()

    # Again only where the guardian has found it stopped, before it was killed.
    wait_until(killed)

    before = len(node.told())
    node.stop_while_capped()
    agent = node.agent.process
    assert agent is not None
    try:
        wait_until(lambda: not node.caps())
    finally:
        os.kill(agent.pid, signal.SIGCONT)
    wait_until(lambda: len(node.told()) > before)
    node.until_capped()

    node.agent.stop()
    assert not node.caps()


def test_a_cap_that_somebody_takes_away_is_put_back_and_told(node: Node) -> None:
    node.until_capped()
    for file, uncapped in node.undoing.uncapped.items():
        Path(file).write_text(uncapped)
    node.until_capped()

    def told() -> list[tuple[str, str]]:
        history = node.agent.client.get("/v1/history")["entries"]
        found = [one["document"] for one in history if one["kind"] == "repaired"]
        return [(one["expected"], one["found"]) for one in found]

    wait_until(lambda: ("a cap of 1 CPUs", "no cap") in told())
