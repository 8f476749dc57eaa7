"""A client of an API server in memory, whose connections fail as somebody wants them to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec

from pinfold.planning.fake_cluster import FakeCluster
from pinfold.ports.kubernetes import (
    NO_LABELS,
    Change,
    Changed,
    GoneError,
    Kind,
    KubernetesError,
    Listed,
    Object,
    Progress,
    Resource,
    has_gone_back,
)
from pinfold.retry.backoff import Backoff

T = TypeVar("T")

Moment = Literal["", "before", "after"]


class FakeKubernetes:
    """A :class:`pinfold.ports.kubernetes.Kubernetes`: one client of a cluster in memory.

    Attributes:
        fails: asked at each request (verb, resource): whether the connection is lost before or
            after the server has done it, or "".  It may also raise.
        takes: asked twice at each request: the seconds that it is on its way, there and back.
        watching: watches show what has changed while this is set.
    """

    def __init__(self, cluster: FakeCluster, *, chunk: int = 500) -> None:
        self._cluster = cluster
        self._chunk = chunk
        self.fails: Callable[[str, Resource], Moment] = lambda _verb, _resource: ""
        self.takes: Callable[[], float] = lambda: 0.0
        self.watching = asyncio.Event()
        self.watching.set()

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        """See :class:`pinfold.ports.kubernetes.Kubernetes`."""
        return await self._ask(
            "get", resource, lambda: self._cluster.read(resource, name, namespace)
        )

    async def create(
        self,
        resource: Resource,
        created: Mapping[str, Any],
        subresource: str = "",
        *,
        within: float | None = None,
    ) -> Object:
        """See :class:`pinfold.ports.kubernetes.Kubernetes`."""
        verb = "bind" if subresource == "binding" else "create"
        work = partial(getattr(self._cluster, verb), resource, created)
        try:
            async with asyncio.timeout(within):
                return await self._ask(verb, resource, work)
        except TimeoutError:
            raise KubernetesError(f"{verb} {resource.plural}: no answer in time") from None

    async def update(
        self, resource: Resource, changed: Mapping[str, Any], subresource: str = ""
    ) -> Object:
        """See :class:`pinfold.ports.kubernetes.Kubernetes`."""
        return await self._ask(
            "update", resource, lambda: self._cluster.update(resource, changed, subresource)
        )

    async def patch(
        self,
        resource: Resource,
        name: str,
        changes: Mapping[str, Any],
        namespace: str = "",
        subresource: str = "",
    ) -> Object:
        """See :class:`pinfold.ports.kubernetes.Kubernetes`."""

        def changed() -> Object:
            before = self._cluster.read(resource, name, namespace)
            return self._cluster.update(resource, merged(before, changes), subresource)

        return await self._ask("patch", resource, changed)

    async def delete(self, resource: Resource, name: str, namespace: str = "") -> None:
        """See :class:`pinfold.ports.kubernetes.Kubernetes`."""
        await self._ask("delete", resource, lambda: self._cluster.delete(resource, name, namespace))

    async def list(self, resource: Resource, namespace: str = "") -> Sequence[Object]:
        """See :class:`pinfold.ports.kubernetes.Kubernetes`."""
        return await self._ask(
            "list", resource, lambda: self._cluster.chunk(resource, namespace).objects
        )

    async def changes(
        self,
        resource: Resource,
        of: Any = dict,  # noqa: ANN401 - a type
        *,
        labels: Mapping[str, str] = NO_LABELS,
        report: Callable[[str], None] = lambda _problem: None,
    ) -> AsyncIterator[Change[Any]]:
        """See :class:`pinfold.ports.kubernetes.Kubernetes`."""
        backoff = Backoff(0.001, 0.01, KubernetesError, report=report)
        version = ""
        while True:
            async with backoff:
                newest = partial(self._cluster.chunk, resource, limit=1)
                if version and (
                    problem := has_gone_back(
                        (await self._ask("list", resource, newest)).version, version
                    )
                ):
                    version = ""
                    report(problem)
                    backoff.problem = problem
                if not version:
                    async for part in self._listed(resource, of, labels):
                        yield part
                        version = part.version if part.is_last else ""
                try:
                    await self._ask("watch", resource, lambda: None)
                    if backoff.problem:
                        backoff.problem = ""
                        report("")
                    async for event in self._cluster.watch(resource, version):
                        await self.watching.wait()
                        version = str(event.version)
                        seen = event.among(lambda one: _has(one, labels))
                        if seen is None or seen.key is None:
                            yield Progress(version)
                        else:
                            yield Changed(Kind(seen.type), _as(seen.object, of), version)
                except GoneError:
                    version = ""

    async def _listed(
        self, resource: Resource, of: type[T], labels: Mapping[str, str]
    ) -> AsyncIterator[Listed[T]]:
        continued, is_first = "", True
        while is_first or continued:
            chunk = partial(self._cluster.chunk, resource, limit=self._chunk, continued=continued)
            part = await self._ask("list", resource, chunk)
            continued = part.continued
            objects = [_as(one, of) for one in part.objects if _has(one, labels)]
            yield Listed(objects, part.version, is_first, not continued)
            is_first = False

    async def _ask(self, verb: str, resource: Resource, work: Callable[[], T]) -> T:
        await asyncio.sleep(self.takes())
        moment = self.fails(verb, resource)
        if moment == "before":
            raise KubernetesError(f"{verb} {resource.plural}: the connection was lost")
        result = work()
        await asyncio.sleep(self.takes())
        if moment == "after":
            raise KubernetesError(f"{verb} {resource.plural}: the connection was lost")
        return result


def merged(before: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    """JSON merge patch (RFC 7386)."""
    result = dict(before)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            old = result.get(name)
            result[name] = merged(old if isinstance(old, Mapping) else {}, value)
        else:
            result[name] = value
    return result


def _has(found: Object, labels: Mapping[str, str]) -> bool:
    return labels.items() <= (found["metadata"].get("labels") or {}).items()


def _as(seen: Object, of: type[T]) -> T:
    return msgspec.json.decode(msgspec.json.encode(seen), type=of)
