"""The answer of a node to one pod, with everything that it was made from."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from pinfold.admission.pod_level import Bubble
from pinfold.core.cpu.static_policy import CPUAllocation
from pinfold.core.kubelet.faults import KubeletFault
from pinfold.core.memory.memory import Block, MemoryState
from pinfold.core.pod.pod import Pod
from pinfold.core.topology_manager.hints import TopologyHint
from pinfold.core.topology_manager.manager import AffinityDecision
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.ledger import Assign, AssignBubble, Change


class Decision(Struct, frozen=True):
    """The answer to one pod, with everything that it was made from.

    ``reason`` and ``message`` are the kubelet's, None when admitted.  ``affinities`` are the
    topology manager's merges; ``allocations`` the exclusive sets by container, ``bubble`` is what
    the pod has as a whole, in which these are then, ``memory`` the
    blocks, ``devices`` the ids by resource; ``fault`` is set where the kubelet itself has no valid
    answer.  ``providers`` names the managers whose hints are in the merges, in their order,
    ``failed_provider`` the one that could not give ``failed_container`` what it asks for.
    """

    pod: Pod
    admitted: bool
    reason: str | None = None
    message: str | None = None
    allocations: Mapping[str, CPUAllocation] = field(default_factory=dict)
    affinities: tuple[AffinityDecision, ...] = ()
    providers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Wishes that were not binding and cannot be met on this machine."""
    affinity: Mapping[str, TopologyHint] = field(default_factory=dict)
    failed_container: str | None = None
    failed_provider: str | None = None
    fault: KubeletFault | None = None
    requests: Mapping[str, int] = field(default_factory=dict)
    memory: Mapping[str, tuple[Block, ...]] = field(default_factory=dict)
    memory_state: MemoryState | None = None
    """All memory of the node as it is with this pod; None where it had none to give."""
    devices: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    by_class: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """Those of the devices that were given for classes, by container and class resource."""
    bubble: Bubble | None = None
    leaked: CPUSet = CPUSet()
    """CPUs that stay a refused pod's for ever, by a fault of the kubelet."""
    load_driven: Mapping[str, CPUAllocation] = field(default_factory=dict)
    """What load-driven containers would be given now: they start in the shared pool."""

    @property
    def changes(self) -> tuple[Change, ...]:
        """What admitting the pod changes in the ledger."""
        if self.bubble is not None and self.bubble.cpus:
            return (AssignBubble(self.pod.uid, self.bubble.cpus, self.bubble.parts),)
        return tuple(
            Assign(self.pod.uid, name, allocation.claim, allocation.idle)
            for name, allocation in self.allocations.items()
        )

    @property
    def claims(self) -> dict[str, CPUSet]:
        """All CPUs that nobody else can have, by container; parts of a bubble may be the same."""
        if self.bubble is not None and self.bubble.cpus:
            return dict(self.bubble.parts)
        return {name: one.claim for name, one in self.allocations.items()}

    def shares(self, only: str | None = None) -> bool:
        """Whether a container of the pod, or this one, runs on the node's shared pool with it.

        Who shares what is left of its pod's bubble does not.
        """
        claims, mixed = self.claims, self.pod.mixed
        names = {one.name for one in self.pod.all_containers} if only is None else {only}
        return not names <= claims.keys() or not names.isdisjoint(mixed)

    @property
    def idle(self) -> dict[str, CPUSet]:
        """The siblings that stay idle, by container that is SMT-isolated."""
        return {n: one.idle for n, one in self.allocations.items() if one.idle is not None}

    def refused(self, reason: str, message: str) -> Decision:
        """The refusal of a pod that would have been given what it asks for."""
        return replace(
            self,
            admitted=False,
            reason=reason,
            message=message,
            allocations={},
            bubble=None,
            load_driven={},
            memory={},
            memory_state=None,
            devices={},
            by_class={},
        )
