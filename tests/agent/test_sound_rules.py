"""An agent gives CPUs and memory by its own rules everywhere, never by a kubelet's faults."""

from __future__ import annotations

from pathlib import Path

from pinfold.admission.admission import Node
from pinfold.agent.start import Start
from pinfold.config.agent import AgentConfig
from pinfold.config.section import agent_section
from pinfold.core.kubelet.faults import SOUND, AllocationRules
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.short_form import parse_short_form
from pinfold.planning.planner import Planner
from tests.scenes.manager_harness import ALL_MANAGERS


def rules_of(node: Node) -> list[AllocationRules]:
    policies = [node.cpu_policy, node.memory_policy]
    return [node.rules, *(policy.rules for policy in policies if policy is not None)]


def test_the_node_of_an_agent_has_sound_rules(tmp_path: Path) -> None:
    settings = {"stateDir": str(tmp_path), "socket": str(tmp_path / "s.sock")}
    start = Start(AgentConfig(NodeConfig(), agent_section("the test", settings)))
    assert rules_of(start.planner.node) == [SOUND]


def test_a_node_hands_its_rules_on_to_all_who_give_something() -> None:
    planner = Planner(parse_short_form("2s4c2t@4Gi"), ALL_MANAGERS, rules=SOUND)
    assert rules_of(planner.node) == [SOUND, SOUND, SOUND]
