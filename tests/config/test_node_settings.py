"""How a node is looked after follows from its configuration."""

from __future__ import annotations

import pytest

from pinfold.config.agent import AgentConfig
from pinfold.config.node_settings import node_settings
from pinfold.config.section import agent_section
from pinfold.core.kubelet.feature_gates import DISABLE_CPU_QUOTA_WITH_EXCLUSIVE_CPUS
from pinfold.core.kubelet.node_config import NodeConfig


@pytest.mark.parametrize("on", [True, False])
def test_a_gate_says_whether_owners_have_a_quota(*, on: bool) -> None:
    config = NodeConfig(feature_gates={DISABLE_CPU_QUOTA_WITH_EXCLUSIVE_CPUS: on})
    agent = AgentConfig(config, agent_section("the test", {}))
    made = node_settings(agent, memory=1, allocatable_memory=1, page_sizes=(), tree="")
    assert made.uncap_owners is on
