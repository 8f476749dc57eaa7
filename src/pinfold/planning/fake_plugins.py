"""Device plugins in memory, for simulations and tests; see :mod:`pinfold.planning.fakes`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from pinfold.core.devices.devices import (
    Device,
    DeviceInventory,
    DeviceResource,
    DeviceRunOptions,
    PreferenceQuestion,
)
from pinfold.planning.fake_cgroups import Faults
from pinfold.ports.devices import DevicePluginError
from pinfold.ports.errors import PortError
from pinfold.ports.kubernetes import NotFoundError
from pinfold.ports.podresources import NO_DEVICES, Devices, PodDevices, PodName


class FakeDevicePlugins:
    """Plugins that give an environment variable for each resource, and fail when told to.

    ``calls`` are the allocations that were agreed to, resource and ids; ``seconds`` is how long
    each takes to be answered.
    """

    def __init__(self) -> None:
        self.faults = Faults()
        self.seconds = 0.0
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self._inventory: dict[str, DeviceResource] = {}
        self._subscribers: list[Callable[[DeviceInventory], None]] = []

    def put(self, resource: DeviceResource) -> None:
        """Let a plugin register, or list other devices."""
        if self._inventory.get(resource.name) == resource:
            return
        self._inventory = {**self._inventory, resource.name: resource}
        for changed in self._subscribers:
            changed(self._inventory)

    def put_devices(self, resource: str, *devices: Device) -> None:
        """Let a plugin list devices, without any option."""
        self.put(DeviceResource(resource, {device.id: device for device in devices}))

    def set_health(self, resource: str, device_id: str, *, healthy: bool) -> None:
        """Let a device fail, or recover."""
        listed = self._inventory[resource]
        device = replace(listed.devices[device_id], healthy=healthy)
        self.put(replace(listed, devices={**listed.devices, device_id: device}))

    def disconnect(self, resource: str) -> None:
        """Let a plugin go away."""
        self.put(replace(self._inventory[resource], connected=False))

    def inventory(self) -> DeviceInventory:
        """See :class:`pinfold.ports.devices.DevicePlugins`."""
        return self._inventory

    def subscribe(self, changed: Callable[[DeviceInventory], None]) -> None:
        """See :class:`pinfold.ports.devices.DevicePlugins`."""
        self._subscribers.append(changed)

    async def preferred_allocation(self, question: PreferenceQuestion) -> Sequence[str]:
        """The last of the devices that are free, so that it is seen that the plugin was asked."""
        self._check(question.resource)
        others = [one for one in question.available if one not in question.must_include]
        missing = question.size - len(question.must_include)
        return (*question.must_include, *others[len(others) - missing :])

    async def allocate(self, resource: str, device_ids: Sequence[str]) -> bytes:
        """See :class:`pinfold.ports.devices.DevicePlugins`."""
        await asyncio.sleep(self.seconds)
        self._check(resource)
        self.calls.append((resource, tuple(device_ids)))
        return msgspec.json.encode({resource: list(device_ids)})

    async def pre_start(self, resource: str, device_ids: Sequence[str]) -> None:
        """See :class:`pinfold.ports.devices.DevicePlugins`."""
        del device_ids
        self._check(resource)

    def options(self, response: bytes) -> DeviceRunOptions:
        """See :class:`pinfold.ports.devices.DevicePlugins`."""
        if not response:
            return DeviceRunOptions()
        try:
            given = msgspec.json.decode(response, type=dict[str, list[str]])
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise DevicePluginError(f"no answer of a fake plugin: {response!r}") from None
        names = {name: name.rpartition("/")[2].upper().replace("-", "_") for name in given}
        return DeviceRunOptions({names[name]: ",".join(ids) for name, ids in given.items()})

    def _check(self, resource: str) -> None:
        listed = self._inventory.get(resource)
        if listed is None or not listed.connected:
            raise DevicePluginError(f"no plugin offers {resource}")
        if self.faults.due():
            raise DevicePluginError(f"the plugin of {resource} failed")


class FakeKubeletDevices:
    """The :class:`pinfold.ports.podresources.PodDevicesSource` of a node in memory.

    ``delay`` is how long an answer takes, in seconds; ``asked`` what was asked for, None for all.
    """

    def __init__(self) -> None:
        self.given: dict[PodName, dict[str, dict[str, tuple[Device, ...]]]] = {}
        self.healthy: dict[str, tuple[Device, ...]] = {}
        self.delay = 0.0
        self.faults = Faults()
        self.asked: list[PodName | None] = []

    def give(self, pod: str, container: str, resource: str, **nodes: int) -> None:
        """Give devices to a container of a pod in namespace ``default``: id -> NUMA node."""
        devices = tuple(Device(id_, numa_nodes=(node,)) for id_, node in nodes.items())
        self.given.setdefault(("default", pod), {}).setdefault(container, {})[resource] = devices

    async def pod(self, namespace: str, name: str, within: float) -> PodDevices:
        """See :class:`pinfold.ports.podresources.PodDevicesSource`."""
        await self._answer((namespace, name), within)
        return self.given.get((namespace, name), NO_DEVICES)

    async def pods(self, within: float) -> Mapping[PodName, PodDevices]:
        """See :class:`pinfold.ports.podresources.PodDevicesSource`."""
        await self._answer(None, within)
        return self.given

    async def allocatable(self, within: float) -> Devices:
        """See :class:`pinfold.ports.podresources.PodDevicesSource`."""
        await self._answer(None, within)
        return self.healthy

    async def _answer(self, about: PodName | None, within: float) -> None:
        self.asked.append(about)
        if self.faults.due():
            raise PortError("the kubelet does not answer", "injected")
        await asyncio.sleep(min(self.delay, within))
        if self.delay > within:
            raise PortError(f"no answer within {within:g} s")


class FakePodSource:
    """The :class:`pinfold.node.nri.kubelet_specs.PodSource` of a cluster in memory.

    ``delay`` is how long an answer takes, in seconds; ``asked`` are the names asked for.
    """

    def __init__(self) -> None:
        self.pods: dict[PodName, Mapping[str, Any]] = {}
        self.delay = 0.0
        self.faults = Faults()
        self.asked: list[str] = []

    def put(self, manifest: Mapping[str, Any]) -> None:
        """Have a pod, in the namespace ``default``."""
        self.pods["default", manifest["metadata"]["name"]] = manifest

    async def get_pod(self, namespace: str, name: str) -> Mapping[str, Any]:
        """See :class:`pinfold.node.nri.kubelet_specs.PodSource`."""
        self.asked.append(name)
        if self.faults.due():
            raise PortError("the API server does not answer", "injected")
        await asyncio.sleep(self.delay)
        if (namespace, name) not in self.pods:
            raise NotFoundError(f"pods {name!r} not found", status=404)
        return self.pods[namespace, name]
