"""Which devices a kubelet has given to the containers of a pod, and where these are.

A kubelet's device manager has chosen before a container is created, so nothing is given here: its
choice binds, and CPUs and memory are brought near it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from pinfold.core.devices import Device
from pinfold.core.hints import MAX_NUMA_ID, ResourceHints, TopologyHint, iter_numa_masks, numa_mask
from pinfold.core.pod import Container, Pod
from pinfold.node.port_errors import PortError

LIMIT: Final = 0.3
"""Seconds that a kubelet has for an answer: a runtime drops a plugin that takes two (NRI)."""

MANY_NODES: Final = 8
"""NUMA nodes up to which every combination is looked at, as a kubelet does."""

Devices: TypeAlias = Mapping[str, tuple[Device, ...]]
"""Resource name -> the devices of it that a container has."""

PodDevices: TypeAlias = Mapping[str, Devices]
"""Container name -> its devices; a container without any need not be there."""

PodName: TypeAlias = tuple[str, str]
"""Namespace and name."""

NO_DEVICES: Final[PodDevices] = MappingProxyType({})

_T = TypeVar("_T")


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


class KubeletDevices:
    """Asks a kubelet for devices; where it does not answer, there are none.

    A container must not wait for a kubelet, nor fail because of one.

    Args:
        source: the kubelet; None: nobody is asked.
        report: told why there is no answer, once as long as it stays the same.
        limit: seconds that an answer may take.
    """

    def __init__(
        self,
        source: PodDevicesSource | None,
        report: Callable[[str | None, str], None],
        *,
        limit: float = LIMIT,
    ) -> None:
        self._source = source
        self._report = report
        self._limit = limit
        self.asked = 0
        self.unanswered = 0
        self.problem = ""
        """Why the last question had no answer; "" when it had."""

    async def of_pod(self, namespace: str, name: str) -> PodDevices:
        """The devices of one pod."""
        if self._source is None:
            return NO_DEVICES
        try:
            answer = await self._within(self._source.pod(namespace, name, self._limit))
        except PortError as error:
            self._failed(f"{namespace}/{name}", error)
            return NO_DEVICES
        self.problem = ""
        return answer

    async def of_all(self) -> Mapping[PodName, PodDevices]:
        """The devices of all pods."""
        if self._source is None:
            return {}
        try:
            answer = await self._within(self._source.pods(self._limit))
        except PortError as error:
            self._failed(None, error)
            return {}
        self.problem = ""
        return answer

    def about(self) -> Mapping[str, Any]:
        """What ``/v1/status`` says of it."""
        return {"asked": self.asked, "unanswered": self.unanswered, "problem": self.problem}

    async def _within(self, question: Awaitable[_T]) -> _T:
        self.asked += 1
        try:
            # Its own time limit should do; this one holds for every source.
            async with asyncio.timeout(2 * self._limit):
                return await question
        except TimeoutError:
            raise PortError(f"no answer within {2 * self._limit:g} s") from None

    def _failed(self, pod: str | None, error: PortError) -> None:
        self.unanswered += 1
        if self.problem != str(error):
            self.problem = str(error)
            self._report(
                pod, f"CPUs are not aligned with devices, as the kubelet does not say any: {error}"
            )


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
