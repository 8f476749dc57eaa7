"""What the managers of a node have to find for a pod, and what is left for it on each NUMA node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pinfold.admission.admission import Node, NodeState
from pinfold.core.machine.kubelet_view import KubeletView
from pinfold.core.pod.pod import (
    CPU,
    MEMORY,
    Container,
    Pod,
    QOSClass,
    Resources,
    container_limits,
    container_requests,
    guaranteed_cpus,
    is_hugepages,
    pod_guaranteed_cpus,
)
from pinfold.core.pod.pod_level import (
    cpu_budget,
    exclusive_cpus,
    exclusive_memory,
    memory_budget,
    takes_part,
)
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Format, Quantity

_MIB: Final = 1 << 20
_SHOWN_NODES: Final = 8

Wants = Mapping[str, int]
"""Resource -> whole CPUs, bytes, or devices."""


def wants(node: Node, state: NodeState, pod: Pod, container: Container | None) -> Wants:
    """What a container wants to itself, or the whole pod (None): what hints are made for.

    A pod that is served by resources of its own wants these as a whole.
    """
    found: dict[str, int] = {}
    requests: Resources = container_requests(pod) if container is None else container.requests
    limits: Resources = container_limits(pod) if container is None else container.limits
    cpus = pod_guaranteed_cpus(pod) if container is None else guaranteed_cpus(pod, container)
    memory = memory_wants(requests)
    is_served = not pod.has_pod_level_resources
    if node.pod_level and takes_part(pod):
        is_served = True
        cpus = cpu_budget(pod) if container is None else exclusive_cpus(container)
        memory = memory_budget(pod) if container is None else exclusive_memory(container)
    if is_served:
        if cpus and node.cpu_policy is not None:
            found[CPU] = cpus
        if state.memory is not None and pod.qos is QOSClass.GUARANTEED:
            found |= memory
    for name, quantity in sorted(limits.items()):
        if name in state.devices.inventory or state.devices.in_use(name):
            found[name] = quantity.value()
    return {name: amount for name, amount in found.items() if amount}


def memory_wants(requests: Resources) -> dict[str, int]:
    """The memory and the huge pages among some requests, in bytes."""
    return {
        name: quantity.value() for name, quantity in sorted(requests.items()) if is_memory(name)
    }


def is_memory(resource: str) -> bool:
    """Whether the memory manager hands it out."""
    return resource == MEMORY or is_hugepages(resource)


def describe_wants(wanted: Wants) -> str:
    """``4 CPUs, 8Gi memory and 2 example.com/gpu``."""
    parts = [describe_amount(name, amount) for name, amount in wanted.items()]
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def describe_amount(resource: str, amount: int) -> str:
    """``4 CPUs``, ``8Gi memory``, ``2 example.com/gpu``."""
    if resource == CPU:
        return f"{amount} CPU{'s' * (amount != 1)}"
    return f"{_number(resource, amount)} {resource}"


def describe_left(view: KubeletView, node: Node, state: NodeState, wanted: tuple[str, int]) -> str:
    """What is left where a resource is wanted: ``3 free at NUMA node 0, 7 at 1``.

    "" where nobody counts.
    """
    resource, amount = wanted
    left = free_by_node(view, node, state, resource)
    if not left:
        return ""
    parts = [
        f"{_number(resource, free)}{' free at NUMA node' if at == 0 else ' at'} {id_}"
        for at, (id_, free) in enumerate(sorted(left.items())[:_SHOWN_NODES])
    ]
    if len(left) > _SHOWN_NODES:
        parts.append(f"{_number(resource, sum(left.values()))} at all {len(left)} together")
    text = ", ".join(parts)
    alone = _serving_alone(state) if is_memory(resource) else CPUSet()
    if alone and amount > max(left.values()):
        text += (
            f" (memory comes from several nodes only where none of them serves a container alone, "
            f"as {alone} {'do' if len(alone) > 1 else 'does'})"
        )
    return text


def _serving_alone(state: NodeState) -> CPUSet:
    """The NUMA nodes that containers have memory of without any other node."""
    machine = {} if state.memory is None else state.memory.machine
    return CPUSet(
        id_
        for id_, node in machine.items()
        if node.number_of_assignments and len(node.cells or ()) < 2
    )


def free_by_node(view: KubeletView, node: Node, state: NodeState, resource: str) -> dict[int, int]:
    """What of a resource each NUMA node can still give; nothing where nobody counts."""
    if resource == CPU:
        if node.cpu_policy is None:
            return {}
        free = state.ledger.default & node.cpu_policy.assignable
        free -= state.offline
        return {
            id_: len(free & CPUSet.from_mask(mask))
            for id_, mask in view.topology.numa_nodes.items()
        }
    if is_memory(resource):
        machine = {} if state.memory is None else state.memory.machine
        return {id_: one.table(resource).free for id_, one in machine.items()}
    table = state.devices.table(resource)
    if table is None or not table.has_topology:
        return {}
    free_devices = table.healthy & ~table.mask(state.devices.in_use(resource))
    return {
        id_: sum(
            (local.devices & free_devices).bit_count()
            for local in table.localities
            if local.nodes >> id_ & 1
        )
        for id_ in view.numa_nodes
    }


def _number(resource: str, amount: int) -> str:
    if not is_memory(resource):
        return str(amount)
    return str(Quantity(amount // _MIB * _MIB if amount >= _MIB else amount, 0, Format.BINARY_SI))
