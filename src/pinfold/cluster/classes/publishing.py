"""Keeps the compute resources of one publisher as they are to be: of a node, or of no node.

Objects are known from a watch of those with the publisher's labels; nothing is polled, and where
nothing changes nothing is done.  What others edit or delete is put back; objects of others are left
alone.  After each write it is seen anew what is to be done, so it does not matter what was done
before a crash, or by whom.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from pinfold.cluster.feed import Feed
from pinfold.cluster.rights import Right
from pinfold.core.classes.api import ClassError, compute_resource_from_api, compute_resource_to_api
from pinfold.core.classes.compute_resource import ComputeResource, compute_resource_name
from pinfold.core.classes.published import InUse, Known, Step, Verb, is_same, next_steps, settled
from pinfold.ports.kubernetes import (
    COMPUTE_RESOURCES,
    AlreadyExistsError,
    Changed,
    ConflictError,
    Kubernetes,
    KubernetesError,
    NotFoundError,
    Object,
    object_version,
    version_of,
)
from pinfold.retry.backoff import Backoff

FIRST_RETRY: Final = 1.0
LONGEST_RETRY: Final = 60.0
"""Seconds before what failed is tried again."""

MOST_CONFLICTS: Final = 8
"""In a row; then it is waited, too."""

MOST_WRITES: Final = 2
"""Of the same, one soon after the other, before it is waited: who meddles once costs no wait."""

MEMORY: Final = 120.0
"""Seconds that a write is remembered; longer than any pause."""

_SERVER_ERROR: Final = 500

RIGHTS: Final = (
    Right(
        COMPUTE_RESOURCES.group,
        COMPUTE_RESOURCES.plural,
        ("get", "list", "watch", "create", "update", "delete"),
    ),
    Right(COMPUTE_RESOURCES.group, f"{COMPUTE_RESOURCES.plural}/status", ("update",)),
)
"""The requests of a publisher, as rights of RBAC."""

OwnerReference = Mapping[str, Any]
Owner = Callable[[], Awaitable[OwnerReference]]
"""The object with which the compute resources go; raises KubernetesError."""


class Publisher:
    """Publishes compute resources, which :meth:`want` says.

    Args:
        client: the API server.
        node_name: the node of all of them; "" for the cluster level.
        labels: by which it knows its own.
        owner: with what they go; None: they stay.
        report: told each problem when it begins or becomes another one.
        retry: seconds before what failed is tried again, at first and at last.

    Attributes:
        written: how many writes there were.
    """

    def __init__(  # noqa: PLR0913 - collaborators
        self,
        client: Kubernetes,
        node_name: str,
        labels: Mapping[str, str],
        *,
        owner: Owner | None = None,
        report: Callable[[str], None] = lambda _problem: None,
        retry: tuple[float, float] = (FIRST_RETRY, LONGEST_RETRY),
    ) -> None:
        self._client = client
        self._node_name = node_name
        self._labels = labels
        self._owner = owner
        self._report = report
        self._backoff = Backoff(
            *retry,
            KubernetesError,
            report=lambda problem: report(f"compute resources are not published: {problem}"),
        )
        self._wanted: tuple[tuple[ComputeResource, ...], InUse] | None = None
        self._objects: dict[str, Object] = {}
        self._listed = False
        self._news = asyncio.Event()
        self._done: list[tuple[Step, int, float]] = []
        self.written = 0

    @property
    def problem(self) -> str:
        """Why they are not as they are to be; "" while they are."""
        return self._backoff.problem

    def want(self, wanted: Iterable[ComputeResource], in_use: InUse | None = None) -> None:
        """Say what the resources are now, and which devices pods have."""
        used = {name: frozenset(ids) for name, ids in (in_use or {}).items() if ids}
        now = tuple(wanted), used
        if now != self._wanted:
            self._wanted = now
            self._done.clear()
            self._news.set()

    async def run(self) -> None:
        """Publish, for ever; nothing before it is known what is wanted."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow())
                tasks.create_task(self._work())
        finally:
            self._objects.clear()
            self._done.clear()
            self._listed = False

    def _not_known(self, problem: str) -> None:
        if problem:
            self._report(f"compute resources are not known: {problem}")

    async def _follow(self) -> None:
        feed = Feed[Object, str](_name, lambda: self._objects)
        changes = self._client.changes(
            COMPUTE_RESOURCES, labels=self._labels, report=self._not_known
        )
        async for change in changes:
            for name, found in feed.news(change):
                known = self._objects.get(name)
                if isinstance(change, Changed) and version_of(change.version) < object_version(
                    known
                ):
                    continue  # the watch is behind what was written here
                if found is None:
                    self._objects.pop(name, None)
                else:
                    self._saw(found)
            self._listed |= getattr(change, "is_last", False)
            self._news.set()

    async def _work(self) -> None:
        while True:
            self._news.clear()
            async with self._backoff:
                if self._listed and self._wanted is not None:
                    await self._settle()
            if not self._backoff.problem:
                await self._news.wait()

    async def _settle(self) -> None:
        """Write until all is as it is to be; raises the first refusal at the end."""
        failed: dict[tuple[str, bool], KubernetesError] = {}
        conflicts = 0
        while (step := self._next(failed)) is not None:
            wanted, part = self._wanted, (step.resource.name, step.verb is Verb.CAPACITY)
            try:
                await self._do(step)
                if wanted is self._wanted and self._remember(step) > MOST_WRITES:
                    failed[part] = self._undone(step)
            except ConflictError:
                conflicts += 1
                if conflicts > MOST_CONFLICTS:
                    raise
                await self._read_again(step.resource.name)
            except KubernetesError as error:
                if not error.status or error.status >= _SERVER_ERROR:
                    raise
                # One that is refused holds up nobody but those that wait for it.
                failed[part] = error
        for refusal in failed.values():
            raise refusal

    def _remember(self, step: Step) -> int:
        """How often it was done of late; whoever undoes it does so in vain for ever, else."""
        now = asyncio.get_running_loop().time()
        late = [one for one in self._done if now - one[2] < MEMORY]
        count = 1 + sum(times for one, times, _when in late if one == step)
        self._done = [*(one for one in late if one[0] != step), (step, count, now)]
        return count

    def _undone(self, step: Step) -> KubernetesError:
        name = f"node {self._node_name}" if self._node_name else "the cluster level"
        return KubernetesError(
            f"somebody else publishes for {name}, or edits what is published: "
            f"{step.verb.value} {step.resource.name}: it was done, and somebody undid it"
        )

    def _next(self, failed: Collection[tuple[str, bool]]) -> Step | None:
        wanted, in_use = self._wanted or ((), {})
        there = dict(self._there())
        target = settled(wanted, there, in_use)
        # Who may not write a capacity may say which devices there are.
        stuck = {name for name, is_capacity in failed if not is_capacity}
        waiting = {one.resource_name for one in target.values() if one.name in stuck}
        for step in (*self._repairs(there), *next_steps(target, there)):
            one = step.resource
            is_going = _is_going(self._objects.get(one.name))
            is_early = step.loses and one.resource_name in waiting
            has_failed = one.name in stuck or (one.name, step.verb is Verb.CAPACITY) in failed
            if not has_failed and not is_going and not is_early:
                return step
        return None

    def _there(self) -> Iterator[tuple[str, ComputeResource]]:
        for name, found in self._objects.items():
            if not _is_going(found) and _node_of(found) == self._node_name:
                yield name, _read(found)

    def _repairs(self, there: Known) -> Iterator[Step]:
        """Objects whose owner somebody has taken away."""
        for name, one in there.items():
            references = self._objects[name]["metadata"].get("ownerReferences")
            if self._owner is not None and not references:
                yield Step(Verb.UPDATE, one)

    # ------------------------------------------------------------------------------ writes

    async def _do(self, step: Step) -> None:
        one = step.resource
        before = self._objects.get(one.name)
        self.written += 1
        try:
            if step.verb is Verb.CREATE:
                self._saw(await self._created(one))
            elif before is None:
                self.written -= 1  # it has gone since
            elif step.verb is Verb.UPDATE:
                self._saw(await self._updated(before, one))
            elif step.verb is Verb.CAPACITY:
                status = {**before.get("status", {}), "capacity": str(one.capacity)}
                changed = {**before, "status": status}
                self._saw(await self._client.update(COMPUTE_RESOURCES, changed, "status"))
            else:
                await self._client.delete(COMPUTE_RESOURCES, one.name)
                self._objects.pop(one.name, None)
        except NotFoundError:
            if before is None:
                raise  # not even the kind is there
            self._objects.pop(one.name, None)

    async def _created(self, one: ComputeResource) -> Object:
        made = compute_resource_to_api(replace(one, capacity=None))
        made["metadata"] |= await self._marks({})
        try:
            return await self._client.create(COMPUTE_RESOURCES, made)
        except AlreadyExistsError:
            found = await self._client.get(COMPUTE_RESOURCES, one.name)
            if self._is_ours(found):
                return found  # created before, and not seen yet
            # What has the name that is made of what it says is ours, without its labels, too.
            made_name = compute_resource_name(one.node_name, one.resource_name, one.properties)
            if one.name != made_name or not is_same(one, _read(found)) or _is_going(found):
                raise AlreadyExistsError(
                    f"ComputeResource {one.name} is there already, and is somebody else's",
                    "delete it, or give it another name",
                    status=409,
                ) from None
            return await self._updated(found, one)

    async def _updated(self, before: Object, one: ComputeResource) -> Object:
        metadata = before["metadata"]
        changed = {
            **before,
            "metadata": {**metadata, **await self._marks(metadata)},
            "spec": compute_resource_to_api(one)["spec"],
        }
        return await self._client.update(COMPUTE_RESOURCES, changed)

    async def _marks(self, metadata: Mapping[str, Any]) -> Object:
        marks: Object = {"labels": {**(metadata.get("labels") or {}), **self._labels}}
        if self._owner is not None and not metadata.get("ownerReferences"):
            try:
                marks["ownerReferences"] = [dict(await self._owner())]
            except NotFoundError as error:
                # It is not the compute resource that is not there.
                raise KubernetesError(str(error), status=error.status) from None
        return marks

    async def _read_again(self, name: str) -> None:
        try:
            found = await self._client.get(COMPUTE_RESOURCES, name)
        except NotFoundError:
            self._objects.pop(name, None)
        else:
            if self._is_ours(found):
                self._saw(found)
            else:
                self._objects.pop(name, None)

    def _is_ours(self, found: Object) -> bool:
        return self._labels.items() <= (found["metadata"].get("labels") or {}).items()

    def _saw(self, found: Object) -> None:
        self._objects[_name(found)] = found


def _read(found: Object) -> ComputeResource:
    """An object as it is; one that nobody can read is like nothing that is to be there."""
    try:
        return compute_resource_from_api(found)
    except ClassError:
        return ComputeResource(_name(found), _node_of(found), "")


def _name(found: Object) -> str:
    return str(found["metadata"]["name"])


def _node_of(found: Object) -> str:
    spec = found.get("spec")
    return str(spec.get("nodeName", "")) if isinstance(spec, Mapping) else ""


def _is_going(found: Object | None) -> bool:
    return found is not None and "deletionTimestamp" in found["metadata"]
