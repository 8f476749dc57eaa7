"""A kubelet that says which devices it has given to pods, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pinfold.core.devices.devices import Device
from pinfold.planning.fake_cgroups import Faults
from pinfold.ports.errors import PortError
from pinfold.ports.podresources import NO_DEVICES, PodDevices, PodName


class FakeKubeletDevices:
    """The :class:`pinfold.ports.podresources.PodDevicesSource` of a node in memory.

    ``delay`` is how long an answer takes, in seconds; ``asked`` what was asked for, None for all.
    """

    def __init__(self) -> None:
        self.given: dict[PodName, dict[str, dict[str, tuple[Device, ...]]]] = {}
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

    async def _answer(self, about: PodName | None, within: float) -> None:
        self.asked.append(about)
        if self.faults.due():
            raise PortError("the kubelet does not answer", "injected")
        await asyncio.sleep(min(self.delay, within))
        if self.delay > within:
            raise PortError(f"no answer within {within:g} s")
