"""What it costs an agent to publish what has not changed: one look at the node, each ten seconds.

The kubelet and the API server are in memory, so these are the agent's own costs; the API server is
asked nothing, which is checked.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from pinfold.agent.compute_resources import ComputeResources, kubelet_devices
from pinfold.core.devices.devices import Device
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import FakeKubernetes, Moment
from pinfold.planning.fake_plugins import FakeKubeletDevices
from pinfold.ports.kubernetes import Resource

_RESOURCE: Final = "example.com/vf"
_REST: Final = 0.5
"""Seconds until all is published."""


def _look(count: int) -> Callable[[], object]:
    """A node with so many devices on two NUMA nodes, half of them in use."""
    client, kubelet, asked = FakeKubernetes(FakeCluster()), FakeKubeletDevices(), list[str]()
    devices = [Device(f"vf-{number}", numa_nodes=(number % 2,)) for number in range(count)]
    kubelet.healthy[_RESOURCE] = tuple(devices)
    kubelet.given["default", "p"] = {"c": {_RESOURCE: tuple(devices[: count // 2])}}

    def note(verb: str, _resource: Resource) -> Moment:
        asked.append(verb)
        return ""

    async def rest() -> asyncio.Task[None]:
        task = asyncio.create_task(resources.publisher.run())
        await resources.look()
        await asyncio.sleep(_REST)
        asked.clear()
        return task

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def look() -> None:
        await resources.look()
        await asyncio.sleep(0)
        kubelet.asked.clear()
        if asked:
            raise AssertionError(f"nothing has changed, and it was asked for {asked}")

    client.fails = note
    resources = ComputeResources(client, "node-1", (), kubelet_devices(kubelet))
    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(rest())
    atexit.register(lambda: loop.run_until_complete(end()))
    return lambda: loop.run_until_complete(look())


WORKLOADS: Final[Mapping[str, Callable[[], Callable[[], object]]]] = {
    f"publish.look-{count}": partial(_look, count) for count in (16, 4096)
}
