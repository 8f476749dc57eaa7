"""What an agent that is a runtime's plugin says of itself, before there is a runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenes.agent_process import AgentProcess, skip_unless_an_agent_can_run


@pytest.mark.parametrize("pod_resources", ["", "/nowhere/kubelet.sock"])
def test_the_status_and_the_metrics_tell_of_the_plugin(tmp_path: Path, pod_resources: str) -> None:
    skip_unless_an_agent_can_run()
    agent = AgentProcess(tmp_path)
    (tmp_path / "nri").mkdir()
    agent.config["pinfold"] |= {
        "runtime": "nri",
        "nriSocket": str(tmp_path / "nri" / "nri.sock"),
        "kubeletStateFile": "",
        "kubeletPodResources": pod_resources,
        "kubeconfig": "",
    }
    try:
        agent.start()
        told = agent.client.get("/v1/status")["agent"]["nri"]
        assert told.pop("problem") != ""
        assert told == {
            "socket": agent.config["pinfold"]["nriSocket"],
            "connected": False,
            "runtime": "",
            "kubeletPolicy": "absent",
            "auditsOnly": False,
            "behind": 0,
            "gates": {"held": {}, "rewritten": 0},
            "kubeletPodResources": {
                "socket": pod_resources,
                "asked": 0,
                "unanswered": 0,
                "problem": "",
            },
            "podSpecifications": {"server": "", "asked": 0, "unread": 0, "problem": ""},
        }
        metrics = str(agent.client.get("/metrics")).splitlines()
        assert "pinfold_gates 0.0" in metrics
        assert "pinfold_gates_rewritten_total 0.0" in metrics
    finally:
        agent.clean_up()
