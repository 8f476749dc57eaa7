"""What is to be said of resources in a plan: what is passed over, where a class selects less."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pinfold.core.classes.names import class_of, class_resource
from pinfold.core.classes.resource_class import ResourceClass
from pinfold.core.devices.state import DeviceState
from pinfold.core.pod.pod import Pod, QOSClass
from pinfold.core.values.notes import Note, said_once
from pinfold.core.values.resource_names import is_extended
from pinfold.planning.planner import Planner


def unknown_resources(planner: Planner, pods: Iterable[Pod]) -> tuple[str, ...]:
    """Extended resources that pods request and no plugin lists, in the order of their names.

    The kubelet passes such requests over, and so does a plan; unknown classes are refused.
    """
    asked = {
        name
        for pod in pods
        for container in pod.all_containers
        for name, quantity in container.requests.items()
        if quantity.sign > 0 and is_extended(name) and class_of(name) is None
    }
    return tuple(sorted(asked - planner.devices.keys() - planner.classes.classes.keys()))


def class_notes(planner: Planner, pods: Iterable[Pod]) -> Iterator[str]:
    """Yield what is to be said of classes and descriptions of devices that have no full effect.

    What is to be said of many is said once.
    """
    yield from said_once(_class_notes(planner, pods))


def _class_notes(planner: Planner, pods: Iterable[Pod]) -> Iterator[Note]:
    state = planner.empty.devices
    yield from _descriptions(state)
    beaten = {
        one.name: (winner, count) for one, winner, count in state.classes.outranked(state.inventory)
    }
    asked = {name for pod in pods for one in pod.all_containers for name in one.limits}
    members = state.members()
    for one in state.classes.classes.values():
        name = class_resource(one.name)
        if one.is_cluster_level:
            if name in asked:
                yield Note(f"class {one.name}", "is of the cluster level: planned without it", " ")
            continue
        count = sum(map(len, members[name].values()))
        if one.name in beaten:
            winner, lost = beaten[one.name]
            yield Note(
                f"class {one.name}",
                f"selects {count + lost} devices and may have {count}: {winner} has a higher "
                f"priority than {one.priority}",
                " ",
            )
        elif not count and name in asked:
            why = f"selects no device of this node{_why_none(one, state)}"
            yield Note(f"class {one.name}", why, " ")


def volume_notes(
    planner: Planner, pods: Iterable[Pod], in_memory: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield where a pod's memory has a place, and a kubelet leaves that of a volume to chance.

    ``in_memory`` are the names of volumes in memory, by the pods' uids.  An agent that runs pods
    itself binds them.
    """
    config = planner.config
    is_kubelets = config.own is None or config.runtime == "nri"
    if config.memory_manager_policy != "Static" or not is_kubelets:
        return
    if len(planner.machine.numa_nodes) > 1:
        yield from said_once(
            Note(
                f"pod {pod.full_name}: volume {name}",
                "in memory: a page is on the NUMA node of whoever touches it first, whatever the "
                "memory manager has given the pod",
                " is ",
            )
            for pod in pods
            if pod.qos is QOSClass.GUARANTEED
            for name in in_memory.get(pod.uid, ())
        )


def _why_none(one: ResourceClass, state: DeviceState) -> str:
    """What no device meets, and what there is, so that a misspelt property shows."""
    there = [each.all_properties for each in state.classes.compute_resources(state.inventory)]
    if not there:
        return " (--devices)"
    for each in (each for selector in one.selectors for each in selector):
        if not any(each.matches(properties) for properties in there):
            held = sorted({properties.get(each.key, "") for properties in there} - {""})
            keys = sorted({key for properties in there for key in properties})
            has = f"{each.key} is {', '.join(held)}" if held else f"there is {', '.join(keys)}"
            return f": none has {each.key} {' '.join((each.operator, *each.values))}; {has}"
    return ": none has all that a selector asks for"


def _descriptions(state: DeviceState) -> Iterator[Note]:
    of_cluster = [one for one in state.classes.classes.values() if one.is_cluster_level]
    yield from _described_twice(state)
    for one in state.classes.described:
        listed = state.inventory.get(one.resource_name)
        if not one.node_name and any(each.matches(one.all_properties) for each in of_cluster):
            continue
        at = f"ComputeResource {one.name}"
        if one.node_name not in ("", state.classes.node_name):
            yield Note(at, f"is of node {one.node_name}, left out (--node)", " ")
        elif listed is None:
            yield Note(at, f"no device of {one.resource_name} is known here (--devices)")
        else:
            unknown = [id_ for id_ in one.devices if id_ not in listed.devices]
            if unknown:
                yield Note(at, f"{one.resource_name} has no device {unknown[0]}")


def _described_twice(state: DeviceState) -> Iterator[Note]:
    """Yield where two descriptions that list a device say different things of it."""
    here = [
        one
        for one in state.classes.described
        if one.devices and one.node_name in ("", state.classes.node_name)
    ]
    for one, other in itertools.combinations(here, 2):
        if one.resource_name != other.resource_name:
            continue
        both = sorted(set(one.devices) & set(other.devices))
        keys = sorted(one.properties.keys() & other.properties.keys())
        for key in keys if both else ():
            if one.properties[key] != other.properties[key]:
                yield Note(
                    f"ComputeResource {other.name}",
                    f"{one.name} says {key} of {both[0]}, too; it is {other.properties[key]}, as "
                    "the later one counts",
                )
