"""The agent confines the rest of the machine: apart from other tests, which it would confine."""

from __future__ import annotations

import os
import subprocess

import pytest

from pinfold.core.values.cpuset import CPUSet
from tests.scenes.agent_process import (
    IDLE,
    AgentProcess,
    allowed,
    an_agent,
    manifest,
)

CPUS = CPUSet(os.sched_getaffinity(0))


node = pytest.fixture(an_agent)


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
