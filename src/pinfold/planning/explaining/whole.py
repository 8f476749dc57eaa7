"""Why a pod with resources of its own got what it has: its bubble, a part of it, or neither."""

from __future__ import annotations

from typing import Final

from pinfold.admission.admission import Node
from pinfold.admission.decision import Decision
from pinfold.admission.pod_level import has_pod_scope
from pinfold.core.kubelet.feature_gates import (
    FEATURE_GATES,
    POD_LEVEL_RESOURCE_MANAGERS,
    POD_LEVEL_RESOURCES,
)
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.pod.pod import CPU, MEMORY, NO_RESOURCES, Container, Pod, QOSClass, Resources
from pinfold.core.pod.pod_level import (
    cpu_budget,
    cpu_shortage,
    exclusive_cpus,
    is_exclusive,
    memory_shortage,
)
from pinfold.core.topology_manager.manager import TopologyManager

ONLY_WHOLE: Final = "only whole ones are exclusive"

_GATE: Final = next(one for one in FEATURE_GATES if one.name == POD_LEVEL_RESOURCE_MANAGERS)


def why_not_whole(config: NodeConfig, manager: TopologyManager, pod: Pod) -> str | None:
    """Why a pod with resources of its own has no CPUs as a whole; None: it is to have some."""
    if not config.gate(POD_LEVEL_RESOURCES):
        return (
            "the pod has resources of its own, which are passed over while the feature gate "
            f"{POD_LEVEL_RESOURCES} is off (featureGates, --feature-gate)"
        )
    if not config.gate(POD_LEVEL_RESOURCE_MANAGERS):
        return _why_off(config)
    if pod.qos is not QOSClass.GUARANTEED:
        return (
            f"the pod is {pod.qos.value} by its own resources; CPUs as a whole need a Guaranteed "
            "one (its requests of cpu and memory equal to its limits)"
        )
    if not has_pod_scope(manager):
        return (
            "only topologyManagerScope: pod, with a policy other than none, gives CPUs to a pod as "
            "a whole; under this one its exclusive containers have theirs"
        )
    if not cpu_budget(pod):
        return (
            f"the pod's own cpu {_requests(pod).get(CPU, 'request is missing and')} is no whole "
            "number of CPUs; only whole ones are given to a pod"
        )
    return None


def _why_off(config: NodeConfig) -> str:
    passed_over = "the pod has resources of its own, which the static policy passes over"
    version = config.kubelet_version
    if _GATE.at(version) is None:
        return f"{passed_over}: kubelet {version} has no {POD_LEVEL_RESOURCE_MANAGERS}"
    return (
        f"{passed_over} while the feature gate {POD_LEVEL_RESOURCE_MANAGERS} is off (featureGates, "
        "--feature-gate)"
    )


def why_it_has_none(node: Node, config: NodeConfig, decision: Decision) -> str | None:
    """Why an admitted pod with resources of its own has no CPUs by them; None: it has, or none can.

    None, too, where all of its containers have their own.
    """
    pod = decision.pod
    if node.cpu_policy is None or not decision.admitted or not pod.has_pod_level_resources:
        return None
    if len(decision.claims) == len(pod.all_containers):
        return None
    return why_not_whole(config, node.topology_manager, pod)


def why_it_shares_all(node: Node, decision: Decision) -> str | None:
    """Why a Guaranteed pod has no exclusive CPUs at all; None: it has, or is none.

    One with resources of its own has another reason: :func:`why_it_has_none`.
    """
    pod = decision.pod
    if node.cpu_policy is None or not decision.admitted or pod.has_pod_level_resources:
        return None
    asks = any(node.cpu_policy.exclusive_cpus(pod, one) for one in pod.all_containers)
    if pod.qos is not QOSClass.GUARANTEED or asks or decision.claims:
        return None
    asked = dict.fromkeys(str(one.requests.get(CPU, 0)) for one in pod.all_containers)
    return f"cpu {', '.join(asked)} is no whole number of CPUs; {ONLY_WHOLE}"


def why_unsound(node: Node, pod: Pod) -> str | None:
    """Why nothing would be left for containers that share in a pod; None: something would."""
    if not node.serves_whole(pod):
        return None
    shortages = [cpu_shortage(pod) if node.cpu_policy is not None else None]
    if node.memory_policy is not None:
        shortages += memory_shortage(pod).values()
    return next(filter(None, shortages), None)


def part_of_bubble(decision: Decision, container: Container) -> str | None:
    """What a container has of its pod's bubble, and why; None where there is none."""
    bubble = decision.bubble
    if bubble is None or container.name not in bubble.parts:
        return None
    count, part = len(bubble.cpus), bubble.parts[container.name]
    if own := exclusive_cpus(container):
        return (
            f"{own} exclusive CPU{'s' * (own != 1)} of its pod's {count}: its own requests of CPUs "
            "and memory are its limits"
        )
    is_init = container in decision.pod.init_containers and not container.is_sidecar
    what = "no sidecar has by then" if is_init else "no other has for itself, the pod shared pool"
    return f"{part}, which of its pod's {count} CPUs {what}: {why_it_shares(container)}"


def why_it_shares(container: Container) -> str:
    """Why a container of such a pod has no CPUs for itself."""
    requests, limits = container.requests, container.limits
    for name in (CPU, MEMORY):
        if name not in requests or requests[name].is_zero:
            return f"it requests no {name} for itself"
        if limits.get(name) != requests[name]:
            return f"its {name} request {requests[name]} is not its limit {limits.get(name, '')}"
    if is_exclusive(container):
        return f"its cpu {requests[CPU]} is no whole number of CPUs"
    return "it has none for itself"


def describe_budget(pod: Pod) -> str:
    """What the pod as a whole requests: ``requests cpu 6, memory 4Gi``."""
    parts = [f"{name} {quantity}" for name, quantity in _requests(pod).items()]
    return "requests " + ", ".join(parts) if parts else "requests nothing"


def _requests(pod: Pod) -> Resources:
    return NO_RESOURCES if pod.resources is None else pod.resources.requests
