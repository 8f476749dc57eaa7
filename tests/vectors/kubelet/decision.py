"""Whether a plan would answer to a pod as the kubelet did, before this one is asked itself."""

from __future__ import annotations

from typing import Any

from pinfold.admission.admission import Node, NodeState, decide
from pinfold.admission.settling import settle
from pinfold.core.devices.state import DeviceState
from pinfold.core.kubelet.feature_gates import POD_LEVEL_RESOURCES
from pinfold.core.pod.pod import Pod
from tests.vectors.kubelet.kubelet import Kubelet
from tests.vectors.kubelet.managers import stranded
from tests.vectors.memory_policy import assignments_document, machine_document

_PLENTY = 1 << 60


def planned(kubelet: Kubelet, pod: Pod) -> dict[str, Any] | None:
    """The whole decision about a newcomer, in the form of a step ``admit``.

    ``fault`` names the kubelet's fault where a plan refuses what the kubelet does.  None where a
    plan knows no such node: it has refused what the kubelet has done, or a refused pod has left
    something that is still to be swept away.  So too where it knows no such pod: one that has
    something already, which a kubelet admits once more.
    """
    managers, policies = kubelet.managers, kubelet.policies
    state = NodeState(
        managers.cpus.ledger,
        memory=None if managers.memory is None else managers.memory.state,
        devices=DeviceState() if managers.devices is None else managers.devices.state,
    )
    ledger, memory = state.ledger, state.memory
    if kubelet.fault is not None:
        return None
    if pod.uid in {**ledger.assignments, **ledger.bubbles}:
        return None
    if memory is not None and pod.uid in {**memory.assignments, **memory.bubbles}:
        return None
    held = (ledger.assignments, {} if memory is None else memory.assignments)
    if any(stranded(assignments, kubelet.active) for assignments in held):
        return None
    if state.devices.allocations.pods.keys() - kubelet.active.keys():
        return None
    node = Node(
        policies.cpus,
        policies.topology_manager,
        # What a pod requests in total is no matter of these cases.
        dict.fromkeys((name for one in pod.all_containers for name in one.requests), _PLENTY)
        | dict.fromkeys(("cpu", "memory", "hugepages-2Mi", "hugepages-1Gi"), _PLENTY),
        max_pods=_PLENTY,
        memory_policy=policies.memory,
        pod_level=policies.pod_level,
        pod_resources=policies.config.gate(POD_LEVEL_RESOURCES),
    )
    decision = decide(node, state, pod)
    found: dict[str, Any] = {
        "admit": decision.admitted,
        "reason": decision.reason or "",
        "message": decision.message or "",
        "fault": None if decision.fault is None else decision.fault.slug,
    }
    if decision.admitted:
        after = settle(state, decision)
        found["cpus"] = {
            uid: {name: str(cpus) for name, cpus in containers.items()}
            for uid, containers in after.ledger.assignments.items()
        }
        found["default"] = str(after.ledger.default)
        if after.memory is not None:
            found["memory"] = assignments_document(after.memory.assignments)
            found["machine"] = machine_document(after.memory.machine)
    return found
