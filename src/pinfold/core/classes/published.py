"""Which compute resources of one publisher there are to be, and the writes that lead there.

The design proposal "New Resource API" (kubernetes/community#782) has the old one kept while pods
consume it after properties have changed, and "only transit to new name when compute resource is
free".  Here that is so device by device: one that a pod has stays where it is, though its
properties are others by now; those that are free are in the new one at once, which does not list
what the old one still has.  So at rest each device is in one, under the properties by which its pod
was given it, and the old one goes with its last user.

On the way a device is in both rather than in none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import Enum
from hashlib import sha256
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.classes.compute_resource import MOST_DEVICES, ComputeResource
from pinfold.core.values.names import LONGEST_LABEL
from pinfold.core.values.quantity import Quantity

InUse = Mapping[str, Collection[str]]
"""Raw name -> the ids of the devices that pods have."""

Known = Mapping[str, ComputeResource]
"""Compute resources by their names."""


CLUSTER_LABELS: Final[Mapping[str, str]] = MappingProxyType(
    {"published-by.pinfold.dev/controller": "classes"}
)
"""The labels of what belongs to no node."""

_NODE_LABEL: Final = "published-by.pinfold.dev/node"
_HASH_BYTES: Final = 8


def node_labels(node_name: str) -> Mapping[str, str]:
    """The labels of what a node publishes: its name, or what of it is a label's value.

    >>> node_labels("node-1")
    {'published-by.pinfold.dev/node': 'node-1'}
    """
    if len(node_name) <= LONGEST_LABEL:
        return {_NODE_LABEL: node_name}
    hashed = sha256(node_name.encode()).hexdigest()[: 2 * _HASH_BYTES]
    return {_NODE_LABEL: f"{node_name[: LONGEST_LABEL - len(hashed) - 1]}_{hashed}"}


class Verb(Enum):
    """What is done with an object; its capacity is a subresource of its own."""

    CREATE = "create"
    UPDATE = "update"
    CAPACITY = "set the capacity of"
    DELETE = "delete"


class Step(Struct, frozen=True):
    """One write; ``resource`` is what there is afterwards, or what goes.

    ``loses``: devices leave it, which have to be where they go by then.
    """

    verb: Verb
    resource: ComputeResource
    loses: bool = False


def settled(wanted: Iterable[ComputeResource], there: Known, in_use: InUse) -> Known:
    """What there is to be.

    Args:
        wanted: what the resources are now.
        there: what is published.
        in_use: the devices that pods have.
    """
    new = {one.name: one for one in wanted}
    kept = _kept(new, there, in_use)
    homes = {
        (there[name].resource_name, id_): name for name, devices in kept.items() for id_ in devices
    }
    found: dict[str, ComputeResource] = {}
    for name, one in new.items():
        free = [id_ for id_ in one.devices if homes.get((one.resource_name, id_), name) == name]
        found |= _with(one, free, kept.pop(name, set()))
    for name, devices in kept.items():
        found |= _with(replace(there[name], capacity=Quantity(len(devices))), (), devices)
    return found


def next_steps(target: Known, there: Known) -> list[Step]:
    """The writes from what is there to what there is to be, none at rest.

    Whatever fails of them, those before have left each device somewhere where it was before.
    """
    return [*_steps(target, there)]


def _steps(target: Known, there: Known) -> Iterator[Step]:
    stays = {name for name, one in there.items() if is_same(one, target.get(name))}
    for name in sorted(there.keys() & target.keys() - stays):
        # Under its name is something else, which nobody can change to what it is to be.
        yield Step(Verb.DELETE, there[name], loses=True)
    for name in sorted(target):
        one, had = target[name], set(there[name].devices) if name in stays else None
        if had is None:
            yield Step(Verb.CREATE, replace(one, capacity=None))
        elif not had.issuperset(one.devices):
            both = had.union(one.devices)
            is_full = len(both) > MOST_DEVICES
            grown = one if is_full else replace(one, devices=_ordered(both))
            yield Step(Verb.UPDATE, grown, loses=is_full)
    for name in sorted(target):
        one, old = target[name], there[name] if name in stays else None
        loses = old is not None and not set(one.devices).issuperset(old.devices)
        steps = [Step(Verb.UPDATE, one, loses=True)] if loses else []
        if one.capacity is not None and (old is None or old.capacity != one.capacity):
            # Who stops between the two has never said that there are more than it names.
            shrinks = old is not None and old.capacity is not None and one.capacity < old.capacity
            steps.insert(0 if shrinks else len(steps), Step(Verb.CAPACITY, one, loses))
        yield from steps
    for name in sorted(there.keys() - target.keys()):
        yield Step(Verb.DELETE, there[name], loses=True)


def is_same(one: ComputeResource, other: ComputeResource | None) -> bool:
    """Whether they differ in nothing but devices and capacity, which alone can be changed."""
    return other is not None and (
        (one.node_name, one.resource_name, one.properties)
        == (other.node_name, other.resource_name, other.properties)
    )


def _kept(new: Known, there: Known, in_use: InUse) -> dict[str, set[str]]:
    """Which of the devices that somebody has stay in which of those that are there."""
    usable = {name: one for name, one in sorted(there.items()) if is_same(one, new.get(name, one))}
    kept: dict[str, set[str]] = {}
    taken: set[tuple[str, str]] = set()
    # Who is in the one of its properties already, after half a move, is not in the other any more.
    for is_wanted in (True, False):
        for name, one in usable.items():
            here = set(one.devices).intersection(in_use.get(one.resource_name, ()))
            if is_wanted:
                here &= set(new[name].devices) if name in new else set()
            mine = {id_ for id_ in here if (one.resource_name, id_) not in taken}
            taken |= {(one.resource_name, id_) for id_ in mine}
            if mine:
                kept[name] = kept.get(name, set()) | mine
    return kept


def _with(
    one: ComputeResource, free: Collection[str], held: Collection[str]
) -> dict[str, ComputeResource]:
    devices = {*free, *held}
    if devices == set(one.devices):
        return {one.name: replace(one, devices=_ordered(devices))}
    if not devices:
        return {}
    # One that is full takes no more free ones; they wait for those who leave.
    room = MOST_DEVICES - len(held)
    fit = _ordered({*held, *_ordered(set(free).difference(held))[:room]})
    return {one.name: replace(one, devices=fit, capacity=Quantity(len(fit)))}


def _ordered(devices: Collection[str]) -> tuple[str, ...]:
    # Shorter ones first: gpu-2 before gpu-10.
    return tuple(sorted(devices, key=lambda id_: (len(id_), id_)))
