"""What an agent publishes of its node as ComputeResources: devices, CPUs, memory, huge pages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from pinfold.adapters.hugetlb import KeptPages
from pinfold.adapters.kubernetes.objects import KubeObjects
from pinfold.adapters.machines.source import open_machine
from pinfold.agent.api_access import access_of
from pinfold.agent.loops.runnables import Runnable
from pinfold.agent.node_name import node_name
from pinfold.agent.reports import report_of_node
from pinfold.cluster.classes.publishing import Owner, Publisher
from pinfold.config.agent import AgentConfig
from pinfold.core.classes.compute_resource import ComputeResource, machine_resources
from pinfold.core.classes.published import node_labels
from pinfold.core.devices.classes import DeviceClasses
from pinfold.core.devices.node_devices import NodeDevices, devices_of_kubelet, devices_of_state
from pinfold.core.machine.machine import Machine
from pinfold.node.hugepage_changes import with_pages
from pinfold.node.view import Reader
from pinfold.ports.errors import PortError
from pinfold.ports.kubernetes import Kubernetes
from pinfold.ports.podresources import PodDevicesSource
from pinfold.retry.backoff import Backoff

PERIOD: Final = 10.0
"""Seconds between two looks at the node; the API server is told of what has changed only."""

LIMIT: Final = 5.0
"""Seconds for a kubelet's answer, for which nobody waits."""

_FIRST_RETRY: Final = 1.0
_LONGEST_RETRY: Final = 60.0

Devices = Callable[[], Awaitable[NodeDevices]]
"""The devices of the node now; raises PortError."""


class MachineNow:
    """This machine, with the huge pages that it has now."""

    def __init__(self) -> None:
        self._pages = KeptPages()
        self._machine: Machine | None = None

    async def read(self) -> Machine:
        """The very same one while its pages are the same; raises MachineError."""
        machine = self._machine
        if machine is None:
            machine = await asyncio.to_thread(open_machine, None)
        with contextlib.suppress(PortError):  # then the pages are those of before
            machine = with_pages(machine, self._pages.read())
        self._machine = machine
        return machine


def plugin_devices(books: Reader) -> Devices:
    """The devices that the plugins of this agent list."""

    async def now() -> NodeDevices:
        return devices_of_state(books.view.state.devices)

    return now


def kubelet_devices(kubelet: PodDevicesSource | None) -> Devices:
    """The devices that a kubelet tells of; None: nobody is asked."""

    async def now() -> NodeDevices:
        if kubelet is None:
            return NodeDevices({}, {})
        allocatable = await kubelet.allocatable(LIMIT)
        pods = await kubelet.pods(LIMIT)
        return devices_of_kubelet(
            allocatable, [devices for pod in pods.values() for devices in pod.values()]
        )

    return now


class ComputeResources:
    """Publishes what a node has, under its name.

    Args:
        client: the API server.
        node: the node's name there.
        described: what is said of its devices, and of others'.
        devices: those that it has.
        owner: with what its compute resources go; None: they stay.
        period: seconds between two looks.
    """

    def __init__(  # noqa: PLR0913 - collaborators
        self,
        client: Kubernetes,
        node: str,
        described: tuple[ComputeResource, ...],
        devices: Devices,
        *,
        owner: Owner | None = None,
        period: float = PERIOD,
    ) -> None:
        self._node = node
        self._classes = DeviceClasses(described=described, node_name=node)
        self._devices = devices
        self._period = period
        self._machine = MachineNow()
        self.publisher = Publisher(
            client, node, node_labels(node), owner=owner, report=report_of_node
        )
        self._looks = Backoff(
            _FIRST_RETRY,
            _LONGEST_RETRY,
            PortError,
            report=lambda text: report_of_node(f"nothing new is published of devices: {text}"),
        )

    @property
    def problem(self) -> str:
        """Why they are not published as they are; "" while they are."""
        return self._looks.problem or self.publisher.problem

    async def run(self) -> None:
        """Publish, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.publisher.run())
            tasks.create_task(self._look())

    async def look(self) -> None:
        """Look at the node once; raises PortError where a kubelet does not answer."""
        found = await self._devices()
        machine = await self._machine.read()
        self.publisher.want(
            (
                *self._classes.compute_resources(found.inventory),
                *machine_resources(self._node, machine),
            ),
            found.in_use,
        )

    async def _look(self) -> None:
        while True:
            async with self._looks:
                await self.look()
            if not self._looks.problem:
                await asyncio.sleep(self._period)


def published_devices(config: AgentConfig, books: Reader) -> list[Runnable]:
    """What an agent without a kubelet tells a cluster: its compute resources, where asked for.

    Raises:
        KubernetesError: a kubeconfig is configured and cannot be used.
    """
    if not config.own.cluster.compute_resources or (access := access_of(config.own)) is None:
        return []
    objects, node = KubeObjects(access, connections=2), node_name(config.own)
    # No kubelet keeps a Node with which they could go.
    published = ComputeResources(objects, node, config.classes.described, plugin_devices(books))
    return [Runnable("computeResources", published.run, close=objects.close)]
