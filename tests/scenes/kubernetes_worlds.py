"""An API server, in memory or over HTTP, and clients of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from pinfold.adapters.kubernetes.access import Access
from pinfold.adapters.kubernetes.objects import KubeObjects
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import FakeKubernetes
from pinfold.ports.kubernetes import (
    NO_LABELS,
    Change,
    Changed,
    Kubernetes,
    Listed,
    Progress,
    Resource,
)
from tests.cluster.api_server.server import ApiServer
from tests.cluster.api_server.serving import running
from tests.scenes.waiting import PATIENCE

T = TypeVar("T")

WORLDS = ("memory", "http")


@asynccontextmanager
async def world(kind: str) -> AsyncIterator[tuple[FakeCluster, Kubernetes]]:
    """What is stored, and a client of it."""
    if kind == "memory":
        cluster = FakeCluster()
        yield cluster, FakeKubernetes(cluster, chunk=2)
        return
    async with running(ApiServer()) as api:
        client = KubeObjects(Access(api.url, None), chunk=2)
        try:
            yield api.cluster, client
        finally:
            await client.close()


class Follower:
    """Collects what a watch tells."""

    def __init__(
        self,
        client: Kubernetes,
        resource: Resource,
        of: Any = dict,
        labels: Mapping[str, str] = NO_LABELS,
    ) -> None:
        self.seen: list[Change[Any]] = []
        self.problems: list[str] = []
        self._news = asyncio.Event()
        self._changes = client.changes(resource, of, labels=labels, report=self.problems.append)

    async def run(self) -> None:
        async for change in self._changes:
            self.seen.append(change)
            self._news.set()

    def names(self) -> list[str]:
        """What happened to whom: ``listed a,b``, ``ADDED c``, ``progress``."""
        told = []
        for one in self.seen:
            match one:
                case Listed():
                    names = ",".join(each["metadata"]["name"] for each in one.objects)
                    told.append(f"listed {names}")
                case Changed():
                    told.append(f"{one.kind.value} {one.object['metadata']['name']}")
                case Progress():
                    told.append("progress")
        return told

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(20 * PATIENCE):
            while not holds():
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def following(
    client: Kubernetes,
    resource: Resource,
    of: Any = dict,
    labels: Mapping[str, str] = NO_LABELS,
) -> AsyncIterator[Follower]:
    follower = Follower(client, resource, of, labels)
    async with in_background(follower.run()):
        yield follower


@asynccontextmanager
async def in_background(*works: Awaitable[Any]) -> AsyncIterator[None]:
    """Some work while the block goes on; what it raises fails the block."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def has_listed(follower: Follower) -> bool:
    """Whether the last that it heard of is the end of a list."""
    return bool(follower.seen) and isinstance(last := follower.seen[-1], Listed) and last.is_last
