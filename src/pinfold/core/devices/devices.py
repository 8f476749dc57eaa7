"""Devices that a device plugin offers, and what an answer to Allocate asks of a container.

Values only.  Source: the device plugin API ``v1beta1`` (``Device``, ``DevicePluginOptions``,
``ContainerAllocateResponse``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from pinfold.core.machine.machine import Machine

_NO_TEXTS: Final[Mapping[str, str]] = MappingProxyType({})
_NO_DEVICES: Final[Mapping[str, Device]] = MappingProxyType({})


class Device(Struct, frozen=True):
    """One device of a resource.

    ``numa_nodes`` is empty where the plugin names no locality, or one without any node: with the
    latter (``located_nowhere``) a kubelet aligns nothing that takes the device over from an init
    container.
    """

    id: str
    healthy: bool = True
    numa_nodes: tuple[int, ...] = ()
    located_nowhere: bool = False


class DeviceResource(Struct, frozen=True):
    """One extended resource as its plugin lists it.

    ``devices`` is by id.  ``pre_start_required`` and ``preferred_allocation`` are the plugin's
    options; ``connected`` is false while the plugin is gone, when none of its devices counts as
    healthy.
    """

    name: str
    devices: Mapping[str, Device] = _NO_DEVICES
    pre_start_required: bool = False
    preferred_allocation: bool = False
    connected: bool = True


DeviceInventory = Mapping[str, DeviceResource]
"""Resource name -> the resource, for every plugin that is registered or not yet given up."""


def devices_of_machine(machine: Machine) -> DeviceInventory:
    """What the device plugins of a machine would list that is described by a short form.

    A device is called as its PCI function is.
    """
    found: dict[str, dict[str, Device]] = {}
    for function in machine.pci:
        if function.resource is not None:
            id_ = function.names[0] if function.names else function.address
            nodes = () if function.numa_node < 0 else (function.numa_node,)
            found.setdefault(function.resource, {})[id_] = Device(id_, numa_nodes=nodes)
    return {name: DeviceResource(name, devices) for name, devices in found.items()}


class DeviceMount(Struct, frozen=True):
    """A host path that the container sees."""

    container_path: str
    host_path: str
    read_only: bool = False


class DeviceNode(Struct, frozen=True):
    """A device node that the container may use; ``permissions`` of ``r``, ``w``, ``m``."""

    container_path: str
    host_path: str
    permissions: str


class DeviceRunOptions(Struct, frozen=True):
    """What containers with some devices are started with (``ContainerAllocateResponse``).

    ``cdi_devices`` are fully qualified names of the Container Device Interface.
    """

    envs: Mapping[str, str] = _NO_TEXTS
    mounts: tuple[DeviceMount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: Mapping[str, str] = _NO_TEXTS
    cdi_devices: tuple[str, ...] = ()


class PreferenceQuestion(Struct, frozen=True):
    """What a plugin is asked: which ``size`` of the devices it would rather give away.

    ``available`` and ``must_include`` are ids in natural order (``gpu-2`` before ``gpu-10``); the
    latter are among the former.
    """

    resource: str
    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int
