"""By which raw name a cluster's kubelets give the devices of a class, or why a pod cannot have any.

A kubelet picks the devices, and knows them by their raw name only.  So a class can be asked for
where it has one raw name in the cluster, and a node where all devices of that name are its own.
Once it has one it keeps it while none tells anything, as when the only device plugin is restarted;
where it goes by several, then, most nodes win, and the one that it had where as many have that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from pinfold.core.classes.compute_resource import RESOURCE_NAME
from pinfold.core.classes.names import class_of
from pinfold.core.classes.placing import Pool
from pinfold.core.classes.resource_class import IN, ResourceClass
from pinfold.core.values.resource_names import is_extended

REMEDY: Final = "pinfold convert writes the objects of Dynamic Resource Allocation for it"

_SHOWN: Final = 3


class RawName(Struct, frozen=True):
    """What a pod asks for that wants a class.

    Attributes:
        resource: the raw name; "" for a class of the cluster level, which needs none.
        nodes: how many nodes have devices of the class, and of no others under that name.
        others: the raw names by which other nodes have some, where no pod gets them.
    """

    resource: str
    nodes: int = 0
    others: tuple[str, ...] = ()


class Unbindable(Struct, frozen=True):
    """Why no pod can be given devices of a class by their raw name, and what to do."""

    problem: str
    remedy: str = REMEDY

    def __str__(self) -> str:
        return f"{self.problem} ({self.remedy})"


def raw_names(
    classes: Iterable[ResourceClass], pools: Mapping[str, Mapping[str, Pool]]
) -> dict[str, RawName | Unbindable]:
    """The raw name of each class, by the class's name.

    Args:
        classes: those of the cluster.
        pools: what nodes have, by raw name and node.
    """
    pure: dict[str, dict[str, int]] = {}
    mixed: dict[str, dict[str, list[str]]] = {}
    for resource, nodes in pools.items():
        for node, pool in nodes.items():
            for name in pool.all_of:
                counts = pure.setdefault(name, {})
                counts[resource] = counts.get(resource, 0) + 1
            for name in pool.some_of:
                mixed.setdefault(name, {}).setdefault(resource, []).append(node)
    known = tuple(classes)
    return {
        one.name: _of(one, pure.get(one.name, {}), mixed.get(one.name, {}), known) for one in known
    }


def _of(
    one: ResourceClass,
    pure: Mapping[str, int],
    mixed: Mapping[str, list[str]],
    known: Iterable[ResourceClass],
) -> RawName | Unbindable:
    if one.is_cluster_level:
        return RawName("")
    found = sorted(pure.keys() | mixed.keys())
    if one.last_raw_name in pure:
        resource = max(sorted(pure), key=lambda name: (pure[name], name == one.last_raw_name))
    elif len(found) > 1:
        return Unbindable(
            f"class {one.name}: its devices go by several names here, {_some(found)}, "
            "and a pod can ask for one of them only",
            f"select {RESOURCE_NAME} In [NAME] with the one that is meant, or {REMEDY}",
        )
    else:
        resource = found[0] if found else _selected(one) or _last(one)
    if not resource:
        higher = sorted(each.name for each in known if _is_above(each, one))
        but = f" that no class of a higher priority has ({_some(higher)})" if higher else ""
        wait = f"wait for a node that has some, or select {RESOURCE_NAME} In [NAME]"
        return Unbindable(
            f"class {one.name}: no node tells of devices of it{but}, so nobody knows by which name "
            "to ask for them",
            f"give it their priority, {wait}" if higher else wait,
        )
    if not is_extended(resource) or class_of(resource) is not None:
        return Unbindable(
            f"class {one.name}: it stands for {resource}, which no kubelet gives as devices"
        )
    if mixed and not pure:
        nodes = sorted(mixed[resource])
        where = "the node that has" if len(nodes) == 1 else f"all {len(nodes)} nodes that have"
        return Unbindable(
            f"class {one.name}: on {where} devices of it, {_some(nodes)}, {resource} is of other "
            "classes, too, and it is the kubelet that picks them"
        )
    others = tuple(name for name in found if name != resource)
    return RawName(resource, pure.get(resource, 0), others)


def _is_above(one: ResourceClass, other: ResourceClass) -> bool:
    return one.priority > other.priority and not one.is_cluster_level


def _selected(one: ResourceClass) -> str:
    """The raw name that a class selects whatever there is; "" where it leaves that open."""
    said: set[str] = set()
    for selector in one.selectors:
        named = [r.values for r in selector if (r.key, r.operator) == (RESOURCE_NAME, IN)]
        if not any(len(values) == 1 for values in named):
            return ""
        said.update(values[0] for values in named if len(values) == 1)
    return said.pop() if len(said) == 1 else ""


def _last(one: ResourceClass) -> str:
    """The raw name that it had; "" where none of its selectors goes with it any more."""
    known = {RESOURCE_NAME: one.last_raw_name}
    goes = any(
        all(r.matches(known) for r in selector if r.key == RESOURCE_NAME)
        for selector in one.selectors
        if selector
    )
    return one.last_raw_name if goes else ""


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
