"""Classes of devices in an admission: which raw resource stands for a class that a pod asks for.

A class changes nothing but what the same allocation is shown: of one raw resource the devices
that are the class's.  Where several resources could serve, each is an attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product

from msgspec import Struct

from pinfold.core.devices.state import DeviceState
from pinfold.core.pod.pod import Pod, container_limits
from pinfold.core.values.quantity import Quantity

Bindings = Mapping[str, str]
"""Class resource -> the raw resource whose devices are given for it."""


class AskedDevices(Struct, frozen=True):
    """Devices that a container asks for, by ``name``: of ``resource``, among some of them.

    ``among`` is a bitmask of the resource's table; None for all.
    """

    name: str
    resource: str
    required: int
    among: int | None = None


def bindings_of(state: DeviceState, pod: Pod) -> Iterator[Bindings]:
    """Yield the ways to serve the classes that a pod asks for, at least one.

    A resource of which the pod has devices comes first, then those with enough free ones, by
    their names; one that is short comes last, so that there is somebody to say so.
    """
    held = {name for devices in state.allocations.of_pod(pod.uid).values() for name in devices}
    choices = []
    for name, quantity in sorted(container_limits(pod).items()):
        ranked = sorted(
            (
                resource not in held,
                free_of_class(state, name, resource) < quantity.value(),
                resource,
            )
            for resource in state.members().get(name, ())
        )
        if ranked:
            choices.append([(name, resource) for *_, resource in ranked])
    yield from map(dict, product(*choices))


def free_of_class(state: DeviceState, name: str, resource: str) -> int:
    """How many devices of a raw resource are free that a class may be given."""
    table = state.table(resource)
    if table is None:
        return 0
    members = state.members().get(name, {}).get(resource, frozenset())
    return (table.mask(members - state.in_use(resource)) & table.healthy).bit_count()


def asked_devices(
    state: DeviceState, bindings: Bindings, limits: Iterable[tuple[str, Quantity]]
) -> list[AskedDevices]:
    """The devices among some limits; for those, requests equal limits.

    Of one raw resource those come first that have the least to choose from.
    """
    asked = []
    for name, quantity in sorted(limits):
        if name in bindings:
            resource = bindings[name]
            table = state.table(resource)
            among = 0 if table is None else table.mask(state.members()[name][resource])
            asked.append(AskedDevices(name, resource, quantity.value(), among))
        elif name in state.inventory or state.in_use(name):
            asked.append(AskedDevices(name, name, quantity.value()))
    return sorted(
        asked,
        key=lambda one: (one.resource, one.among is None, (one.among or 0).bit_count(), one.name),
    )
