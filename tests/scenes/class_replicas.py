"""Replicas that serve classes, on connections that lose what they are given."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from pinfold.cluster.classes.extending import Extender
from pinfold.cluster.classes.holdings import Holdings
from pinfold.cluster.classes.known import Known
from pinfold.cluster.lease import Election
from pinfold.core.classes.placing import Preference
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import FakeKubernetes
from pinfold.ports.kubernetes import COMPUTE_RESOURCES, PODS, RESOURCE_CLASSES, Object, Resource
from tests.scenes.class_cluster import GPU, compute_resource, resource_class

NODES = ("n1", "n2", "n3")


class Wire(FakeKubernetes):
    """A connection on which a binding may be on its way when its sender has long given up.

    ``delay``: the seconds that it is.
    """

    delay = 0.0

    async def create(
        self,
        resource: Resource,
        created: Any,
        subresource: str = "",
        *,
        within: float | None = None,
    ) -> Object:
        async def arrives() -> Object:
            await asyncio.sleep(self.delay)
            return await send(resource, created, subresource, within=within)

        send = super().create
        sent = asyncio.ensure_future(arrives())
        sent.add_done_callback(lambda one: one.cancelled() or one.exception())
        return await asyncio.shield(sent)


class Replica:
    """One process that wants to lead.

    ``held_up``: the seconds that it stood still, of which nothing in it has noticed anything.
    """

    held_up = 0.0

    def __init__(
        self,
        cluster: FakeCluster,
        name: str = "a",
        *,
        preference: Preference = Preference.PACK,
        always: bool = True,
    ) -> None:
        self.client = Wire(cluster)
        self.problems: list[str] = []
        self.known = Known(self.client, self.problems.append)
        self.holdings = Holdings(self.client, self.problems.append)
        loop = asyncio.get_running_loop()
        self.election = Election(
            self.client,
            "pinfold",
            "pinfold-classes",
            name,
            clock=lambda: loop.time() + self.held_up,
        )
        self.extender = Extender(
            self.client,
            self.known,
            self.holdings,
            leads=(lambda: True) if always else (lambda: self.election.leads),
            preference=preference,
            report=self.problems.append,
        )
        lead = self.extender.lead() if always else self.election.run(self.extender.lead)
        self.tasks = [asyncio.ensure_future(one) for one in (self.known.follow(), lead)]

    async def ready(self) -> Extender:
        while self.extender.problems():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
        return self.extender

    async def end(self, *, at_once: bool = False) -> None:
        """Stop it; or kill it: from now on it says nothing to anybody."""
        if at_once:
            self.client.fails = lambda _verb, _resource: "before"
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def cluster_of(**counts: int) -> FakeCluster:
    """Nodes with so many devices of the class ``gold``."""
    cluster = FakeCluster()
    cluster.create(RESOURCE_CLASSES, resource_class("gold", "a"))
    for node, count in counts.items():
        cluster.create(COMPUTE_RESOURCES, compute_resource(f"r-{node}", node, "a", count))
    return cluster


class Watched(FakeCluster):
    """A cluster that notices when more is given than there is: ``broken`` says of what."""

    def __init__(self) -> None:
        super().__init__()
        self.capacity = dict(zip(NODES, (1, 2, 3), strict=True))
        self.licences = 3
        self.broken: list[str] = []

    def bind(self, resource: Resource, binding: Any) -> Object:
        answer = super().bind(resource, binding)
        taken, licences = Counter[str](), 0
        for one in self.chunk(PODS).objects:
            node = one["spec"].get("nodeName")
            if node:
                requests = one["spec"]["containers"][0]["resources"]["requests"]
                taken[node] += int(requests.get(GPU, 0))
                licences += int(requests.get("class.pinfold.dev/licence", 0))
        self.broken += [node for node in NODES if taken[node] > self.capacity[node]]
        self.broken += ["licence"] if licences > self.licences else []
        return answer
