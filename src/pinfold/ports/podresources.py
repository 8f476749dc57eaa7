"""Which resources containers have, as the kubelet's podresources API tells: told, and asked for.

Plain values, free of that API's wire types.  Source: upstream ``apis/podresources/server_v1.go``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from pinfold.core.devices.devices import Device
from pinfold.core.values.cpuset import NO_CPUS, CPUSet


class ContainerDevices(Struct, frozen=True):
    """Devices of one resource; the kubelet makes an entry for each device and NUMA node.

    So a device that is near two nodes is told of twice.  ``numa_nodes`` is None where the device
    plugin told no topology.
    """

    resource_name: str
    device_ids: tuple[str, ...]
    numa_nodes: tuple[int, ...] | None = None


class ContainerMemory(Struct, frozen=True):
    """A block of the memory manager: ``size`` bytes, ``memory`` or ``hugepages-*``."""

    memory_type: str
    size: int
    numa_nodes: tuple[int, ...] = ()


class ContainerResources(Struct, frozen=True):
    """What one container has; ``cpus`` are its exclusive CPUs, none for the shared pool.

    ``restartable_init`` marks a sidecar, of which v1alpha1 does not tell.
    """

    name: str
    cpus: CPUSet = NO_CPUS
    devices: tuple[ContainerDevices, ...] = ()
    memory: tuple[ContainerMemory, ...] = ()
    restartable_init: bool = False


class PodResources(Struct, frozen=True):
    """A pod's sidecars, then its containers, in the manifest's order.

    ``cpus`` and ``memory`` are what the pod has as a whole, of which its containers have parts;
    nothing where each container has its own.
    """

    namespace: str
    name: str
    containers: tuple[ContainerResources, ...] = ()
    cpus: CPUSet = NO_CPUS
    memory: tuple[ContainerMemory, ...] = ()


class AllocatableResources(Struct, frozen=True):
    """What containers may be given at all, whether or not some have it now."""

    cpus: CPUSet = NO_CPUS
    devices: tuple[ContainerDevices, ...] = ()
    memory: tuple[ContainerMemory, ...] = ()


class PodResourcesSource(Protocol):
    """Who knows; all methods answer from memory, at once."""

    def pods(self) -> Sequence[PodResources]:
        """All active pods."""

    def pod(self, namespace: str, name: str) -> PodResources | None:
        """One pod, also one that has ended and is remembered; None: there is no such pod."""

    def allocatable(self) -> AllocatableResources:
        """What containers may be given."""


Devices: TypeAlias = Mapping[str, tuple[Device, ...]]
"""Resource name -> the devices of it that a container has."""

PodDevices: TypeAlias = Mapping[str, Devices]
"""Container name -> its devices; a container without any need not be there."""

PodName: TypeAlias = tuple[str, str]
"""Namespace and name."""

NO_DEVICES: Final[PodDevices] = MappingProxyType({})


class PodDevicesSource(Protocol):
    """A kubelet that can be asked."""

    async def pod(self, namespace: str, name: str, within: float) -> PodDevices:
        """The devices of one pod; none of a pod that is not known.

        Raises:
            PortError: no answer within so many seconds, or none that makes sense.
        """

    async def pods(self, within: float) -> Mapping[PodName, PodDevices]:
        """The devices of all pods.

        Raises:
            PortError: no answer within so many seconds, or none that makes sense.
        """

    async def allocatable(self, within: float) -> Devices:
        """The devices that pods may be given, or have: all that are healthy.

        Raises:
            PortError: no answer within so many seconds, or none that makes sense.
        """
