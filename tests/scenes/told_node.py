"""A node on fakes whose decisions are explained in its history, as an agent's are."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from pinfold.admission.admission import NodeState
from pinfold.admission.decision import Decision
from pinfold.admission.node_status import node_status, node_status_document
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.short_form import parse_short_form
from pinfold.documents.live.event import Whole
from pinfold.documents.status import Agent, AgentConfig
from pinfold.planning.explaining.decision import explain_decision
from pinfold.planning.explaining.document import explain_document
from pinfold.planning.machine_document import machine_document
from pinfold.planning.planner import Planner
from pinfold.web.documents import Documents
from tests.scenes.lifecycle_harness import LifecycleHarness
from tests.scenes.manager_harness import Harness


async def explained(planner: Planner, decision: Decision, state: NodeState) -> str:
    """What an agent writes of a decision."""
    document = explain_document(planner, explain_decision(planner, state, decision))
    return msgspec.json.encode(document).decode()


def told_node(**harness: Any) -> Harness:
    """A node on fakes that tells why."""
    node = Harness(**harness)
    planner = Planner(parse_short_form(node.machine), node.config)
    node.describe = partial(explained, planner)
    return node


def whole_now(node: Harness | LifecycleHarness) -> Whole:
    """What its agent says now."""
    machine = parse_short_form(node.machine)
    view, books, config = kubelet_view(machine), node.books.view, node.config
    status = Documents(node.books).status(
        Agent(
            version="0",
            pid=1,
            started_at=0.0,
            state_dir="/nowhere",
            config_file=None,
            runtime="process",
        ),
        AgentConfig(
            cpu_manager_policy=config.cpu_manager_policy,
            cpu_manager_policy_options=dict(config.cpu_manager_policy_options),
            topology_manager_policy=config.topology_manager_policy,
            topology_manager_scope=config.topology_manager_scope,
            topology_manager_policy_options={},
            reserved_system_cpus=str(config.reserved_system_cpus),
        ),
    )
    found = node_status(machine, view, config, books.node, books.state)
    return Whole(
        status=status,
        machine=machine_document(machine, view),
        node=node_status_document(found),
    )
