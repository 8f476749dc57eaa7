"""Who has what of a cluster's extended resources, by the pods that there are.

Of each pod that has any there is its node and its amounts, which are kept once for all pods that
have the same; of all others nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

from msgspec import Struct, field

from pinfold.cluster.feed import Feed
from pinfold.cluster.hearing import Hearing
from pinfold.core.classes.names import class_of
from pinfold.core.pod.api import PodError, quantities_from_api
from pinfold.core.pod.pod import Container, Pod, container_requests
from pinfold.core.values.resource_names import is_extended
from pinfold.ports.kubernetes import PODS, Change, Kubernetes, Listed

_ENDED = frozenset({"Succeeded", "Failed"})


class _Metadata(Struct, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""


class _Resources(Struct, gc=False):
    requests: dict[str, Any] | None = None


class _Container(Struct, rename="camel", gc=False):
    resources: _Resources | None = None
    restart_policy: str | None = None


class _Spec(Struct, rename="camel", gc=False):
    node_name: str = ""
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class _Status(Struct, gc=False):
    phase: str = ""


class SeenPod(Struct, gc=False):
    """A pod as it is read: the fields that say what it has, and where."""

    metadata: _Metadata
    spec: _Spec = field(default_factory=_Spec)
    status: _Status = field(default_factory=_Status)


class Amounts:
    """How much a pod has, by the resource's name; one object for all that have the same."""

    __slots__ = ("__weakref__", "by_name")

    def __init__(self, by_name: Mapping[str, int]) -> None:
        self.by_name = by_name


class Holding(Struct, frozen=True, gc=False):
    """What one pod has; ``node`` is "" while it waits."""

    node: str
    amounts: Amounts


class Holdings:
    """What pods have that have not ended, as far as they are known here.

    Args:
        client: the API server.
        report: told each problem.

    Attributes:
        synced: set while all have been listed.
        listeners: each is told the uid of a pod that has another holding, after it has changed.
    """

    def __init__(
        self, client: Kubernetes, report: Callable[[str], None] = lambda _problem: None
    ) -> None:
        self._client = client
        self._report = report
        self._hearing = Hearing("the pods", report)
        self.synced = asyncio.Event()
        self.listeners: list[Callable[[str], None]] = []
        self._held: dict[str, Holding] = {}
        self._alike: WeakValueDictionary[frozenset[tuple[str, int]], Amounts] = (
            WeakValueDictionary()
        )
        self._taken: dict[str, Counter[str]] = {}
        self._asked: Counter[str] = Counter()
        self._of_cluster: Counter[str] = Counter()

    def problems(self) -> tuple[str, ...]:
        """Why it is not known who has what; none where all is well."""
        if not self.synced.is_set():
            return ("the pods have not been listed yet",)
        return self._hearing.problems()

    async def follow(self) -> None:
        """List all pods and know what changes, for ever; who ends it knows nothing any more."""
        feed = Feed[SeenPod, str](lambda pod: pod.metadata.uid, lambda: self._held)
        self._hearing = Hearing("the pods", self._report)  # an earlier lead's problems are over
        try:
            async for change in self._client.changes(PODS, SeenPod, report=self._hearing.told):
                self.saw(feed, change)
        finally:
            self.synced.clear()
            for uid in list(self._held):
                self._put(uid, None)

    def saw(self, feed: Feed[SeenPod, str], change: Change[SeenPod]) -> None:
        """Take note of pods."""
        for uid, pod in feed.news(change):
            self._put(uid, None if pod is None else self._holding(pod))
        if isinstance(change, Listed) and change.is_last:
            self.synced.set()

    def get(self, uid: str) -> Holding | None:
        """What a pod has; None where it has nothing, has ended or is not known."""
        return self._held.get(uid)

    def taken(self, resource: str) -> Mapping[str, int]:
        """How much is taken under a name, by node; a name that nobody has is not there."""
        return self._taken.get(resource) or Counter()

    def taken_of_cluster(self, class_name: str) -> int:
        """How much of a class pods have that are on a node."""
        return self._of_cluster[class_name]

    def asked(self, class_name: str) -> int:
        """How much of a class pods ask for, those that wait among them."""
        return self._asked[class_name]

    def __iter__(self) -> Iterator[Holding]:
        return iter(self._held.values())

    # ------------------------------------------------------------------------------ inside

    def _put(self, uid: str, now: Holding | None) -> None:
        before = self._held.get(uid)
        if before is not None and now is not None and before.node == now.node:
            if before.amounts is now.amounts:
                return
        elif before is now:
            return
        if before is not None:
            self._count(before, -1)
            del self._held[uid]
        if now is not None:
            self._count(now, 1)
            self._held[uid] = now
        for tell in self.listeners:
            tell(uid)

    def _count(self, one: Holding, sign: int) -> None:
        for name, amount in one.amounts.by_name.items():
            class_name = class_of(name)
            if class_name is not None:
                add(self._asked, class_name, sign * amount)
                if one.node:
                    add(self._of_cluster, class_name, sign * amount)
            elif one.node:
                taken = self._taken.setdefault(name, Counter())
                add(taken, one.node, sign * amount)
                if not taken:
                    del self._taken[name]

    def _holding(self, pod: SeenPod) -> Holding | None:
        if pod.status.phase in _ENDED:
            return None
        spec = pod.spec
        initial, running = spec.init_containers or (), spec.containers or ()
        if not any(map(_has_extended, running)) and not any(map(_has_extended, initial)):
            return None
        try:
            requests = container_requests(
                Pod(
                    pod.metadata.uid,
                    pod.metadata.name,
                    init_containers=tuple(map(_container, initial)),
                    containers=tuple(map(_container, running)),
                )
            )
        except PodError as error:
            name = f"{pod.metadata.namespace}/{pod.metadata.name}"
            self._report(f"pod {name} counts for nothing: {error}")
            return None
        amounts = frozenset(
            (name, quantity.value()) for name, quantity in requests.items() if quantity.sign > 0
        )
        if not amounts:
            return None
        alike = self._alike.get(amounts)
        if alike is None:
            alike = self._alike[amounts] = Amounts(dict(amounts))
        return Holding(spec.node_name, alike)


def _has_extended(container: _Container) -> bool:
    resources = container.resources
    requests = None if resources is None else resources.requests
    return requests is not None and any("/" in name for name in requests)


def _container(container: _Container) -> Container:
    requests = container.resources.requests if container.resources is not None else None
    extended = {name: one for name, one in (requests or {}).items() if is_extended(name)}
    named = quantities_from_api(extended, "resources.requests")
    return Container("c", named, restart_policy=container.restart_policy)


def add(counter: Counter[str], key: str, amount: int) -> None:
    """Count so many more; what comes to nothing is not there."""
    counter[key] += amount
    if not counter[key]:
        del counter[key]
