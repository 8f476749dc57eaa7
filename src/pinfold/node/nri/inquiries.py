"""What is asked of a kubelet and of an API server about pods, before anything is decided.

Both may take their time, so nobody holds the lock of the books meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from pinfold.node.nri.kubelet_devices import KubeletDevices
from pinfold.node.nri.kubelet_pods import KubeletPods
from pinfold.node.nri.kubelet_specs import KubeletSpecs
from pinfold.ports.nri import Container, ContainerState, PodSandbox
from pinfold.ports.podresources import NO_DEVICES, PodDevices, PodName


class Inquiries:
    """Asks only where the answer matters.

    Args:
        pods: what is known.
        devices: the kubelet, which knows the pods' devices.
        specs: the API server, which knows the pods' specifications.
    """

    def __init__(self, pods: KubeletPods, devices: KubeletDevices, specs: KubeletSpecs) -> None:
        self._pods = pods
        self.devices = devices
        self.specs = specs

    async def read(self, *sandboxes: PodSandbox) -> None:
        """Read what pods ask for as a whole, where it is not known."""
        missing = {one.uid: one for one in sandboxes if self._pods.wants_spec(one)}
        found = await asyncio.gather(*map(self.specs.of_pod, missing.values()))
        for uid, spec in zip(missing, found, strict=True):
            runtime_pod = self._pods.put(missing[uid])
            runtime_pod.spec = runtime_pod.spec or spec

    async def read_new(
        self, sandboxes: Sequence[PodSandbox], containers: Sequence[Container]
    ) -> None:
        """The same of all pods with a container that may run."""
        self._pods.learn(sandboxes)
        await self.read(*(sandbox for sandbox, _ in _there(sandboxes, containers)))

    async def devices_of(self, pod: PodSandbox, container: Container) -> PodDevices:
        """The devices of a pod, as far as they matter to a container to be decided about."""
        if not self._pods.is_to_be_aligned(pod, container):
            return NO_DEVICES
        return await self.devices.of_pod(pod.namespace, pod.name)

    async def devices_of_new(
        self, sandboxes: Sequence[PodSandbox], containers: Sequence[Container]
    ) -> Mapping[PodName, PodDevices]:
        """The devices of pods, where one of these containers has yet to be decided about."""
        if any(self._pods.is_to_be_aligned(*one) for one in _there(sandboxes, containers)):
            return await self.devices.of_all()
        return {}


def _there(
    sandboxes: Sequence[PodSandbox], containers: Sequence[Container]
) -> Iterator[tuple[PodSandbox, Container]]:
    """The containers that have not ended, each with its pod."""
    by_id = {one.id: one for one in sandboxes}
    for container in containers:
        sandbox = by_id.get(container.sandbox_id)
        if sandbox is not None and container.state is not ContainerState.STOPPED:
            yield sandbox, container
