"""What an agent publishes of its node, so that a plan can be made of it elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from pinfold import __version__
from pinfold.adapters.kubernetes.published_node import Published
from pinfold.admission.admission import NodeState
from pinfold.config.agent import AgentConfig, deciding_configuration
from pinfold.core.machine.kubelet_view import KubeletView
from pinfold.core.machine.machine import Machine
from pinfold.documents.live.published import PublishedNode
from pinfold.planning.machine_document import machine_document


def published_node(
    name: str, machine: Machine, view: KubeletView, config: AgentConfig, state: NodeState
) -> Published:
    """The node as it is now; of its pods nothing but who has which CPUs."""
    ledger = state.ledger
    node = PublishedNode(
        node=name,
        program=__version__,
        configuration=deciding_configuration(config),
        reserved=str(ledger.limits.reserved),
        shared=str(ledger.default),
        offline=str(state.offline),
        assignments={
            uid: {container: str(cpus) for container, cpus in sorted(containers.items())}
            for uid, containers in sorted(ledger.assignments.items())
        },
        bubbles={uid: str(cpus) for uid, cpus in sorted(ledger.bubbles.items())},
    )
    return Published(
        msgspec.json.encode(machine_document(machine, view)),
        msgspec.json.encode(node),
        datetime.now(UTC).isoformat(timespec="seconds"),
    )
