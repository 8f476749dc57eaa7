"""The names of the policy that places as static does, under a live container."""

from __future__ import annotations

import json

import pytest

from tests.scenes.agent_process import (
    IDLE,
    AgentProcess,
    allowed,
    an_agent,
    manifest,
)

node = pytest.fixture(an_agent)


def test_another_name_of_the_policy_moves_nothing(node: AgentProcess) -> None:
    node.start()
    node.apply(manifest("owner", ("main", IDLE, "1")))
    process = node.pids("owner")["main"]
    own = allowed(process)
    for policy in ("dynamic", "configurable", "static"):
        node.kill()
        node.config["cpuManagerPolicy"] = policy
        node.start()
        assert node.pids("owner")["main"] == process
        assert allowed(process) == own
        assert node.client.get("/v1/status")["config"]["cpuManagerPolicy"] == policy
        mirrored = json.loads((node.state / "cpu_manager_state").read_text())
        assert mirrored["policyName"] == "static"
        assert [*mirrored["entries"].values()] == [{"main": str(own)}]
    node.kill()
    node.config["cpuManagerPolicy"] = "dynamical"
    status, said = node.refused()
    assert status == 2
    assert 'unknown policy: "dynamical"; it is none or static or dynamic or configurable' in said
