"""Which devices a kubelet has given to the containers of a pod, and where these are.

A kubelet's device manager has chosen before a container is created, so nothing is given here: its
choice binds, and CPUs and memory are brought near it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from pinfold.core.devices.devices import Device
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.topology_manager.hints import (
    MAX_NUMA_ID,
    ResourceHints,
    TopologyHint,
    iter_numa_masks,
    numa_mask,
)
from pinfold.ports.podresources import PodDevices

MANY_NODES: Final = 8
"""NUMA nodes up to which every combination is looked at, as a kubelet does."""


class GivenDevices:
    """The hint provider of devices that are given already; it allocates nothing.

    The hints are those that a kubelet's device manager has for a container that is admitted again:
    each combination of NUMA nodes in which every device is near one, the smallest preferred.

    Args:
        devices: of the pod.
        nodes: the machine's NUMA nodes, in its order; devices elsewhere are nowhere.
    """

    def __init__(self, devices: PodDevices, nodes: Sequence[int]) -> None:
        self._devices = devices
        self._nodes = tuple(node for node in nodes if node <= MAX_NUMA_ID)

    def locates(self, container: Container) -> bool:
        """Whether a container has a device of which it is known where it is."""
        return any(hints for hints in self._hints([container]).values())

    def get_topology_hints(self, pod: Pod, container: Container) -> ResourceHints | None:
        """The NUMA nodes of a container's devices, by resource."""
        del pod
        return self._hints([container])

    def get_pod_topology_hints(self, pod: Pod) -> ResourceHints | None:
        """The NUMA nodes of all devices of the pod, by resource."""
        return self._hints(pod.all_containers)

    def allocate(self, pod: Pod, container: Container, affinity: TopologyHint) -> None:
        """Nothing: the kubelet has."""

    def allocate_pod(self, pod: Pod, affinity: TopologyHint) -> None:
        """Nothing, as for a container."""

    def _hints(self, containers: Iterable[Container]) -> dict[str, list[TopologyHint] | None]:
        places: dict[str, list[int]] = {}
        for container in containers:
            for resource, devices in self._devices.get(container.name, {}).items():
                places.setdefault(resource, []).extend(self._nodes_of(one) for one in devices)
        return {name: self._hints_of(places[name]) for name in sorted(places)}

    def _nodes_of(self, device: Device) -> int:
        return numa_mask(node for node in device.numa_nodes if node in self._nodes)

    def _hints_of(self, places: Iterable[int]) -> list[TopologyHint] | None:
        located = {place for place in places if place}
        if not located:
            return None
        if len(self._nodes) > MANY_NODES:
            everywhere = 0
            for place in located:
                everywhere |= place
            return [TopologyHint(everywhere, preferred=True)]
        masks = [mask for mask in _combinations(self._nodes) if all(mask & at for at in located)]
        # By size: the first is one of the smallest.
        least = masks[0].bit_count()
        return [TopologyHint(mask, mask.bit_count() == least) for mask in masks]


@lru_cache(maxsize=4)
def _combinations(nodes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(iter_numa_masks(nodes))
