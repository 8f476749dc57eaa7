"""Keeps the status of each ResourceClass: how many there are, how many are asked for, and how.

For the replica that leads.  All is counted anew from what is known of the cluster; nothing is
polled, what comes in a burst is counted once, and a status that says so already is not written.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pinfold.cluster.classes.holdings import Holdings
from pinfold.cluster.classes.known import Known
from pinfold.core.classes.placing import Matcher, count_of_all
from pinfold.core.classes.raw_names import RawName, Unbindable
from pinfold.ports.kubernetes import (
    RESOURCE_CLASSES,
    ConflictError,
    Kubernetes,
    KubernetesError,
    NotFoundError,
    Object,
    object_version,
)
from pinfold.retry.backoff import Backoff

JOIN: Final = 0.5
"""Seconds in which whatever else comes is counted with the first."""

BINDABLE: Final = "Bindable"
_FIRST_RETRY: Final = 0.25
_LONGEST_RETRY: Final = 30.0
_SERVER_ERROR: Final = 500


def _wall() -> datetime:
    return datetime.now(UTC)


class ClassStatus:
    """Writes what the printer columns of a class show.

    Args:
        client: the API server.
        known: the classes and compute resources; somebody follows them.
        holdings: what pods ask for; somebody follows them.
        wall: the time of day, for those who read when a condition became another one.
        report: told each problem when it begins or becomes another one.

    Attributes:
        written: how often a status was written.
    """

    def __init__(
        self,
        client: Kubernetes,
        known: Known,
        holdings: Holdings,
        *,
        wall: Callable[[], datetime] = _wall,
        report: Callable[[str], None] = lambda _problem: None,
    ) -> None:
        self._client = client
        self._known = known
        self._holdings = holdings
        self._wall = wall
        self._backoff = Backoff(
            _FIRST_RETRY,
            _LONGEST_RETRY,
            KubernetesError,
            report=lambda problem: report(f"the status of classes is not written: {problem}"),
        )
        self._news = asyncio.Event()
        self._allocatable: Mapping[str, int] | None = None
        self._objects: dict[str, Object] = {}
        self.written = 0

    async def run(self) -> None:
        """Keep them, for ever; for the one that leads."""
        self._classes_changed()
        self._known.listeners.append(self._classes_changed)
        self._known.class_listeners.append(self._class_seen)
        self._holdings.listeners.append(self._pods_changed)
        try:
            while True:
                await self._known.synced.wait()
                await self._holdings.synced.wait()
                self._news.clear()
                async with self._backoff:
                    await self._keep()
                if not self._backoff.problem:
                    await self._news.wait()
                    await asyncio.sleep(JOIN)
        finally:
            self._known.listeners.remove(self._classes_changed)
            self._known.class_listeners.remove(self._class_seen)
            self._holdings.listeners.remove(self._pods_changed)
            self._objects.clear()

    def _classes_changed(self) -> None:
        self._allocatable = None
        self._news.set()

    def _class_seen(self, name: str) -> None:
        """Whether somebody else has written its status; what was written here is no news."""
        there, ours = self._known.objects.get(name), self._objects.get(name)
        if not there or not ours or _text(there) != _text(ours):
            self._news.set()

    def _pods_changed(self, _uid: str) -> None:
        self._news.set()

    async def _keep(self) -> None:
        """Write those that say something else; raises the first refusal at the end."""
        known = self._known
        if self._allocatable is None:
            self._allocatable = allocatable(known)
        for gone in self._objects.keys() - known.objects.keys():
            del self._objects[gone]
        wanted = {name: self._wanted(name) for name in known.raw_names}
        refusal: KubernetesError | None = None
        for name, fields in wanted.items():
            try:
                await self._write(name, fields)
            except NotFoundError:
                continue  # the watch will say so
            except KubernetesError as error:
                if not error.status or error.status >= _SERVER_ERROR:
                    raise
                refusal = refusal or error
        if refusal is not None:
            raise refusal

    def _wanted(self, name: str) -> Mapping[str, Any]:
        known, made = self._known, self._known.raw_names[name]
        last = known.classes[name].last_raw_name if name in known.classes else ""
        condition = {"type": BINDABLE, "status": "True", "reason": "OneRawName"}
        if isinstance(made, Unbindable):
            condition |= {"status": "False", "reason": "NotBindable", "message": str(made)}
            if name in known.broken:
                condition["reason"] = "Invalid"
        elif made.resource:
            last = made.resource
            condition["message"] = _given(made)
        else:
            last = ""
            condition |= {"reason": "ClusterLevel", "message": "it belongs to no node"}
        return {
            # What it had is kept: it is what who asks for it waits for while no node tells of any.
            "resourceName": last or None,
            "allocatable": str((self._allocatable or {}).get(name, 0)),
            "requested": str(self._holdings.asked(name)),
            "conditions": [condition],
        }

    async def _write(self, name: str, wanted: Mapping[str, Any]) -> None:
        before = self._known.objects.get(name)
        if before is None:
            return
        ours = self._objects.get(name, before)
        if object_version(ours) > object_version(before):
            before = ours  # the watch is behind what was written here
        if (changed := self._with(before, wanted)) is None:
            return
        try:
            written = await self._client.update(RESOURCE_CLASSES, changed, "status")
        except ConflictError:
            before = await self._client.get(RESOURCE_CLASSES, name)
            if (changed := self._with(before, wanted)) is None:
                written = before
            else:
                written = await self._client.update(RESOURCE_CLASSES, changed, "status")
        self._objects[name] = written

    def _with(self, found: Object, wanted: Mapping[str, Any]) -> Object | None:
        """A class with the status that is wanted; None where it has it."""
        status = found.get("status") or {}
        (condition,) = wanted["conditions"]
        others, since = [], None
        for one in status.get("conditions") or ():
            if one.get("type") != BINDABLE:
                others.append(one)
            elif one.get("status") == condition["status"]:
                since = one.get("lastTransitionTime")
        when = since or self._wall().strftime("%Y-%m-%dT%H:%M:%SZ")
        now = {key: one for key, one in {**status, **wanted}.items() if one is not None}
        now["conditions"] = [*others, {**condition, "lastTransitionTime": when}]
        if now == status:
            return None
        self.written += 1
        return {**found, "status": now}


def _given(made: RawName) -> str:
    text = f"pods that ask for it are given {made.resource}"
    if not made.nodes:
        return f"{text}, which no node has of it now"
    if made.others:
        return f"{text}; they are placed nowhere where it goes by {' or '.join(made.others)}"
    return text


def allocatable(known: Known) -> Mapping[str, int]:
    """How many there are of each class: of nodes, or of none for a class of the cluster level.

    What a class is not given, since another one has a higher priority, does not count.
    """
    # Those of the cluster level take nothing that a node has.
    matcher = Matcher(one for one in known.classes.values() if not one.is_cluster_level)
    found = Counter({name: pool.capacity for name, pool in known.cluster_pools.items()})
    for nodes in known.all_pools.values():
        for pool in nodes.values():
            for name in pool.all_of - known.cluster_level:
                found[name] += pool.capacity
            for name in pool.some_of - known.cluster_level:
                parts = [known.compute_resources[one] for one in pool.compute_resources]
                own = [one for one in parts if name in matcher.names(one)]
                found[name] += count_of_all(own)
    return found


def _text(found: Object) -> str:
    return str(found["metadata"].get("resourceVersion", ""))
