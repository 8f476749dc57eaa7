"""What is asked of a kubelet and of an API server about pods, before anything is decided.

Both may take their time, so nobody holds the lock of the books meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

from pinfold.node.nri.kubelet_devices import KubeletDevices
from pinfold.node.nri.kubelet_pods import KubeletPods
from pinfold.node.nri.kubelet_specs import PATIENCE, KubeletSpecs, PodSpec
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
        self._asking: dict[str, asyncio.Task[PodSpec]] = {}

    def begin(self, sandbox: PodSandbox) -> None:
        """Ask what a pod asks for as a whole, where it is not known; nobody waits for it yet."""
        if self.specs.has_server and self._wants_spec(sandbox):
            self._asked(sandbox)

    def _asked(self, sandbox: PodSandbox) -> asyncio.Task[PodSpec]:
        task = self._asking.get(sandbox.uid)
        if task is None:
            task = asyncio.create_task(self._ask(sandbox), name=f"pod of {sandbox.full_name}")
            self._asking[sandbox.uid] = task
        return task

    async def _ask(self, sandbox: PodSandbox) -> PodSpec:
        try:
            spec = await self.specs.of_pod(sandbox)
        finally:
            del self._asking[sandbox.uid]
        if not spec.problem and (runtime_pod := self._pods.by_uid.get(sandbox.uid)) is not None:
            runtime_pod.spec = spec
        return spec

    async def read(self, *sandboxes: PodSandbox) -> None:
        """Read what pods ask for as a whole, where it is not known."""
        missing = {one.uid: one for one in sandboxes if self._wants_spec(one)}
        await self._read(missing)

    def _wants_spec(self, sandbox: PodSandbox) -> bool:
        """Where it was asked in vain, containers that run were decided about without."""
        known = self._pods.by_uid.get(sandbox.uid)
        was_in_vain = known is not None and known.spec is not None and known.runs
        return not was_in_vain and self._pods.lacks_spec(sandbox)

    async def _read(self, missing: Mapping[str, PodSandbox]) -> None:
        asked = {uid: self._asked(one) for uid, one in missing.items()}
        if asked:
            _, late = await asyncio.wait(asked.values(), timeout=PATIENCE)
            for task in late:
                task.cancel()
            await asyncio.wait(asked.values())
        for uid, task in asked.items():
            in_vain = PodSpec(problem=f"no answer within {PATIENCE:g} s")
            spec = in_vain if task.cancelled() else task.result()
            self._pods.put(missing[uid]).spec = spec
            if spec.problem:
                self.specs.tell_unread(missing[uid], spec.problem)

    async def read_new(
        self, sandboxes: Sequence[PodSandbox], containers: Sequence[Container]
    ) -> None:
        """The same of all pods with a container that may run, also if it was in vain before."""
        self._pods.learn(sandboxes)
        there = {one.uid: one for one, _ in _there(sandboxes, containers)}
        await self._read({u: one for u, one in there.items() if self._pods.lacks_spec(one)})

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
