"""The classes and compute resources of a cluster, as far as they are known here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import structs

from pinfold.cluster.feed import Feed
from pinfold.cluster.hearing import Hearing
from pinfold.core.classes.api import class_from_api, compute_resource_from_api
from pinfold.core.classes.compute_resource import ComputeResource
from pinfold.core.classes.placing import ClusterPool, Matcher, Pool, cluster_pools, pool_of
from pinfold.core.classes.raw_names import RawName, Unbindable, raw_names
from pinfold.core.classes.resource_class import ResourceClass
from pinfold.core.pod.api import PodError
from pinfold.ports.kubernetes import (
    COMPUTE_RESOURCES,
    RESOURCE_CLASSES,
    Change,
    Kubernetes,
    Object,
)

_NOTHING: Final[Mapping[str, Pool]] = MappingProxyType({})


class Known:
    """What there is; what cannot be read is told, and is not there.

    A class that can be read no more has what it had, or others would get its devices; nobody can
    ask for it meanwhile.

    Args:
        client: the API server.
        report: told each problem.

    Attributes:
        classes: by name.
        broken: why classes cannot be read as they are now, by name.
        objects: all classes as the server has them.
        compute_resources: by name.
        synced: set once both have been listed.
        listeners: each is called after something has changed that they are known by.
        class_listeners: each is called with a class's name after the server has told anything of
            it, if it was but its status.
    """

    def __init__(
        self, client: Kubernetes, report: Callable[[str], None] = lambda _problem: None
    ) -> None:
        self._client = client
        self._report = report
        self.classes: dict[str, ResourceClass] = {}
        self.broken: dict[str, str] = {}
        self.objects: dict[str, Object] = {}
        self.compute_resources: dict[str, ComputeResource] = {}
        self.synced = asyncio.Event()
        self.listeners: list[Callable[[], None]] = []
        self.class_listeners: list[Callable[[str], None]] = []
        self._class_feed = Feed[Object, str](_name, lambda: self.objects)
        self._resource_feed = Feed[Object, str](_name, lambda: self.compute_resources)
        self._unlisted = {RESOURCE_CLASSES, COMPUTE_RESOURCES}
        self._hearing = {
            RESOURCE_CLASSES: Hearing("the classes", report),
            COMPUTE_RESOURCES: Hearing("the compute resources", report),
        }
        self._of_node: dict[tuple[str, str], dict[str, ComputeResource]] = {}
        self._pools: dict[str, dict[str, Pool]] = {}
        self._stale: set[tuple[str, str]] = set()
        self._matcher: Matcher | None = None
        self._cluster_pools: dict[str, ClusterPool] | None = None
        self._raw_names: dict[str, RawName | Unbindable] | None = None

    def problems(self) -> tuple[str, ...]:
        """Why they are not known as they are; none where all is well."""
        if not self.synced.is_set():
            return ("the classes and compute resources are not listed yet",)
        return tuple(one for hearing in self._hearing.values() for one in hearing.problems())

    async def follow(self) -> None:
        """Know what changes, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_classes())
            tasks.create_task(self._follow_compute_resources())

    @property
    def cluster_level(self) -> frozenset[str]:
        """The classes whose resources belong to no node."""
        return frozenset(self.cluster_pools)

    @property
    def cluster_pools(self) -> Mapping[str, ClusterPool]:
        """What the classes of the cluster level have, by name."""
        if self._cluster_pools is None:
            self._cluster_pools = cluster_pools(
                self.classes.values(), self.compute_resources.values()
            )
        return self._cluster_pools

    def pools(self, resource: str) -> Mapping[str, Pool]:
        """What nodes have under a raw name, by node."""
        return self.all_pools.get(resource, _NOTHING)

    @property
    def all_pools(self) -> Mapping[str, Mapping[str, Pool]]:
        """What nodes have, by raw name and node."""
        if self._matcher is None:
            self._matcher = Matcher(self.classes.values())
        for node, name in self._stale:
            parts = self._of_node.get((node, name))
            if parts:
                pool = pool_of(self._matcher, parts.values())
                self._pools.setdefault(name, {})[node] = pool
            else:
                self._pools.get(name, {}).pop(node, None)
        self._stale.clear()
        return self._pools

    @property
    def raw_names(self) -> Mapping[str, RawName | Unbindable]:
        """By which raw name each class is asked for, or why none can be."""
        if self._raw_names is None:
            self._raw_names = raw_names(self.classes.values(), self.all_pools) | {
                name: Unbindable(f"class {name} cannot be used: {text}", "mend the ResourceClass")
                for name, text in self.broken.items()
            }
        return self._raw_names

    # ------------------------------------------------------------------------------ inside

    async def _follow_classes(self) -> None:
        hearing = self._hearing[RESOURCE_CLASSES]
        async for change in self._client.changes(RESOURCE_CLASSES, report=hearing.told):
            seen, is_news = list[str](), False
            for name, found in self._class_feed.news(change):
                seen.append(name)
                is_news |= self._put_class(name, found)
            self._has_come(RESOURCE_CLASSES, change, is_news=is_news)
            for name in seen:
                for tell in self.class_listeners:
                    tell(name)

    async def _follow_compute_resources(self) -> None:
        hearing = self._hearing[COMPUTE_RESOURCES]
        async for change in self._client.changes(COMPUTE_RESOURCES, report=hearing.told):
            is_news = False
            for name, found in self._resource_feed.news(change):
                is_news |= self._put_compute_resource(name, found)
            self._has_come(COMPUTE_RESOURCES, change, is_news=is_news)

    def _put_class(self, name: str, found: Object | None) -> bool:
        """Know a class as it is now; return whether it became another one."""
        one, problem = None, ""
        before, problem_before = self.classes.get(name), self.broken.pop(name, "")
        if found is None:
            self.objects.pop(name, None)
        else:
            self.objects[name] = found
            try:
                one = class_from_api(found)
            except PodError as error:
                one, problem = before, str(error)
                self.broken[name] = problem
                if problem != problem_before:
                    self._report(f"ResourceClass {name} is left out: {problem}")
        if one == before:
            return problem != problem_before
        if one is None:
            del self.classes[name]
        else:
            self.classes[name] = one
        if one is None or before is None or not _select_alike(one, before):
            self._matcher = self._cluster_pools = None
            self._stale.update(self._of_node)
        return True

    def _put_compute_resource(self, name: str, found: Object | None) -> bool:
        """Know a compute resource as it is now; return whether it became another one."""
        one = None
        if found is not None:
            try:
                one = compute_resource_from_api(found)
            except PodError as error:
                self._report(f"ComputeResource {name} is left out: {error}")
        before = self.compute_resources.get(name)
        if one == before:
            return False
        if not all(each is None or each.node_name for each in (one, before)):
            self._cluster_pools = None
        if before is not None:
            self._move(before, is_there=False)
            del self.compute_resources[name]
        if one is not None:
            self._move(one, is_there=True)
            self.compute_resources[name] = one
        return True

    def _move(self, one: ComputeResource, *, is_there: bool) -> None:
        if not one.node_name:
            return
        key = one.node_name, one.resource_name
        parts = self._of_node.setdefault(key, {})
        if is_there:
            parts[one.name] = one
        else:
            del parts[one.name]
            if not parts:
                del self._of_node[key]
        self._stale.add(key)

    def _has_come(self, resource: object, change: Change[Object], *, is_news: bool) -> None:
        if getattr(change, "is_last", False):
            self._unlisted.discard(resource)
            if not self._unlisted:
                self.synced.set()
        if is_news:
            self._raw_names = None
            for tell in self.listeners:
                tell()


def _select_alike(one: ResourceClass, other: ResourceClass) -> bool:
    """Whether what they have is the same, whatever pods were last given for them."""
    return structs.replace(one, last_raw_name=other.last_raw_name) == other


def _name(found: Object) -> str:
    return str(found["metadata"]["name"])
