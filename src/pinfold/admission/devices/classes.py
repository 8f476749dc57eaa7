"""Classes of devices in an admission: which raw resource stands for a class that a pod asks for.

A class changes nothing but what the same allocation is shown: of one raw resource the devices
that are the class's.  Where several resources could serve, each is an attempt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import reduce
from itertools import islice
from operator import or_
from typing import Final

from msgspec import Struct

from pinfold.admission.refusal import UnmetWishError
from pinfold.core.classes.names import class_of, no_such_class
from pinfold.core.devices.state import DeviceState
from pinfold.core.pod.pod import Pod, container_limits, once_a_pod
from pinfold.core.values.quantity import Quantity

Bindings = Mapping[str, str]
"""Class resource -> the raw resource whose devices are given for it."""

MOST_WAYS: Final = 64
"""So many are tried before a pod is refused: nothing else is admitted meanwhile."""
_MOST_STEPS: Final = 4096


class AskedDevices(Struct, frozen=True):
    """Devices that a container asks for, by ``name``: of ``resource``, among some of them.

    ``among`` is a bitmask of the resource's table; None for all.
    """

    name: str
    resource: str
    required: int
    among: int | None = None


class Ways(Struct, frozen=True):
    """Ways to serve the classes that a pod asks for, at least one.

    ``complete`` is False where there may be more that were not looked for.
    """

    bindings: tuple[Bindings, ...]
    complete: bool = True

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be said where none of them serves."""
        if self.complete:
            return ()
        return (
            (
                f"only {len(self.bindings)} of the ways to serve its classes were tried: too many "
                "resources could serve too many classes"
            ),
        )


def ways_to_serve(state: DeviceState, pod: Pod, most: int = MOST_WAYS) -> Ways:
    """Find ways to serve the classes that a pod asks for, no more than ``most``.

    A resource of which the pod has devices comes first, then the others by their names.  Those
    without enough free ones are left out, for one class as for all that would share them; where
    nothing is left, the one way is what is short, so that there is somebody to say so.
    """
    if not state.members():
        return NO_CLASSES_ASKED
    search = _Search(state, pod)
    found = tuple(islice(search.ways(), most + 1))
    return Ways(found[:most] or (search.first,), complete=not search.has_more)


NO_CLASSES_ASKED: Final = Ways(({},))
"""The only way to serve a pod that asks for no class."""


class _Search:
    """Goes through the ways to serve the classes, depth first; its steps are bounded, too."""

    def __init__(self, state: DeviceState, pod: Pod) -> None:
        self._held = {
            name for devices in state.allocations.of_pod(pod.uid).values() for name in devices
        }
        self._together = Counter[str]()
        for container in pod.containers:
            for name, quantity in container.limits.items():
                self._together[name] += quantity.value()
        self._free: dict[tuple[str, str], int] = {}
        self._choices: list[tuple[str, list[str]]] = []
        self.first: dict[str, str] = {}
        for name, quantity in sorted(container_limits(pod).items()):
            ranked = sorted(state.members().get(name, ()), key=lambda r: (r not in self._held, r))
            self._free |= {(name, one): _free(state, name, one) for one in ranked}
            if ranked:
                fit = [one for one in ranked if self._has(one, [name], quantity.value())]
                self._choices.append((name, fit))
                self.first[name] = (fit or ranked)[0]
        self._steps = 0
        self.has_more = False

    def ways(self) -> Iterator[Bindings]:
        """Yield the ways; ``has_more`` is False once they were all of them."""
        self.has_more = True
        yield from self._from(0, {})
        self.has_more = self._steps >= _MOST_STEPS

    def _from(self, at: int, chosen: dict[str, str]) -> Iterator[Bindings]:
        if at == len(self._choices):
            yield dict(chosen)
            return
        name, resources = self._choices[at]
        for resource in resources:
            if self._steps >= _MOST_STEPS:
                return
            self._steps += 1
            sharing = [name, *(other for other, one in chosen.items() if one == resource)]
            if self._has(resource, sharing, sum(self._together[one] for one in sharing)):
                yield from self._from(at + 1, {**chosen, name: resource})

    def _has(self, resource: str, names: Iterable[str], count: int) -> bool:
        """Whether so many are free for all these classes together."""
        if resource in self._held:
            return True
        free = reduce(or_, (self._free[name, resource] for name in names))
        return free.bit_count() >= count


def _free(state: DeviceState, name: str, resource: str) -> int:
    """The free devices of a raw resource that a class may be given, a bitmask of its table."""
    table = state.table(resource)
    if table is None:
        return 0
    members = state.members().get(name, {}).get(resource, frozenset())
    return table.mask(members - state.in_use(resource)) & table.healthy


def class_refusal(
    state: DeviceState, pod: Pod, elsewhere: Collection[str] = ()
) -> UnmetWishError | None:
    """Why a pod cannot run here whatever is free: it asks for a class that nobody has defined.

    Args:
        state: the devices; a plugin may list a name as its own.
        pod: the pod.
        elsewhere: resources that the node has besides.
    """
    known = state.classes
    for name, one in _classes_asked(pod):
        has = name in known.classes or name in state.inventory or name in elsewhere
        if has or state.in_use(name):
            continue
        return UnmetWishError(no_such_class(one, known.names))
    return None


@once_a_pod
def _classes_asked(pod: Pod) -> tuple[tuple[str, str], ...]:
    """The resources of classes that a pod asks some of, by name, each with the class."""
    some = (name for name, quantity in container_limits(pod).items() if quantity.sign > 0)
    asked = ((name, class_of(name)) for name in sorted(some))
    return tuple((name, one) for name, one in asked if one is not None)


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
