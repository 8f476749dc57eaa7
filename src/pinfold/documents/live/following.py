"""What a reader of events knows: all of it from the first one, and what has changed since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from pinfold.documents.live.event import Changed, Event, Whole
from pinfold.documents.observation import Load, Observation, Observed
from pinfold.documents.status import Container, Pod, Status

OF_STATUS: Final = (
    *("agent", "shared", "pool", "reserved", "allocatable", "offline"),
    *("unhealthy_in_use", "move", "quotas"),
)
"""The fields that a change and a status have in common."""


def apply(whole: Whole, event: Event) -> Whole:
    """What is known after an event, which is what ``GET /v1/status`` and its like said then.

    The counters of the status stay those of the beginning.  A change leaves the load of containers
    as it is, and what was observed leaves everything else.

    Args:
        whole: what was known before; of no account for an event of the kind ``whole``.
        event: the next one.  Of a kind that is unknown here, nothing is learnt.
    """
    if event.whole is not UNSET:
        return event.whole
    if event.changed is not UNSET:
        return changed(whole, event.changed)
    if event.observed is not UNSET:
        return replace(whole, status=_observed(whole.status, event.observed))
    return whole


def changed(whole: Whole, change: Changed) -> Whole:
    """What is known after a change."""
    status = whole.status
    told: dict[str, Any] = {
        name: value
        for name in OF_STATUS
        if (value := getattr(change, name)) is not UNSET and value != getattr(status, name)
    }
    if "quotas" in told:
        told["quotas"] = told["quotas"] or UNSET
    pods = moved_with_the_pool(status.pods, status.pool, change.pool)
    if change.pods or change.gone:
        pods = _merged(pods, change)
    if pods is not status.pods:
        told["pods"] = pods
    if told:
        status = replace(status, **told)
    node = whole.node if change.node is UNSET else change.node
    return replace(whole, status=status, node=node)


def moved_with_the_pool(pods: Sequence[Pod], before: str, now: str | UnsetType) -> Sequence[Pod]:
    """These pods, when the shared pool was ``before`` and is ``now``: who is in it is where it is.

    So a pool of another size is told in a word, and not once for each container in it.
    """
    if now is UNSET or now == before or not before:
        return pods
    return [_moved(pod, before, now) for pod in pods]


def _moved(pod: Pod, before: str, now: str) -> Pod:
    containers = [_in_pool(container, before, now) for container in pod.containers]
    if all(a is b for a, b in zip(containers, pod.containers, strict=True)):
        return pod
    return replace(pod, containers=containers)


def _in_pool(container: Container, before: str, now: str) -> Container:
    if container.shared == before:
        return replace(container, shared=now)
    if container.cpus == before and not container.exclusive:
        return replace(container, cpus=now)
    return container


def _merged(pods: Sequence[Pod], change: Changed) -> list[Pod]:
    """The pods with those that are otherwise, in the order of their admission."""
    known = {pod.uid: pod for pod in pods}
    for uid in change.gone:
        known.pop(uid, None)
    for pod in change.pods:
        known[pod.uid] = _with_load_of(known.get(pod.uid), pod)
    return sorted(known.values(), key=in_order)


def in_order(pod: Pod) -> tuple[float, str]:
    """What pods are sorted by: when they were admitted, and by uid where that is the same."""
    return pod.admitted_at, pod.uid


def _with_load_of(before: Pod | None, pod: Pod) -> Pod:
    if before is None:
        return pod
    loads = {one.name: one.load for one in before.containers if one.load is not UNSET}
    if not loads:
        return pod
    return replace(pod, containers=list(_loaded(pod, loads)))


def _loaded(pod: Pod, loads: Mapping[str, Load]) -> Iterator[Container]:
    """Its containers: those that run do what they did."""
    for one in pod.containers:
        load = loads.get(one.name, UNSET) if one.state == "RUNNING" else UNSET
        yield one if load is one.load else replace(one, load=load)


def _observed(status: Status, told: Observation) -> Status:
    loads: dict[str, dict[str, Load]] = {}
    for one in told.containers:
        loads.setdefault(one.pod_uid, {})[one.container] = one.last
    observed = Observed(**{name: getattr(told, name) for name in Observed.__struct_fields__})
    pods = [_doing(pod, loads.get(pod.uid, {})) for pod in status.pods]
    return replace(status, pods=pods, observation=observed)


def _doing(pod: Pod, loads: Mapping[str, Load]) -> Pod:
    if not loads and all(one.load is UNSET for one in pod.containers):
        return pod
    containers = [
        one if (load := loads.get(one.name, UNSET)) is one.load else replace(one, load=load)
        for one in pod.containers
    ]
    return replace(pod, containers=containers)
