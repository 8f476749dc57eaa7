"""Which nodes of a cluster have what a pod wants of classes, and which of them suit it best.

A scheduler's side of classes: it knows how many devices a node has by one raw name, and how many of
them are taken, but not which ones.  So what a kubelet gives by that name has to be of the class
whichever it gives: a node where a raw name has devices of other kinds, too, does not fit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from typing import Final

from msgspec import Struct

from pinfold.core.classes.bound import Bound, bound_key, bound_text, parsed_bound
from pinfold.core.classes.compute_resource import ComputeResource
from pinfold.core.classes.names import class_of
from pinfold.core.classes.resource_class import ResourceClass, classes_of
from pinfold.core.pod.pod import Container, Pod, container_requests
from pinfold.core.values.quantity import Quantity
from pinfold.core.values.resource_names import is_extended

MOST_SCORE: Final = 10
_NONE: Final[frozenset[str]] = frozenset()


class Preference(Enum):
    """Which nodes suit better: those that are fuller, or emptier."""

    PACK = "pack"
    SPREAD = "spread"


class Pool(Struct, frozen=True):
    """What a node has under one raw name.

    Attributes:
        capacity: how many devices.
        all_of: the classes that each of them can be asked for by.
        some_of: those that only some can be asked for by.
        compute_resources: the names of what they are made of.
    """

    capacity: int
    all_of: frozenset[str] = _NONE
    some_of: frozenset[str] = _NONE
    compute_resources: tuple[str, ...] = ()


class ClusterPool(Struct, frozen=True):
    """What a class of the cluster level has.

    ``sharers`` are the classes, itself among them, by which some of it can be asked for.
    """

    capacity: int
    sharers: frozenset[str]


class Want(Struct, frozen=True):
    """What a pod wants under one raw name: so many, each of all these classes."""

    resource: str
    count: int
    classes: frozenset[str]


class Wants(Struct, frozen=True):
    """What a pod wants of classes: of its node, and by class of the cluster."""

    of_node: tuple[Want, ...] = ()
    of_cluster: tuple[tuple[str, int], ...] = ()


class NotBoundError(ValueError):
    """A pod asks for a class, and nobody has said by which raw name it gets it."""


class Matcher:
    """By which classes something can be asked for; quick for many things that are alike.

    What a node has is of classes of the node's level, and what belongs to no node of the cluster's.
    """

    def __init__(self, classes: Iterable[ResourceClass]) -> None:
        known = tuple(classes)
        self._levels = {
            level: tuple(one for one in known if one.is_cluster_level is level)
            for level in (False, True)
        }
        self._keys = sorted(
            {one.key for each in known for selector in each.selectors for one in selector}
        )
        self._found: dict[tuple[bool | str | None, ...], frozenset[str]] = {}

    def names(self, resource: ComputeResource) -> frozenset[str]:
        """As :func:`classes_of`, among the classes of its level."""
        level, properties = not resource.node_name, resource.all_properties
        seen = (level, *map(properties.get, self._keys))
        found = self._found.get(seen)
        if found is None:
            found = frozenset(one.name for one in classes_of(self._levels[level], properties))
            self._found[seen] = found
        return found


def count_of(one: ComputeResource) -> int:
    """How many devices a compute resource has: 0 where it does not say.

    Where it names them there are no more than it names, whatever its capacity says.
    """
    if one.capacity is None:
        return len(one.devices)
    capacity = max(0, one.capacity.value())
    return min(capacity, len(one.devices)) if one.devices else capacity


def count_of_all(resources: Collection[ComputeResource]) -> int:
    """How many devices some compute resources have that are of one node and one raw name.

    A device that several of them name is there once: while its properties change, it may be in two.
    """
    named = [id_ for one in resources if count_of(one) for id_ in one.devices]
    return max(0, sum(map(count_of, resources)) - (len(named) - len(set(named))))


def pool_of(matcher: Matcher, resources: Collection[ComputeResource]) -> Pool:
    """What a node has under one raw name, of all compute resources with that node and name."""
    counted = [one for one in resources if count_of(one)]
    classes = [matcher.names(one) for one in counted]
    all_of = classes[0].intersection(*classes[1:]) if classes else _NONE
    names = tuple(sorted(one.name for one in counted))
    return Pool(count_of_all(counted), all_of, _NONE.union(*classes) - all_of, names)


def pools_of(
    classes: Iterable[ResourceClass], resources: Iterable[ComputeResource]
) -> dict[tuple[str, str], Pool]:
    """What nodes have, by node and raw name."""
    matcher = Matcher(classes)
    parts: dict[tuple[str, str], list[ComputeResource]] = {}
    for one in resources:
        if one.node_name:
            parts.setdefault((one.node_name, one.resource_name), []).append(one)
    return {key: pool_of(matcher, one) for key, one in parts.items()}


def cluster_pools(
    classes: Iterable[ResourceClass], resources: Iterable[ComputeResource]
) -> dict[str, ClusterPool]:
    """What the classes of the cluster level have: of the resources that belong to no node."""
    known = tuple(classes)
    level = frozenset(one.name for one in known if one.is_cluster_level)
    matcher = Matcher(known)
    capacity, sharers = dict.fromkeys(level, 0), {name: {name} for name in level}
    for one in resources:
        if not one.node_name and count_of(one):
            having = matcher.names(one)
            for name in having:
                capacity[name] += count_of(one)
                sharers[name] |= having
    return {name: ClusterPool(capacity[name], frozenset(sharers[name])) for name in level}


def wants_of(pod: Pod, cluster_level: Collection[str] = ()) -> Wants:
    """What a pod wants of classes, by what was recorded of it when it came in.

    Args:
        pod: the pod.
        cluster_level: the names of the classes whose resources belong to no node.

    Raises:
        NotBoundError: it asks for a class and was not bound to a raw name, or was bound to one
            while the class was of the node's level, and it is of the cluster's now.
    """
    requests = container_requests(pod)
    classes: dict[str, set[str]] = {}
    for container in (*pod.init_containers, *pod.containers):
        for one in _bound(pod, container, cluster_level):
            classes.setdefault(one.resource, set()).add(one.class_name)
    of_node = tuple(
        Want(name, requests[name].value(), frozenset(classes[name])) for name in sorted(classes)
    )
    of_cluster = [(name, count) for name, count in _classes(requests) if name in cluster_level]
    return Wants(of_node, tuple(of_cluster))


def _bound(pod: Pod, container: Container, cluster_level: Collection[str]) -> list[Bound]:
    """What a container has for its classes; raises NotBoundError."""
    wanted = dict(_classes(container.requests))
    if not wanted:
        return []
    key = bound_key(container.name)
    try:
        said = {one.class_name: one for one in parsed_bound(pod.annotations.get(key, ""))}
    except ValueError as error:
        raise NotBoundError(f"annotation {key}: {error}") from None
    for name in wanted:
        if name in said and name in cluster_level:
            # It has raw devices of a node, which nobody would look at any more.
            raise NotBoundError(
                f"container {container.name} is bound to {said[name].resource} for class {name}, "
                "which has become one of the cluster level: create the pod anew"
            )
    asked = {name: count for name, count in wanted.items() if name not in cluster_level}
    raw: dict[str, int] = {}
    for name, count in asked.items():
        bound = said.get(name)
        if bound is None or bound.count != count:
            raise NotBoundError(
                f"container {container.name} asks for class {name} and was not bound to a raw "
                "resource: create the pod anew where the webhook of pinfold classes serve is "
                "configured"
            )
        raw[bound.resource] = raw.get(bound.resource, 0) + count
    for resource, count in raw.items():
        has = container.requests.get(resource) if is_extended(resource) else None
        if has is None or has.value() < count:
            raise NotBoundError(
                f"container {container.name} is bound to {count} {resource} and requests "
                f"{0 if has is None else has.value()}: create the pod anew"
            )
    return [said[name] for name in asked]


def _classes(requests: Mapping[str, Quantity]) -> Iterator[tuple[str, int]]:
    """The classes among some requests, and how much of each."""
    for name, quantity in sorted(requests.items()):
        one = class_of(name)
        if one is not None and quantity.sign > 0:
            yield one, quantity.value()


def misfit(pool: Pool | None, taken: int, want: Want) -> str | None:
    """Why a node does not have what a pod wants under one raw name; None where it has.

    Args:
        pool: what the node has under it.
        taken: how many of them other pods have.
        want: what is wanted.
    """
    if pool is not None and want.classes <= pool.all_of:
        if pool.capacity - taken >= want.count:
            return None
        named = _named(want.classes)
        if pool.capacity < want.count:
            return f"fewer than {want.count} devices of {named}"
        return f"too few free devices of {named}"
    if pool is None or not want.classes <= pool.all_of | pool.some_of:
        missing = want.classes if pool is None else want.classes - pool.all_of - pool.some_of
        return f"no devices of {_named(missing)}"
    mixed = _named(want.classes - pool.all_of)
    return f"{want.resource} of {mixed} and of others, mixed"


def cluster_misfit(pool: ClusterPool | None, taken: int, name: str, count: int) -> str | None:
    """Why a cluster does not have so many of a class of the cluster level; None where it has.

    Args:
        pool: what the class has.
        taken: how many pods have of it, and of the classes that share it.
        name: the class.
        count: how many are wanted.
    """
    capacity = 0 if pool is None else pool.capacity
    if capacity - taken >= count:
        return None
    if capacity < count:
        return f"fewer than {count} resources of {_named((name,))}"
    return f"too few free resources of {_named((name,))}"


def score(pool: Pool, taken: int, want: Want, preference: Preference) -> int:
    """How well a node that fits suits, from 0 to :data:`MOST_SCORE`.

    First whether its devices serve no other class, then how full it will be.
    """
    half = MOST_SCORE // 2
    full = (taken + want.count) / pool.capacity if pool.capacity else 1.0
    share = full if preference is Preference.PACK else 1.0 - full
    alone = half if pool.all_of == want.classes and not pool.some_of else 0
    return alone + min(half, max(0, round(half * share)))


def bound_of(
    pod: Pod, pools: Mapping[str, Pool | None], cluster_level: Collection[str] = ()
) -> dict[str, str]:
    """The annotations of a pod that is bound to a node: those that it has, and of what they are.

    Args:
        pod: the pod.
        pools: what the node has, by raw name; None: nothing.
        cluster_level: the names of the classes whose resources belong to no node.

    Raises:
        NotBoundError: as :func:`wants_of`.
    """
    found = {}
    for container in (*pod.init_containers, *pod.containers):
        bound = _bound(pod, container, cluster_level)
        if bound:
            found[bound_key(container.name)] = bound_text(
                Bound(one.class_name, one.resource, one.count, _only(pools, one.resource))
                for one in bound
            )
    return found


def _only(pools: Mapping[str, Pool | None], resource: str) -> str:
    """The compute resource that devices come from; "" where there are several."""
    pool = pools.get(resource)
    names = () if pool is None else pool.compute_resources
    return names[0] if len(names) == 1 else ""


def _named(classes: Iterable[str]) -> str:
    names = sorted(classes)
    return f"class{'es' if len(names) > 1 else ''} {' and '.join(names)}"
