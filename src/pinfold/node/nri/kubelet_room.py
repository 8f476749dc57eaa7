"""Room for a kubelet's containers that are refused although enough CPUs are free.

A runtime waits two seconds for the answer to CreateContainer, and asks nothing else meanwhile.  So
nobody waits here: it is refused, others move aside, and the kubelet, which tries again by itself,
finds the room.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.admission import NodeState
from pinfold.admission.decision import Decision
from pinfold.node.books import Books
from pinfold.node.draft import Draft
from pinfold.node.moves.moving import Moving
from pinfold.node.moves.rebalancing import Rebalancing
from pinfold.node.nri.kubelet_pods import KubeletPods
from pinfold.node.nri.runtime_pod import RuntimePod
from pinfold.ports.errors import ContainerKey, StoreError
from pinfold.ports.nri import Container, PodSandbox, RefusedError
from pinfold.ports.podresources import PodDevices

ROOM_IS_MADE: Final = "others are being moved to make room; it can be created when they are there"


class _Awaited(Struct, frozen=True):
    """Moves after which a container can be created, for how many CPUs, and what was said."""

    moving: Moving
    cpus: int
    text: str


class KubeletRoom:
    """Has others move aside for containers that are refused.

    Args:
        books: the node's state.
        pods: decides about containers.
        rebalancing: finds the moves, and begins them where that is configured.
    """

    def __init__(self, books: Books, pods: KubeletPods, rebalancing: Rebalancing) -> None:
        self._books = books
        self._pods = pods
        self._rebalancing = rebalancing
        self._awaited: dict[ContainerKey, _Awaited] = {}

    def refuse_again(self, pod: PodSandbox, container: Container) -> None:
        """Say what was said before, while the moves go on: that costs nothing.

        Raises:
            RefusedError: room is being made for the very same container.
        """
        key = ContainerKey(pod.uid, container.name)
        one = self._awaited.get(key)
        if one is None:
            return
        asks_again = one.cpus == self._pods.asked(pod, container)
        if asks_again and self._rebalancing.is_under_way(one.moving):
            raise RefusedError(one.text)

    def taken(self, pod: PodSandbox, container: Container) -> None:
        """A container is admitted, and needs no room any more."""
        if self._awaited.pop(ContainerKey(pod.uid, container.name), None) is not None:
            self._rebalancing.rooms.taken(pod.uid)

    async def make(
        self,
        draft: Draft,
        runtime_pod: RuntimePod,
        container: Container,
        devices: PodDevices,
        refused: Decision,
    ) -> Decision:
        """Begin the moves after which a container is admitted, if there are any.

        Returns:
            The refusal, which says so.
        """
        sandbox, key = runtime_pod.sandbox, ContainerKey(runtime_pod.sandbox.uid, container.name)
        asked = self._pods.asked(sandbox, container)
        if not asked:
            return refused

        def admits(state: NodeState) -> bool:
            return self._pods.decide(runtime_pod, container, devices, state=state).admitted

        alone = self._pods.alone(sandbox, container)
        try:
            moving = await self._rebalancing.make_room(draft, alone, admits)
        except StoreError as error:
            self._books.observers.report(runtime_pod.name, f"no room is made: {error}")
            return refused
        if moving is None:
            return refused
        told = replace(refused, message=f"{refused.message}; {ROOM_IS_MADE}")
        there = self._pods.by_uid
        self._awaited = {k: it for k, it in self._awaited.items() if k.pod_uid in there}
        self._awaited[key] = _Awaited(moving, asked, f"{told.reason}: {told.message}")
        return told
