"""The managers of CPUs, memory and devices, each on a state that outlives an admission.

Each is a hint provider of the topology manager.  A failed admission leaves behind what was
allocated before it failed; the next question or allocation sweeps it away first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.devices.manager import DeviceManager
from pinfold.core.cpu.static_policy import PodTransaction, StaticPolicy
from pinfold.core.devices.state import DeviceState
from pinfold.core.memory.hints import Reusable
from pinfold.core.memory.memory import MemoryState
from pinfold.core.memory.policy import MemoryTransaction, StaticMemoryPolicy
from pinfold.core.pod.pod import CPU, Container, Pod
from pinfold.core.topology_manager.hints import ResourceHints, TopologyHint
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.ledger import Ledger

ActivePods = Mapping[str, Pod]
"""Pod uid -> the pod as it is now."""


def stranded(
    assignments: Mapping[str, Mapping[str, object]], active: ActivePods
) -> list[tuple[str, str]]:
    """The containers that have something, and are in no active pod."""
    found = []
    for uid, containers in assignments.items():
        known = {c.name for c in active[uid].all_containers} if uid in active else set()
        found += [(uid, name) for name in containers if name not in known]
    return found


class CPUs:
    """The CPU manager; ``policy`` is None under policy none, which gives nothing to anybody."""

    def __init__(
        self,
        policy: StaticPolicy | None,
        ledger: Ledger,
        active: ActivePods,
        written: Callable[[Ledger], None],
    ) -> None:
        self.policy = policy
        self.ledger = ledger
        self._active = active
        self._written = written
        self._reusable: tuple[str, int] = ("", 0)

    def get_topology_hints(self, pod: Pod, container: Container) -> ResourceHints | None:
        """The hints of a container."""
        self.sweep()
        if self.policy is None:
            return None
        return _named(self.policy.container_hints(self._open(pod.uid), pod, container))

    def get_pod_topology_hints(self, pod: Pod) -> ResourceHints | None:
        """The hints of the whole pod."""
        self.sweep()
        if self.policy is None:
            return None
        return _named(self.policy.pod_hints(self._open(pod.uid), pod))

    def allocate(self, pod: Pod, container: Container, affinity: TopologyHint) -> None:
        """Give the container its CPUs; they stay, whatever becomes of the pod."""
        self.sweep()
        if self.policy is None:
            return
        draft = self._open(pod.uid)
        if self.policy.allocate(draft, pod, container, affinity) is not None:
            self._reusable = (pod.uid, draft.reusable)
            self._close(draft)

    def allocate_pod(self, pod: Pod, affinity: TopologyHint) -> None:
        """Give the pod its CPUs as a whole; what was recorded stays, even where it then fails."""
        self.sweep()
        if self.policy is None:
            return
        draft = self._open(pod.uid)
        try:
            self.policy.allocate_pod(draft, pod, affinity)
        finally:
            self._close(draft)

    def remove(self, pod_uid: str, container: str) -> None:
        """Release one container."""
        if self.policy is None:
            return
        draft = self._open(pod_uid)
        self.policy.remove(draft, container)
        self._close(draft)

    def sweep(self) -> None:
        """Release all containers of pods that are not active."""
        for uid, name in stranded(self.ledger.assignments, self._active):
            self.remove(uid, name)

    def _open(self, uid: str) -> PodTransaction:
        held = self.ledger.assignments.get(uid, {})
        whose, cpus = self._reusable
        return PodTransaction(
            uid,
            self.ledger.default.mask,
            {name: one.mask for name, one in held.items()},
            cpus if whose == uid else 0,
            bubble=(self.ledger.bubble_of(uid) or CPUSet()).mask,
        )

    def _close(self, draft: PodTransaction) -> None:
        # By hand, without the ledger's own checks: a kubelet's faults are replayed as they are.
        pods = {uid: one for uid, one in self.ledger.assignments.items() if uid != draft.pod_uid}
        if draft.assigned:
            pods[draft.pod_uid] = {
                name: CPUSet.from_mask(cpus) for name, cpus in draft.assigned.items()
            }
        bubbles = {uid: one for uid, one in self.ledger.bubbles.items() if uid != draft.pod_uid}
        if draft.bubble:
            bubbles[draft.pod_uid] = CPUSet.from_mask(draft.bubble)
        default = CPUSet.from_mask(draft.default)
        after = replace(self.ledger, default=default, assignments=pods, bubbles=bubbles)
        if after != self.ledger:
            self.ledger = after
            self._written(after)


class Memory:
    """The memory manager under policy Static."""

    def __init__(
        self,
        policy: StaticMemoryPolicy,
        state: MemoryState,
        active: ActivePods,
        written: Callable[[MemoryState], None],
    ) -> None:
        self.policy = policy
        self.state = state
        self._active = active
        self._written = written
        self._remembered: tuple[str, Reusable] = ("", {})

    def get_topology_hints(self, pod: Pod, container: Container) -> ResourceHints | None:
        """The hints of a container, by kind of memory."""
        self.sweep()
        return self.policy.container_hints(self._open(pod.uid), pod, container)

    def get_pod_topology_hints(self, pod: Pod) -> ResourceHints | None:
        """The hints of the whole pod, by kind of memory."""
        self.sweep()
        return self.policy.pod_hints(self._open(pod.uid), pod)

    def allocate(self, pod: Pod, container: Container, affinity: TopologyHint) -> None:
        """Give the container its memory; it stays, whatever becomes of the pod."""
        self.sweep()
        draft = self._open(pod.uid)
        self.policy.allocate(draft, pod, container, affinity)
        self._remembered = (pod.uid, draft.remembered or {})
        self._close(draft)

    def allocate_pod(self, pod: Pod, affinity: TopologyHint) -> None:
        """Give the pod its memory as a whole; it stays, whatever becomes of the pod."""
        self.sweep()
        draft = self._open(pod.uid)
        self.policy.allocate_pod(draft, pod, affinity)
        self._close(draft)

    def remove(self, pod_uid: str, container: str) -> None:
        """Release one container."""
        draft = self._open(pod_uid)
        self.policy.remove(draft, container)
        self._close(draft)

    def started(self, pod: Pod, container: str) -> None:
        """A container starts: the init containers before it that come to an end are released."""
        for init in pod.init_containers:
            if init.name == container:
                return
            if not init.is_sidecar:
                self.remove(pod.uid, init.name)

    def sweep(self) -> None:
        """Release all containers of pods that are not active."""
        for uid, name in stranded(self.state.assignments, self._active):
            self.remove(uid, name)

    def _open(self, uid: str) -> MemoryTransaction:
        whose, remembered = self._remembered
        return MemoryTransaction(uid, self.state, remembered if whose == uid else {})

    def _close(self, draft: MemoryTransaction) -> None:
        if draft.state is not self.state:
            self.state = draft.state
            self._written(draft.state)


class Devices:
    """The device manager; the plugins of recorded nodes have no preferences."""

    def __init__(self, state: DeviceState, numa_nodes: tuple[int, ...], active: ActivePods) -> None:
        self.state = state
        self._numa_nodes = numa_nodes
        self._active = active
        self._drafts: tuple[str, DeviceManager] | None = None

    def get_topology_hints(self, pod: Pod, container: Container) -> ResourceHints | None:
        """The hints of a container, by resource."""
        return self._draft(pod).get_topology_hints(pod, container)

    def get_pod_topology_hints(self, pod: Pod) -> ResourceHints | None:
        """The hints of the whole pod, by resource."""
        return self._draft(pod).get_pod_topology_hints(pod)

    def allocate(self, pod: Pod, container: Container, affinity: TopologyHint) -> None:
        """Give the container its devices; they stay, whatever becomes of the pod."""
        draft = self._draft(pod)
        draft.allocate(pod, container, affinity)
        inits = {init.name for init in pod.init_containers}
        self.state = self.state.with_pod(pod.uid, draft.held, inits)
        # What its init containers leave to the next ones is remembered until another pod comes.
        self._drafts = (pod.uid, draft)

    def allocate_pod(self, pod: Pod, affinity: TopologyHint) -> None:
        """Nothing: a kubelet gives the devices when the containers are created."""

    def sweep(self) -> None:
        """Release all devices of pods that are not active."""
        for uid in self.state.allocations.pods.keys() - self._active.keys():
            self.state = self.state.without(uid)
            if self._drafts is not None and self._drafts[0] == uid:
                self._drafts = None

    def _draft(self, pod: Pod) -> DeviceManager:
        self.sweep()
        if self._drafts is not None and self._drafts[0] == pod.uid:
            return self._drafts[1]
        return DeviceManager(self.state, {}, self._numa_nodes)


class Managers(Struct, frozen=True):
    """All managers of a node; ``memory`` is None under policy None, ``devices`` where not used."""

    cpus: CPUs
    memory: Memory | None
    devices: Devices | None

    @property
    def providers(self) -> tuple[CPUs | Memory | Devices, ...]:
        """In the order in which they are asked and allocate."""
        every = (self.devices, self.cpus, self.memory)
        return tuple(one for one in every if one is not None)


def _named(hints: list[TopologyHint] | None) -> ResourceHints | None:
    return None if hints is None else {CPU: hints}
