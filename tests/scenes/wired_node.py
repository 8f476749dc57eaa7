"""A kubelet's node on fakes whose runtime and agent speak through a socket, in real frames."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import Message

from pinfold.adapters.nri import NriPlugin, PluginSettings
from pinfold.adapters.nri import nri_pb2 as wire
from pinfold.adapters.nri.messages import seen_resources, update_messages
from pinfold.node.nri.events import PluginEvents
from pinfold.planning.fake_nri import FakeNode
from pinfold.ports.nri import (
    Container,
    ContainerAdjustment,
    ContainerState,
    ContainerUpdate,
    PodSandbox,
    RefusedError,
    Resources,
    RuntimeRecord,
)
from tests.scenes.lifecycle_harness import LifecycleHarness
from tests.scenes.nri_peer import RuntimePeer, runtime
from tests.scenes.waiting import PATIENCE, until

_STATES: Final = {
    ContainerState.CREATED: wire.CONTAINER_CREATED,
    ContainerState.RUNNING: wire.CONTAINER_RUNNING,
    ContainerState.STOPPED: wire.CONTAINER_STOPPED,
}


def pod_message(pod: PodSandbox) -> wire.PodSandbox:
    return wire.PodSandbox(
        id=pod.id,
        uid=pod.uid,
        name=pod.name,
        namespace=pod.namespace,
        annotations=pod.annotations,
        linux=wire.LinuxPodSandbox(cgroup_parent=pod.cgroup_parent),
        pid=pod.pid or 0,
    )


def resources_message(resources: Resources) -> wire.LinuxResources:
    (update,) = update_messages([ContainerUpdate("", resources)])
    return update.linux.resources


def container_message(one: Container) -> wire.Container:
    return wire.Container(
        id=one.id,
        pod_sandbox_id=one.sandbox_id,
        name=one.name,
        state=_STATES.get(one.state, wire.CONTAINER_UNKNOWN),
        linux=wire.LinuxContainer(
            resources=resources_message(one.resources), cgroups_path=one.cgroups_path
        ),
        pid=one.pid or 0,
    )


def updates_of(messages: Sequence[wire.ContainerUpdate]) -> list[ContainerUpdate]:
    return [
        ContainerUpdate(one.container_id, seen_resources(one.linux.resources)) for one in messages
    ]


class Wire:
    """A runtime's side of one connection: it asks one thing at a time, and changes none meanwhile.

    Fulfils :class:`pinfold.ports.nri.RuntimeEvents` towards the node.  ``unasked`` is what the
    plugin has changed of its own accord.
    """

    def __init__(self, peer: RuntimePeer, node: FakeNode) -> None:
        self._peer = peer
        self._node = node
        self._lock = asyncio.Lock()
        self.unasked: list[tuple[str, str]] = []

    async def serve(self) -> None:
        """Carry out what the plugin asks for, for ever."""
        while True:
            stream, request = await self._peer.requests.get()
            async with self._lock:
                asked = wire.UpdateContainersRequest.FromString(request.payload)
                updates = updates_of(asked.update)
                await self._node.update(updates)
                self.unasked += [(one.container_id, one.resources.cpus) for one in updates]
                self._peer.reply(stream, wire.UpdateContainersResponse())

    async def _ask(self, method: str, request: Message) -> bytes:
        async with self._lock:
            answer = await self._peer.ask(method, request, timeout=2 * PATIENCE)
        if answer.status.code:
            raise RefusedError(answer.status.message)
        return answer.payload

    async def synchronize(self, pods: Sequence[PodSandbox], some: Sequence[Container]) -> None:
        request = wire.SynchronizeRequest(
            pods=map(pod_message, pods), containers=map(container_message, some)
        )
        await self._ask("Synchronize", request)

    async def create_container(self, pod: PodSandbox, one: Container) -> ContainerAdjustment:
        request = wire.CreateContainerRequest(
            pod=pod_message(pod), container=container_message(one)
        )
        payload = await self._ask("CreateContainer", request)
        given = wire.CreateContainerResponse.FromString(payload).adjust
        return ContainerAdjustment(seen_resources(given.linux.resources))

    async def update_container(
        self, pod: PodSandbox, one: Container, wanted: Resources
    ) -> Sequence[ContainerUpdate]:
        request = wire.UpdateContainerRequest(
            pod=pod_message(pod),
            container=container_message(one),
            linux_resources=resources_message(wanted),
        )
        payload = await self._ask("UpdateContainer", request)
        return updates_of(wire.UpdateContainerResponse.FromString(payload).update)

    async def stop_container(self, pod: PodSandbox, one: Container) -> Sequence[ContainerUpdate]:
        request = wire.StopContainerRequest(pod=pod_message(pod), container=container_message(one))
        payload = await self._ask("StopContainer", request)
        return updates_of(wire.StopContainerResponse.FromString(payload).update)

    def __getattr__(self, name: str) -> Any:
        """All that is only told."""

        async def tell(pod: PodSandbox, one: Container | None = None) -> None:
            event = wire.StateChangeEvent(
                event=name.upper(),
                pod=pod_message(pod),
                container=None if one is None else container_message(one),
            )
            await self._ask("StateChange", event)

        return tell


class WiredNode(LifecycleHarness):
    """A node in real time."""

    peers: asyncio.Queue[RuntimePeer]
    plugin: NriPlugin
    socket: Path

    async def update(self, updates: Sequence[ContainerUpdate]) -> Sequence[str]:
        return await self.plugin.update(updates)

    def record(self) -> RuntimeRecord:
        return self

    async def connect(self, events: PluginEvents) -> None:
        settings = PluginSettings(socket=self.socket, retry=0.01, longest_retry=0.02)
        self.plugin = NriPlugin(events, settings, report=lambda text: self.report(None, text))
        self._tasks: list[asyncio.Task[Any]] = [asyncio.create_task(self.plugin.run())]
        await self.taken()

    async def taken(self) -> Wire:
        """Wait until the plugin has registered, and show it everything."""
        self.peer = await self.peers.get()
        await self.peer.register(request_timeout=2000)
        self.wire = Wire(self.peer, self.node)
        self._tasks.append(asyncio.create_task(self.wire.serve()))
        await self.node.connect(self.wire)
        await until(lambda: self.plugin.connected)
        return self.wire

    async def kill(self) -> None:
        await super().kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def wired_node(folder: Path, **harness: Any) -> AsyncIterator[WiredNode]:
    """A node with an agent that is its runtime's plugin."""
    node = WiredNode(settled=0.0, **harness)
    node.socket = folder / "nri.sock"
    async with runtime(node.socket) as node.peers:
        await node.start()
        try:
            yield node
        finally:
            await node.kill()
