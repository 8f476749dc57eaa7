"""The scheduler's questions about classes: which nodes fit a pod, how well, and bind it to one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from pinfold.cluster.classes.bindings import DEADLINE, Bindings
from pinfold.cluster.classes.holdings import Holdings
from pinfold.cluster.classes.known import Known
from pinfold.core.classes.names import class_of, no_such_class
from pinfold.core.classes.placing import (
    NotBoundError,
    Pool,
    Preference,
    Wants,
    bound_of,
    cluster_misfit,
    misfit,
    score,
    wants_of,
)
from pinfold.core.pod.api import PodError, pod_from_api
from pinfold.core.pod.pod import Pod, container_requests
from pinfold.ports.errors import PortError
from pinfold.ports.kubernetes import (
    PODS,
    ConflictError,
    Kubernetes,
    KubernetesError,
    NotFoundError,
    Object,
)


class ExtenderError(PortError):
    """A scheduler's question that cannot be answered, or a pod that was not bound."""


class Fitting(Struct, frozen=True):
    """Which nodes fit, and why the others do not."""

    nodes: Sequence[str]
    failed: Mapping[str, str]


class Extender:
    """Answers from what is known here, and binds while it leads.

    Args:
        client: the API server.
        known: the classes; followed by whoever has made it.
        holdings: what pods have; followed by :meth:`lead`.
        leads: whether this replica leads, at any moment.
        preference: which nodes suit better.
        report: told each problem.
        clock: seconds; None: the event loop's.
    """

    def __init__(  # noqa: PLR0913 - collaborators
        self,
        client: Kubernetes,
        known: Known,
        holdings: Holdings,
        *,
        leads: Callable[[], bool],
        preference: Preference = Preference.PACK,
        report: Callable[[str], None] = lambda _problem: None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._client = client
        self._known = known
        self._holdings = holdings
        self._leads = leads
        self._preference = preference
        self._bindings = Bindings(client, holdings, report, clock)

    @property
    def assumed(self) -> int:
        """How many pods are taken to be on a node that no watch has told of yet."""
        return len(self._bindings)

    def problems(self) -> list[str]:
        """Why it is not to be asked now."""
        if self._leads():
            return [*self._holdings.problems(), *self._known.problems()]
        return ["this replica does not lead", *self._known.problems()]

    async def lead(self) -> None:
        """What the leader does all the time: it knows who has what, from a list of now on."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._holdings.follow())
                tasks.create_task(self._bindings.look_after())
        finally:
            # What was begun as a leader is answered before another one may lead.
            await self._bindings.end()

    def fitting(self, manifest: Mapping[str, Any], nodes: Sequence[str]) -> Fitting:
        """Which of some nodes fit a pod.

        Raises:
            ExtenderError: nobody can say that now.
        """
        self._check()
        try:
            pod = pod_from_api(manifest)
            wants = self._wants(pod)
        except (PodError, NotBoundError) as error:
            return _none(nodes, str(error))
        why = self._cluster_misfit(pod.uid, wants)
        if why is not None:
            return _none(nodes, why)
        fitting, failed = nodes, dict[str, str]()
        for want in wants.of_node:
            pools, taken, extra = self._of(want.resource, pod.uid)
            left = []
            for node in fitting:
                in_use = taken.get(node, 0) + extra.get(node, 0)
                why = misfit(pools.get(node), in_use, want)
                if why is None:
                    left.append(node)
                else:
                    failed[node] = why
            fitting = left
        return Fitting(fitting, failed)

    def scores(self, manifest: Mapping[str, Any], nodes: Sequence[str]) -> list[int]:
        """How well some nodes that fit suit a pod, from 0 to 10.

        Raises:
            ExtenderError: nobody can say that now.
        """
        self._check()
        try:
            pod = pod_from_api(manifest)
            wants = self._wants(pod).of_node
        except (PodError, NotBoundError):
            wants = ()
        if not wants:
            return [0] * len(nodes)
        totals = [0] * len(nodes)
        for want in wants:
            pools, taken, extra = self._of(want.resource, pod.uid)
            for at, node in enumerate(nodes):
                pool = pools.get(node)
                if pool is not None:
                    in_use = taken.get(node, 0) + extra.get(node, 0)
                    totals[at] += score(pool, in_use, want, self._preference)
        return [total // len(wants) for total in totals]

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Bind a pod to a node, unless another one has been given what it needs meanwhile.

        Raises:
            ExtenderError: it is not bound, or nobody knows.
        """
        self._check()
        try:
            async with asyncio.timeout(DEADLINE):
                await self._bind(namespace, name, uid, node)
        except TimeoutError:
            raise ExtenderError(
                f"the API server did not answer within {DEADLINE:g} s; what became of the binding "
                "is looked up"
            ) from None
        except KubernetesError as error:
            raise ExtenderError(str(error)) from None

    # ------------------------------------------------------------------------------ inside

    def _check(self) -> None:
        problems = self.problems()
        if problems:
            raise ExtenderError("; ".join(problems))

    async def _bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        manifest = await self._pod(namespace, name, uid)
        if _is_on(manifest, node):
            return
        try:
            pod = pod_from_api(manifest)
            if not _asks(pod):
                raise ExtenderError(f"pod {namespace}/{name} asks for no class")
            wants = self._wants(pod)
            here = {one.resource: self._of(one.resource, uid)[0].get(node) for one in wants.of_node}
            annotations = bound_of(pod, here, self._known.cluster_level)
        except (PodError, NotBoundError) as error:
            raise ExtenderError(str(error)) from None
        # From here to the request nothing else is done.
        self._check()
        why = self._misfit(uid, node, wants)
        if why is not None:
            raise ExtenderError(f"node {node} does not fit any more: {why}")
        try:
            await self._bindings.bind(manifest, node, wants, annotations)
        except ConflictError:
            # It is bound already: here, if this was asked for twice.
            if not _is_on(await self._pod(namespace, name, uid), node):
                raise

    async def _pod(self, namespace: str, name: str, uid: str) -> Object:
        try:
            found = await self._client.get(PODS, name, namespace)
        except NotFoundError:
            raise ExtenderError(f"pod {namespace}/{name} is there no more") from None
        if found["metadata"]["uid"] != uid:
            raise ExtenderError(f"pod {namespace}/{name} is another one now")
        return found

    def _wants(self, pod: Pod) -> Wants:
        """What a pod wants; raises NotBoundError."""
        classes = self._known.classes
        for name, quantity in sorted(container_requests(pod).items()):
            one = class_of(name)
            if one is not None and one not in classes and quantity.sign > 0:
                raise NotBoundError(no_such_class(one, classes))
        return wants_of(pod, self._known.cluster_level)

    def _of(
        self, resource: str, uid: str
    ) -> tuple[Mapping[str, Pool], Mapping[str, int], Mapping[str, int]]:
        """What nodes have under a raw name, what is taken, and what is assumed to be."""
        return (
            self._known.pools(resource),
            self._holdings.taken(resource),
            self._bindings.assumed(resource, uid),
        )

    def _misfit(self, uid: str, node: str, wants: Wants) -> str | None:
        for want in wants.of_node:
            pools, taken, extra = self._of(want.resource, uid)
            why = misfit(pools.get(node), taken.get(node, 0) + extra.get(node, 0), want)
            if why is not None:
                return why
        return self._cluster_misfit(uid, wants)

    def _cluster_misfit(self, uid: str, wants: Wants) -> str | None:
        for name, count in wants.of_cluster:
            pool = self._known.cluster_pools.get(name)
            taken = sum(
                self._holdings.taken_of_cluster(one) + self._bindings.assumed_of_cluster(one, uid)
                for one in (() if pool is None else pool.sharers)
            )
            why = cluster_misfit(pool, taken, name, count)
            if why is not None:
                return why
        return None


def _asks(pod: Pod) -> bool:
    """Whether it names a class: a scheduler asks about such pods only, also where it wants none."""
    return any(
        class_of(name) is not None
        for container in (*pod.init_containers, *pod.containers)
        for name in (*container.requests, *container.limits)
    )


def _is_on(pod: Object, node: str) -> bool:
    """Whether it is bound to a node; raises ExtenderError where it can never be."""
    metadata, bound = pod["metadata"], pod["spec"].get("nodeName")
    if bound == node:
        return True
    named = f"pod {metadata['namespace']}/{metadata['name']}"
    if bound:
        raise ExtenderError(f"{named} is on node {bound} already")
    if metadata.get("deletionTimestamp"):
        raise ExtenderError(f"{named} is being deleted")
    return False


def _none(nodes: Sequence[str], why: str) -> Fitting:
    """No node at all."""
    return Fitting((), dict.fromkeys(nodes, why))
