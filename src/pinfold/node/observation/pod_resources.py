"""Which resources the containers of a node have: what the kubelet's podresources API tells.

Plain values, free of that API's wire types.  Source: upstream ``apis/podresources/server_v1.go``,
the container manager's ``GetCPUs``, ``GetDevices``, ``GetMemory`` and what of each may be given
(``GetAllocatable...``), and the memory manager's ``GetAllocatableMemory`` (1.34 to 1.36).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pinfold.admission.admission import Node, NodeState
from pinfold.admission.node_status import assignable_cpus
from pinfold.core.devices.state import DeviceState
from pinfold.core.memory.memory import Block
from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.workload_api import workload_from_api
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.pod.pod_level import exclusive_cpus, exclusive_memory
from pinfold.core.values.cpuset import NO_CPUS
from pinfold.node.pod_table import PodTable
from pinfold.node.view import Reader
from pinfold.ports.podresources import (
    AllocatableResources,
    ContainerDevices,
    ContainerMemory,
    ContainerResources,
    PodResources,
)
from pinfold.ports.records import PodRecord
from pinfold.state.ledger import Ledger

_NOTHING_ASSIGNED: Final = NodeState(Ledger("none", NO_CPUS))
_NO_NODE: Final = -1
"""What some plugins give for "no NUMA node", after the kernel's ``numa_node``."""


def pod_resources(
    state: NodeState, pods: PodTable, *, pools_once: bool = False
) -> tuple[PodResources, ...]:
    """All active pods, in the order of their admission, those that are being ended too."""
    return tuple(
        resources_of(active.workload.pod, state, pools_once=pools_once)
        for active in pods.active.values()
    )


def resources_of_pod(
    state: NodeState, pods: PodTable, namespace: str, name: str, *, pools_once: bool = False
) -> PodResources | None:
    """The pod of that name: an active one before one that has ended, the newest of these.

    The kubelet, too, still tells of a pod that has ended, until the API server forgets it; its
    containers then have nothing.
    """
    for active in pods.active.values():
        if (active.record.namespace, active.record.name) == (namespace, name):
            return resources_of(active.workload.pod, state, pools_once=pools_once)
    for record in reversed([*pods.ended.values()]):
        if (record.namespace, record.name) == (namespace, name):
            return _ended(record)
    return None


def allocatable_resources(node: Node, state: NodeState) -> AllocatableResources:
    """What containers may own: CPUs, healthy devices, and memory by NUMA node.

    The CPUs are the machine's less the reserved ones.  Under policy none there are none, as with
    the kubelet: nothing can be exclusive.  CPUs that are offline are left out; a kubelet that
    starts then does not see them.  The memory is that of memory manager policy Static, in use or
    not, a block for each NUMA node and kind.
    """
    memory = node.memory_policy
    return AllocatableResources(
        assignable_cpus(node, state),
        allocatable_devices(state.devices),
        () if memory is None else _memory(memory.allocatable),
    )


def allocatable_devices(devices: DeviceState) -> tuple[ContainerDevices, ...]:
    """The healthy devices, in use or not."""
    healthy = (
        (resource, table.names(table.healthy))
        for resource in sorted(devices.inventory)
        if (table := devices.table(resource)) is not None
    )
    return tuple(
        entry for resource, ids in healthy for entry in _device_entries(devices, resource, ids)
    )


class ManagedPodResources:
    """What is in the books now; fulfils :class:`PodResourcesSource`.

    ``pools_once`` is what the kubelet's version says: see :func:`resources_of`.
    """

    def __init__(self, books: Reader, *, pools_once: bool = False) -> None:
        self._books = books
        self._pools_once = pools_once

    def pods(self) -> Sequence[PodResources]:
        """All active pods."""
        view = self._books.view
        return pod_resources(view.state, view.pods, pools_once=self._pools_once)

    def pod(self, namespace: str, name: str) -> PodResources | None:
        """One pod, also one that has ended and is remembered."""
        view, once = self._books.view, self._pools_once
        return resources_of_pod(view.state, view.pods, namespace, name, pools_once=once)

    def allocatable(self) -> AllocatableResources:
        """What containers may be given."""
        return allocatable_resources(self._books.view.node, self._books.view.state)


def resources_of(pod: Pod, state: NodeState, *, pools_once: bool = False) -> PodResources:
    """What a pod has as a whole, and what its containers have.

    ``pools_once``: what containers share with others of their pod is told of the pod alone
    (:data:`~pinfold.core.kubelet.version_rules.PODRESOURCES_TELL_POOLS_ONCE`).
    """
    memory = () if state.memory is None else state.memory.bubbles.get(pod.uid, ())
    # Init containers that come to an end are not told of, though they may have CPUs for now.
    sidecars = [container for container in pod.init_containers if container.is_sidecar]
    return PodResources(
        pod.namespace,
        pod.name,
        (
            *(_container(pod, one, state, once=pools_once, sidecar=True) for one in sidecars),
            *(_container(pod, one, state, once=pools_once) for one in pod.containers),
        ),
        state.ledger.bubble_of(pod.uid) or NO_CPUS,
        _memory(memory),
    )


def _container(
    pod: Pod, container: Container, state: NodeState, *, once: bool, sidecar: bool = False
) -> ContainerResources:
    name, devices = container.name, state.devices
    held = devices.allocations.of_container(pod.uid, name)
    memory, by_load = state.memory, state.load_driven.get(pod.uid)
    shares_cpus = once and pod.uid in state.ledger.bubbles and not exclusive_cpus(container)
    blocks = () if memory is None else memory.blocks_of(pod.uid, name) or ()
    if once and memory is not None and pod.uid in memory.bubbles:
        blocks = blocks if exclusive_memory(container) else ()
    # What comes and goes is no allocation, and whoever counts has it in the pod's requests.
    is_by_load = by_load is not None and name in by_load.names
    return ContainerResources(
        name,
        NO_CPUS if is_by_load or shares_cpus else state.ledger.cpus_of(pod.uid, name) or NO_CPUS,
        devices=tuple(
            entry
            for resource in sorted(held)
            for entry in _device_entries(devices, resource, held[resource])
        ),
        memory=_memory(blocks),
        restartable_init=sidecar,
    )


def _device_entries(
    devices: DeviceState, resource: str, ids: Iterable[str]
) -> Iterator[ContainerDevices]:
    listed = devices.last_listed(resource)
    for device_id in ids:
        device = listed.get(device_id)
        # A plugin that names a node twice gets one entry for it.
        nodes = {n: None for n in device.numa_nodes if n != _NO_NODE} if device else {}
        for node in nodes:
            yield ContainerDevices(resource, (device_id,), (node,))
        if not nodes:
            yield ContainerDevices(resource, (device_id,))


def _memory(blocks: Iterable[Block]) -> tuple[ContainerMemory, ...]:
    return tuple(
        ContainerMemory(block.type, block.size, block.numa_affinity or ()) for block in blocks
    )


def _ended(record: PodRecord) -> PodResources:
    # A record of another version may hold what is no pod today; it has ended anyway.
    unreadable = PodResources(record.namespace, record.name)
    try:
        manifest = json.loads(record.manifest)
        if not isinstance(manifest, dict):
            return unreadable
        pod = workload_from_api(manifest, admitted=True).pod
    except (PodError, ValueError):
        return unreadable
    return resources_of(pod, _NOTHING_ASSIGNED)
