"""The messages of the device plugin API, from and to :mod:`pinfold.core.devices.devices`.

Source: upstream ``apis/deviceplugin/v1beta1/api.proto`` and ``constants.go``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from google.protobuf.message import DecodeError
from msgspec import Struct

from pinfold.adapters.deviceplugin import deviceplugin_pb2 as pb
from pinfold.core.devices.devices import Device, DeviceMount, DeviceNode, DeviceRunOptions
from pinfold.ports.devices import DevicePluginError

HEALTHY: Final = "Healthy"
"""Any other word is an unhealthy device."""

HIGHEST_NUMA_NODE: Final = 63
"""What fits into the kubelet's masks of NUMA nodes."""


class Listing(Struct, frozen=True):
    """What one message of ListAndWatch lists, and what of it was not taken as it was."""

    devices: Mapping[str, Device]
    problems: Mapping[str, str]
    """Kind of problem -> what to tell about it."""


def listing(data: bytes, before: Mapping[str, Device]) -> Listing:
    """Read a ``ListAndWatchResponse``; devices that are as ``before`` are the same objects.

    A device without an id, or with a NUL in it, is left out.  Of devices with the same id the last
    one counts, as with the kubelet.  A NUMA node below 0 (sysfs says -1 where there is none) or
    above 63 is no locality.

    Raises:
        DecodeError: the bytes are no such message.
    """
    found: dict[str, Device] = {}
    problems: dict[str, str] = {}
    topologies: dict[bytes, tuple[int, ...]] = {b"": ()}
    total = 0
    for raw in pb.ListedDevices.FromString(data).devices:
        device_id = raw.ID
        nodes = topologies.get(raw.topology)
        if nodes is None:
            nodes = topologies[raw.topology] = _nodes(device_id, raw.topology, problems)
        if not device_id or "\0" in device_id:
            problems.setdefault("id", f"a device with the id {device_id!r} is left out")
            continue
        total += 1
        healthy = raw.health == HEALTHY
        known = before.get(device_id)
        if known is None or known.healthy is not healthy or known.numa_nodes != nodes:
            known = Device(device_id, healthy, nodes)
        found[device_id] = known
    if total != len(found):
        problems["repeated"] = (
            f"{total - len(found)} of {total} devices repeat the id of another; the last one counts"
        )
    return Listing(MappingProxyType(found), problems)


def _nodes(device_id: str, topology: bytes, problems: dict[str, str]) -> tuple[int, ...]:
    nodes = [node.ID for node in pb.TopologyInfo.FromString(topology).nodes]
    usable = {node for node in nodes if 0 <= node <= HIGHEST_NUMA_NODE}
    for node in nodes:
        if node not in usable:
            problems.setdefault(
                "NUMA", f"device {device_id!r} names NUMA node {node}, which is taken for none"
            )
    return tuple(sorted(usable))


def run_options(response: bytes) -> DeviceRunOptions:
    """Read a serialized ``ContainerAllocateResponse``; fields that are not known are skipped.

    Raises:
        DevicePluginError: it is none.
    """
    try:
        read = pb.ContainerAllocateResponse.FromString(response)
    except DecodeError:
        raise DevicePluginError(
            f"{len(response)} bytes that are no ContainerAllocateResponse of a device plugin",
            "delete the pod that has the devices, and make it anew",
        ) from None
    return DeviceRunOptions(
        envs=MappingProxyType(dict(sorted(read.envs.items()))),
        mounts=tuple(
            DeviceMount(mount.container_path, mount.host_path, mount.read_only)
            for mount in read.mounts
        ),
        devices=tuple(
            DeviceNode(node.container_path, node.host_path, node.permissions)
            for node in read.devices
        ),
        annotations=MappingProxyType(dict(sorted(read.annotations.items()))),
        cdi_devices=tuple(device.name for device in read.cdi_devices),
    )


def response_of(options: DeviceRunOptions) -> bytes:
    """The serialized ``ContainerAllocateResponse`` that :func:`run_options` reads as ``options``.

    Equal options give equal bytes.
    """
    return pb.ContainerAllocateResponse(
        envs=options.envs,
        mounts=[
            pb.Mount(
                container_path=mount.container_path,
                host_path=mount.host_path,
                read_only=mount.read_only,
            )
            for mount in options.mounts
        ],
        devices=[
            pb.DeviceSpec(
                container_path=node.container_path,
                host_path=node.host_path,
                permissions=node.permissions,
            )
            for node in options.devices
        ],
        annotations=options.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in options.cdi_devices],
    ).SerializeToString(deterministic=True)
