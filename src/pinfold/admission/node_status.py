"""What a node has, may give and has left: in total, and for each NUMA node.

Capacity and allocatable are those of the kubelet's node status
(:mod:`pinfold.core.kubelet.node_allocatable`, and upstream ``nodestatus/setters.go`` for device
plugins); the figures of a NUMA node are those that node agents derive from the podresources API.
Source of the object's and labels' forms: the published ``NodeResourceTopology``
(``topology.node.k8s.io/v1alpha2``) and the Kubernetes API's labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState
from pinfold.admission.capacity import PODS
from pinfold.admission.model import capacity_of
from pinfold.core.devices.state import DeviceState
from pinfold.core.kubelet.node_allocatable import node_allocatable, node_capacity
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import OwnPolicies
from pinfold.core.kubelet.policy_options import CPU_MANAGER_OPTIONS
from pinfold.core.machine.kubelet_view import KubeletView
from pinfold.core.machine.machine import Distances, Machine
from pinfold.core.memory.memory import MemoryState
from pinfold.core.pod.pod import CPU, HUGEPAGES_PREFIX, MEMORY, Resources
from pinfold.core.topology_manager.policy import Policy, Scope
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Format, Quantity
from pinfold.documents import node as form

LABEL_PREFIX: Final = "pinfold.dev/"
_OPTION: Final = f"{LABEL_PREFIX}cpu-manager-policy-option."
OPTION_LABELS: Final = tuple(
    f"{_OPTION}{name}"
    for name in (
        *(
            name
            for option in CPU_MANAGER_OPTIONS.options
            for name in (option.name, *option.aliases)
        ),
        *OwnPolicies().options,
    )
)
"""The labels of all options; those that are not set are no longer the node's."""

_POLICY_NAMES: Final = {
    Policy.BEST_EFFORT.value: "BestEffort",
    Policy.RESTRICTED.value: "Restricted",
    Policy.SINGLE_NUMA_NODE.value: "SingleNUMANode",
}
_SCOPE_NAMES: Final = {Scope.CONTAINER.value: "ContainerLevel", Scope.POD.value: "PodLevel"}


class ZoneResource(Struct, frozen=True):
    """One resource of a NUMA node: all of it, what containers may own, what nobody owns yet."""

    capacity: Quantity
    allocatable: Quantity
    available: Quantity


class Zone(Struct, frozen=True):
    """A NUMA node.

    ``resources`` names only what a manager gives out by NUMA node, so memory and huge pages under
    memory manager policy Static, and devices whose plugin told their node; a device near several
    nodes counts in each.  ``distances`` are the firmware's, by node id, empty where they are not
    known; ``memory_bytes`` is what cAdvisor reads.  ``group`` are the nodes of which containers
    have memory together with this one's, itself among them.
    """

    id: int
    cpus: CPUSet
    memory_bytes: int
    distances: Mapping[int, int]
    resources: Mapping[str, ZoneResource]
    group: tuple[int, ...]


class NodeStatus(Struct, frozen=True):
    """A node's resources; ``requested`` is the sum of the active pods' requests."""

    config: NodeConfig
    capacity: Resources
    allocatable: Resources
    requested: Resources
    zones: tuple[Zone, ...]
    num_sockets: int
    exclusive: CPUSet
    """The CPUs that containers may own."""


def node_status(
    machine: Machine, view: KubeletView, config: NodeConfig, node: Node, state: NodeState
) -> NodeStatus:
    """The status of a node that :func:`pinfold.admission.model.build_node` accepted."""
    devices = state.devices
    machine_capacity = replace(
        capacity_of(machine, view),
        device_capacity=_counts({**_without_plugin(devices), **devices.capacity()}),
        device_allocatable=_counts(devices.allocatable()),
    )
    requested = {name: _amount(name, amount) for name, amount in sorted(state.requested.items())}
    return NodeStatus(
        config=config,
        capacity=node_capacity(machine_capacity, config),
        allocatable=_allocatable(node_allocatable(machine_capacity, config), node, state),
        requested={**requested, PODS: Quantity(state.pods)},
        zones=_zones(machine, view, node, state),
        num_sockets=view.topology.num_sockets,
        exclusive=assignable_cpus(node, state),
    )


def assignable_cpus(node: Node, state: NodeState) -> CPUSet:
    """The CPUs that containers may own, or do, and that are online."""
    return node.assignable(state.ledger) - state.offline


def _allocatable(resources: Resources, node: Node, state: NodeState) -> Resources:
    if node.smt is None or CPU not in resources:
        return resources
    configured = resources[CPU].milli_value()
    left = node.smt.allocatable(configured, len(state.ledger.idle_siblings))
    return resources if left == configured else {**resources, CPU: _amount(CPU, left)}


def node_status_document(status: NodeStatus) -> form.Node:
    """The document: amounts are quantities as the Kubernetes API writes them."""
    config = status.config
    return form.Node(
        capacity=_texts(status.capacity),
        allocatable=_texts(status.allocatable),
        requested=_texts(status.requested),
        cpu_manager_policy=config.cpu_manager_policy,
        memory_manager_policy=config.memory_manager_policy,
        topology_manager_policy=config.topology_manager_policy,
        topology_manager_scope=config.topology_manager_scope,
        zones=[
            form.Zone(
                id=zone.id,
                cpus=str(zone.cpus),
                memory_bytes=zone.memory_bytes,
                distances={str(node): distance for node, distance in zone.distances.items()},
                group=zone.group,
                resources={
                    name: form.ZoneResource(
                        capacity=resource.capacity.canonical(),
                        allocatable=resource.allocatable.canonical(),
                        available=resource.available.canonical(),
                    )
                    for name, resource in zone.resources.items()
                },
            )
            for zone in status.zones
        ],
    )


def node_resource_topology(status: NodeStatus, node_name: str) -> dict[str, Any]:
    """The ``NodeResourceTopology`` object for schedulers that look at NUMA nodes.

    ``topologyPolicies`` is deprecated and still what older schedulers read; newer ones read the
    attributes.  Under policy none no NUMA node has CPUs to give, and so names none.
    """
    config = status.config
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": node_name},
        "topologyPolicies": [_topology_policy(config)],
        "attributes": [
            {"name": "topologyManagerPolicy", "value": config.topology_manager_policy},
            {"name": "topologyManagerScope", "value": config.topology_manager_scope},
        ],
        "zones": [_zone_object(zone) for zone in status.zones],
    }


def node_labels(status: NodeStatus) -> dict[str, str]:
    """Labels by which pods can choose nodes with a ``nodeSelector``; they hold for long."""
    config = status.config
    values = {
        "cpu-manager-policy": config.cpu_manager_policy,
        "topology-manager-policy": config.topology_manager_policy,
        "topology-manager-scope": config.topology_manager_scope,
        "numa-nodes": str(len(status.zones)),
        "sockets": str(status.num_sockets),
        "exclusive-cpus": str(len(status.exclusive)),
    }
    return {f"{LABEL_PREFIX}{name}": value for name, value in values.items()} | {
        f"{_OPTION}{name}": value for name, value in config.all_options.items()
    }


def _zones(machine: Machine, view: KubeletView, node: Node, state: NodeState) -> tuple[Zone, ...]:
    may_be_owned = assignable_cpus(node, state)
    zones = []
    for number in sorted(view.numa_nodes):
        cpus = CPUSet(cpu for cpu, info in view.topology.by_cpu.items() if info.numa_node == number)
        resources: dict[str, ZoneResource] = {}
        if node.cpu_policy is not None and cpus:
            allocatable = cpus & may_be_owned
            resources[CPU] = ZoneResource(
                Quantity(len(cpus)),
                Quantity(len(allocatable)),
                Quantity(len(allocatable - state.ledger.exclusive)),
            )
        if state.memory is not None:
            resources |= _zone_memory(state.memory, number)
        resources |= _zone_devices(state.devices, number)
        zones.append(
            Zone(
                number,
                cpus,
                view.memory.get(number, 0),
                _distances(machine.distances, number),
                resources,
                _group(state.memory, number),
            )
        )
    return tuple(zones)


def _group(memory: MemoryState | None, node: int) -> tuple[int, ...]:
    cells = memory.machine[node].cells if memory is not None and node in memory.machine else None
    return tuple(sorted(cells or (node,)))


def _zone_memory(memory: MemoryState, node: int) -> Iterator[tuple[str, ZoneResource]]:
    tables = memory.machine[node].memory_map if node in memory.machine else None
    for name, table in sorted((tables or {}).items()):
        if table is not None and table.total:
            sizes = (table.total, table.allocatable, table.free)
            yield name, ZoneResource(*(Quantity(size, 0, Format.BINARY_SI) for size in sizes))


def _zone_devices(devices: DeviceState, node: int) -> Iterator[tuple[str, ZoneResource]]:
    for name in sorted(devices.inventory):
        table = devices.table(name)
        if table is None:
            continue
        here = 0
        for locality in table.localities:
            if locality.nodes >> node & 1:
                here |= locality.devices
        healthy = here & table.healthy
        free = healthy & ~table.mask(devices.in_use(name))
        if here:
            sizes = (here.bit_count(), healthy.bit_count(), free.bit_count())
            yield name, ZoneResource(*map(Quantity, sizes))


def _without_plugin(devices: DeviceState) -> dict[str, int]:
    """Resources that a plugin once offered: a kubelet goes on to name them, with nothing there."""
    held = {r for pod in devices.allocations.pods.values() for c in pod.values() for r in c}
    return dict.fromkeys(sorted(held | devices.gone.keys()), 0)


def _counts(amounts: Mapping[str, int]) -> Resources:
    return {name: Quantity(amount) for name, amount in sorted(amounts.items())}


def _distances(distances: Distances | None, node: int) -> dict[int, int]:
    row = () if distances is None else distances.rows.get(node, ())
    # A row is the kernel's: one value for each node that is there, in the order of their ids.
    nodes = () if distances is None else distances.nodes
    return dict(zip(nodes, row, strict=True)) if len(nodes) == len(row) else {}


def _zone_object(zone: Zone) -> dict[str, Any]:
    found: dict[str, Any] = {"name": _zone_name(zone.id), "type": "Node"}
    if zone.distances:
        found["costs"] = [
            {"name": _zone_name(node), "value": distance}
            for node, distance in zone.distances.items()
        ]
    if zone.resources:
        found["resources"] = [
            {
                "name": name,
                "capacity": resource.capacity.canonical(),
                "allocatable": resource.allocatable.canonical(),
                "available": resource.available.canonical(),
            }
            for name, resource in zone.resources.items()
        ]
    return found


def _zone_name(node: int) -> str:
    return f"node-{node}"


def _topology_policy(config: NodeConfig) -> str:
    policy = _POLICY_NAMES.get(config.topology_manager_policy)
    return "None" if policy is None else policy + _SCOPE_NAMES[config.topology_manager_scope]


def _amount(name: str, amount: int) -> Quantity:
    if name == CPU:
        return Quantity(amount, -3)
    binary = name == MEMORY or name.startswith(HUGEPAGES_PREFIX)
    return Quantity(amount, 0, Format.BINARY_SI) if binary else Quantity(amount)


def _texts(resources: Resources) -> dict[str, str]:
    return {name: quantity.canonical() for name, quantity in resources.items()}
