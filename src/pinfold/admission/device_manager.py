"""The device manager as a hint provider of the topology manager, for one admission."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from pinfold.core.devices.devices import PreferenceQuestion
from pinfold.core.devices.policy import (
    DeviceRequest,
    PreferenceNeededError,
    device_hints,
    devices_to_allocate,
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
    ``DeviceState.with_pod`` wants.  Resources that no plugin registered, and of which nobody has
    a device, are none of its business.
    """

    def __init__(self, state: DeviceState, answers: Answers, numa_nodes: Sequence[int]) -> None:
        self.state = state
        self.answers = answers
        self.numa_nodes = tuple(numa_nodes)
        self.allocations: dict[str, dict[str, tuple[str, ...]]] = {}
        self.held: dict[str, dict[str, tuple[str, ...]]] = {}
        self._pod_uid: str | None = None
        self._in_use: dict[str, int] = {}
        self._reusable: dict[str, int] = {}

    def get_topology_hints(self, pod: Pod, container: Container) -> Hints:
        """The NUMA affinities that could serve a container, per resource.

        ``None`` for a resource of which no device names a NUMA node.
        """
        self._begin(pod)
        held = self.held.get(container.name, {})
        return {
            resource: self._hints(resource, required, held.get(resource, ()), reuse=True)
            for resource, required in self._requests(container.limits.items())
        }

    def get_pod_topology_hints(self, pod: Pod) -> Hints:
        """The NUMA affinities that could serve the whole pod, per resource."""
        self._begin(pod)
        hints: Hints = {}
        for resource, required in self._requests(container_limits(pod).items()):
            held = {d for devices in self.held.values() for d in devices.get(resource, ())}
            hints[resource] = self._hints(resource, required, held, reuse=False)
        return hints

    def allocate(self, pod: Pod, container: Container, affinity: TopologyHint) -> None:
        """Give the container its devices, if it asks for any: of all its resources, or none.

        Raises:
            AllocationError: it cannot have them; the message is the kubelet's.
            PreferenceNeededError: its plugin has to be asked first.
        """
        self._begin(pod)
        name = container.name
        chosen = {
            resource: self._choose(pod.uid, name, resource, required, affinity.mask)
            for resource, required in self._requests(container.limits.items())
        }
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

    def _begin(self, pod: Pod) -> None:
        if self._pod_uid is None:
            self._pod_uid = pod.uid
            self.held = {
                name: dict(devices)
                for name, devices in self.state.allocations.of_pod(pod.uid).items()
            }
        elif self._pod_uid != pod.uid:
            raise ValueError(f"a draft of pod {self._pod_uid!r} is no use for pod {pod.uid!r}")

    def _requests(self, limits: Iterable[tuple[str, Quantity]]) -> list[tuple[str, int]]:
        """The device resources among some limits; for those, requests equal limits."""
        state = self.state
        return [
            (resource, quantity.value())
            for resource, quantity in sorted(limits)
            if resource in state.inventory or state.in_use(resource)
        ]

    def _hints(
        self, resource: str, required: int, held: Collection[str], *, reuse: bool
    ) -> list[TopologyHint] | None:
        table = self.state.table(resource)
        if table is None or not table.has_topology:
            return None
        if held:
            if len(held) != required:
                return []
            return device_hints(table, self.numa_nodes, table.mask(held), 0, required)
        available = table.healthy & ~self._used(resource, table)
        reusable = self._reusable.get(resource, 0) if reuse else 0
        if (available | reusable).bit_count() < required:
            return []
        return device_hints(table, self.numa_nodes, available, reusable, required)

    def _choose(
        self, pod_uid: str, container: str, resource: str, required: int, affinity: int | None
    ) -> int:
        table = self.state.table(resource)
        request = DeviceRequest(
            pod_uid,
            container,
            resource,
            required,
            held=self.held.get(container, {}).get(resource),
            in_use=0 if table is None else self._used(resource, table),
            reusable=self._reusable.get(resource, 0),
            affinity=affinity,
        )
        listed = self.state.inventory.get(resource)
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
