"""A node whose devices change and are used, and who publishes them in a cluster in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from pinfold.cluster.classes.publishing import Publisher
from pinfold.core.classes.api import ClassError, compute_resource_from_api
from pinfold.core.classes.compute_resource import (
    ComputeResource,
    compute_resource_name,
    device_resources,
)
from pinfold.core.classes.published import node_labels, settled
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import FakeKubernetes, Moment
from pinfold.ports.kubernetes import COMPUTE_RESOURCES, KubernetesError, Object, Resource

GPU: Final = "nvidia.com/gpu"
NODE: Final = "n1"
OWNER: Final = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "u1"}


def wanted(kinds: Mapping[str, str]) -> list[ComputeResource]:
    """The compute resources of devices of these types."""
    return [*device_resources(NODE, {GPU: {id_: {"type": one} for id_, one in kinds.items()}})]


class PublishedNode:
    """One node; each agent of it is one of ``start``.

    ``requests`` are those of all agents (verb), watches too; ``lost`` are devices that were
    published, are there or in use, and were in none at some moment.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.kinds: dict[str, str] = {}
        self.used: set[str] = set()
        self.requests: list[str] = []
        self.problems: list[str] = []
        self.failing: dict[int, Moment] = {}
        self.error: KubernetesError | None = None
        self.lost: set[str] = set()
        self._safe: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self.publisher: Publisher | None = None
        self.client = FakeKubernetes(cluster)

    def start(self) -> None:
        """Begin an agent, which knows nothing."""
        self.client = FakeKubernetes(self.cluster)
        self.client.fails = self._fails

        async def owner() -> Mapping[str, Any]:
            return OWNER

        self.publisher = Publisher(
            self.client, NODE, node_labels(NODE), owner=owner, report=self.problems.append
        )
        self._task = asyncio.create_task(self.publisher.run())
        self.tell()

    async def kill(self) -> None:
        """End it wherever it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._task = self.publisher = None
        self.look()

    def tell(self) -> None:
        """Have the agent look at the node."""
        self.look()
        if self.publisher is not None:
            self.publisher.want(wanted(self.kinds), {GPU: self.used})

    def become(self, kinds: Mapping[str, str]) -> None:
        """Have other devices, or others of these properties."""
        self.look()
        self.kinds = dict(kinds)
        self._safe &= self.used | self.kinds.keys()
        self.tell()

    def use(self, devices: set[str]) -> None:
        """Have pods use these, of those that are there or in use."""
        self.look()
        self.used = {one for one in devices if one in self.kinds or one in self.used}
        self._safe &= self.used | self.kinds.keys()
        self.tell()

    def look(self) -> None:
        """Note what is lost; called before each request and after each change."""
        found = [one for name, one in self.there().items() if name == _name_of(one)]
        there = {id_ for one in found for id_ in one.devices}
        self.lost |= self._safe - there
        self._safe = there & (self.used | self.kinds.keys())

    def others(self) -> None:
        """Somebody else has changed something: what he took is not lost by the agent."""
        self._safe = set()
        self.look()

    def objects(self) -> dict[str, Object]:
        """All compute resources."""
        found = self.cluster.chunk(COMPUTE_RESOURCES).objects
        return {one["metadata"]["name"]: one for one in found}

    def there(self) -> dict[str, ComputeResource]:
        """Those that are there, of whomever, and can be read."""
        found = {}
        for name, one in self.objects().items():
            with suppress(ClassError):
                found[name] = compute_resource_from_api(one)
        return found

    def is_settled(self) -> bool:
        """Whether all is as it is to be."""
        there = self.there()
        return settled(wanted(self.kinds), there, {GPU: self.used}) == there

    async def rest(self, seconds: float = 300.0) -> None:
        """Wait until it rests (with virtual time)."""
        await asyncio.sleep(seconds)
        self.look()

    def _fails(self, verb: str, resource: Resource) -> Moment:
        assert resource == COMPUTE_RESOURCES
        self.look()
        self.requests.append(verb)
        if self.error is not None:
            raise self.error
        return self.failing.pop(len(self.requests), "")


def _name_of(one: ComputeResource) -> str:
    return compute_resource_name(one.node_name, one.resource_name, one.properties)


WRITES: Final = ("create", "update", "delete")


def writes(node: PublishedNode) -> list[str]:
    """What was written."""
    return [one for one in node.requests if one in WRITES]
