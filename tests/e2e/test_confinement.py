"""The agent confines the rest of the machine: apart from other tests, which it would confine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from pinfold.core.values.cpuset import CPUSet
from tests.scenes.agent_process import (
    IDLE,
    AgentProcess,
    allowed,
    manifest,
    skip_unless_an_agent_can_run,
)

CPUS = CPUSet(os.sched_getaffinity(0))


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    skip_unless_an_agent_can_run()
    agent = AgentProcess(tmp_path_factory.mktemp("agent"))
    try:
        yield agent
    finally:
        agent.clean_up()


def test_the_system_is_confined_and_let_go(node: AgentProcess) -> None:
    node.config["pinfold"] |= {"confineSystem": True}
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        try:
            node.start()
            assert allowed(stranger.pid) == CPUSet([0])
            node.apply(manifest("db", ("main", IDLE, "1")))
            assert allowed(node.pids("db")["main"]).isdisjoint(CPUSet([0]))
            node.run("delete", "--all", "--grace", "0")
            node.stop()
            assert allowed(stranger.pid) == CPUS
        finally:
            record = node.state / "shield.json"
            node.run("shield", "--off", "--record", str(record))
            stranger.kill()
