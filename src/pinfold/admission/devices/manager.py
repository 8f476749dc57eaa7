"""The device manager as a hint provider of the topology manager, for one admission."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from pinfold.admission.devices.classes import (
    AskedDevices,
    Bindings,
    asked_devices,
    ways_to_serve,
)
from pinfold.core.devices.devices import PreferenceQuestion
from pinfold.core.devices.policy import (
    DeviceRequest,
    PreferenceNeededError,
    device_hints,
    devices_to_allocate,
    nodes_with_devices,
)
from pinfold.core.devices.state import DeviceState
from pinfold.core.devices.table import EMPTY_TABLE, DeviceTable
from pinfold.core.pod.pod import Container, Pod, container_limits
from pinfold.core.topology_manager.hints import AllocationError, TopologyHint
from pinfold.core.values.quantity import Quantity

Answers = Mapping[PreferenceQuestion, tuple[str, ...] | str]
"""What plugins answered: the ids that they prefer, or the text of their error."""

Hints = dict[str, list[TopologyHint] | None]


class DeviceManager:
    """Works on a draft of one pod's devices; the state that it is made from stays as it is.

    ``allocations`` is what it has given so far, container -> resource -> ids in natural order;
    ``held`` is all that the pod's containers have, what they had before included: what
    ``DeviceState.with_pod`` wants; ``by_class`` what it has given for classes, container -> class
    resource -> ids, which are among the allocations.  Resources that no plugin registered, and of
    which nobody has a device, are none of its business.  ``bindings`` say of which resources the
    devices of classes are; None for the first way that there is.  ``by_devices``: hints are made
    of the NUMA nodes that have a device of the resource, not of all ``numa_nodes``
    (:data:`~pinfold.core.kubelet.version_rules.DEVICE_HINTS_BY_DEVICES`).  ``late`` takes what a
    kubelet would find out after the admission only; None: who decides here gives all or nothing.
    """

    def __init__(  # noqa: PLR0913 - what there is, and how it is asked
        self,
        state: DeviceState,
        answers: Answers,
        numa_nodes: Sequence[int],
        bindings: Bindings | None = None,
        *,
        by_devices: bool = True,
        late: list[str] | None = None,
    ) -> None:
        self.state = state
        self.bindings = bindings
        self.answers = answers
        self.late = late
        self.numa_nodes = tuple(numa_nodes)
        self.by_devices = by_devices
        self.allocations: dict[str, dict[str, tuple[str, ...]]] = {}
        self.held: dict[str, dict[str, tuple[str, ...]]] = {}
        self.by_class: dict[str, dict[str, tuple[str, ...]]] = {}
        self._pod_uid: str | None = None
        self._in_use: dict[str, int] = {}
        self._reusable: dict[str, int] = {}

    def get_topology_hints(self, pod: Pod, container: Container) -> Hints:
        """The NUMA affinities that could serve a container, per resource.

        ``None`` for a resource of which no device names a NUMA node.
        """
        self._begin(pod)
        held = self.held.get(container.name, {})
        asked = self._asked(container.limits.items())
        return {one.name: self._hints(one, asked, held.get(one.resource, ())) for one in asked}

    def get_pod_topology_hints(self, pod: Pod) -> Hints:
        """The NUMA affinities that could serve the whole pod, per resource."""
        self._begin(pod)
        hints: Hints = {}
        asked = self._asked(container_limits(pod).items())
        for one in asked:
            held = {d for devices in self.held.values() for d in devices.get(one.resource, ())}
            hints[one.name] = self._hints(one, asked, held, reuse=False)
        return hints

    def allocate(self, pod: Pod, container: Container, affinity: TopologyHint) -> None:
        """Give the container its devices, if it asks for any: of all its resources, or none.

        Raises:
            AllocationError: it cannot have them; the message is the kubelet's.
            PreferenceNeededError: its plugin has to be asked first.
        """
        self._begin(pod)
        name = container.name
        chosen: dict[str, int] = {}
        by_class: dict[str, tuple[str, ...]] = {}
        asked = self._asked(container.limits.items())
        for one in asked:
            before = chosen.get(one.resource, 0)
            devices = self._choose(pod, name, one, asked, before, affinity)
            chosen[one.resource] = before | devices
            if one.among is not None and devices:
                shown = self.state.table(one.resource) or EMPTY_TABLE
                by_class[one.name] = shown.names(devices)
        if by_class:
            self.by_class[name] = by_class
        for resource, devices in chosen.items():
            table = self.state.table(resource)
            if table is not None and devices:
                ids = table.names(devices)
                self._in_use[resource] = self._used(resource, table) | devices
                self.held.setdefault(name, {})[resource] = ids
                self.allocations.setdefault(name, {})[resource] = ids
        ends_before_others = any(
            init.name == name and not init.is_sidecar for init in pod.init_containers
        )
        for resource, ids in self.held.get(name, {}).items():
            mask = (self.state.table(resource) or EMPTY_TABLE).mask(ids)
            before = self._reusable.get(resource, 0)
            self._reusable[resource] = before | mask if ends_before_others else before & ~mask

    def allocate_pod(self, pod: Pod, affinity: TopologyHint) -> None:
        """Give all containers of a pod with resources of its own their devices.

        A kubelet does so when it creates them, with the affinity of the admission: what it cannot
        have then fails the container, and not the pod.

        Raises:
            AllocationError: they cannot have them, and :attr:`late` is None.
            PreferenceNeededError: a plugin has to be asked first.
        """
        for container in pod.all_containers:
            try:
                self.allocate(pod, container, affinity)
            except AllocationError as error:
                if self.late is None:
                    raise
                self.late.append(
                    f"container {container.name} cannot be created: a pod with resources of its "
                    f"own gets its devices after its admission, and then {error}"
                )

    def _begin(self, pod: Pod) -> None:
        if self._pod_uid is None:
            self._pod_uid = pod.uid
            if self.bindings is None:
                (self.bindings,) = ways_to_serve(self.state, pod, most=1).bindings
            self.held = {
                name: dict(devices)
                for name, devices in self.state.allocations.of_pod(pod.uid).items()
            }
        elif self._pod_uid != pod.uid:
            raise ValueError(f"a draft of pod {self._pod_uid!r} is no use for pod {pod.uid!r}")

    def _asked(self, limits: Iterable[tuple[str, Quantity]]) -> list[AskedDevices]:
        return asked_devices(self.state, self.bindings or {}, limits)

    def _hints(
        self,
        one: AskedDevices,
        asked: Sequence[AskedDevices],
        held: Collection[str],
        *,
        reuse: bool = True,
    ) -> list[TopologyHint] | None:
        table = self.state.table(one.resource)
        if table is None or not table.has_topology:
            return None
        nodes = nodes_with_devices(table, self.numa_nodes) if self.by_devices else self.numa_nodes
        if held:
            required = _required(one.resource, asked)
            if len(held) != required:
                return []
            return device_hints(table, nodes, table.mask(held), 0, required)
        among = table.every if one.among is None else one.among
        available = table.healthy & ~self._used(one.resource, table) & among
        reusable = self._reusable.get(one.resource, 0) & among if reuse else 0
        if (available | reusable).bit_count() < one.required:
            return []
        return device_hints(table, nodes, available, reusable, one.required)

    def _choose(  # noqa: PLR0913, PLR0917 - who asks, for what, beside what else
        self,
        pod: Pod,
        container: str,
        one: AskedDevices,
        asked: Sequence[AskedDevices],
        before: int,
        affinity: TopologyHint,
    ) -> int:
        """The devices for one name in a container's limits, beside those chosen ``before``."""
        table = self.state.table(one.resource)
        held = self.held.get(container, {}).get(one.resource)
        others = before
        if table is not None and one.among is not None:
            others |= table.every & ~one.among
        request = DeviceRequest(
            pod.uid,
            container,
            one.resource,
            one.required if held is None else _required(one.resource, asked),
            held=held,
            in_use=0 if table is None else self._used(one.resource, table) | others,
            reusable=self._reusable.get(one.resource, 0) & ~others,
            affinity=affinity.mask,
            name=one.name,
        )
        listed = self.state.inventory.get(one.resource)
        offers = listed is not None and listed.preferred_allocation
        return devices_to_allocate(table, request, self._answer if offers else None)

    def _used(self, resource: str, table: DeviceTable) -> int:
        if resource not in self._in_use:
            self._in_use[resource] = table.mask(self.state.in_use(resource))
        return self._in_use[resource]

    def _answer(self, question: PreferenceQuestion) -> tuple[str, ...]:
        answer = self.answers.get(question)
        if answer is None:
            raise PreferenceNeededError(question)
        if isinstance(answer, str):
            raise AllocationError(
                f"device plugin GetPreferredAllocation rpc failed with err: {answer}"
            )
        return answer


def wants_devices(state: DeviceState, pod: Pod) -> bool:
    """Whether a container of a pod asks for what is given as devices here."""
    return not state.is_empty and any(
        state.manages(resource) for container in pod.all_containers for resource in container.limits
    )


def _required(resource: str, asked: Iterable[AskedDevices]) -> int:
    """How many devices of a resource are asked for, by whatever names."""
    return sum(one.required for one in asked if one.resource == resource)
