"""What a node decides about one pod: what it is given, then whether everything else fits.

The order is the kubelet's (1.34, seen live on 1.36): the topology manager's admit handler gives
out devices, CPUs and memory first, the capacity check comes after it.  A decision is complete
before anything is changed, so a rejected pod holds nothing (a kubelet lets go of its CPUs at the
next admission).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product, starmap
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from pinfold.admission.cache_classes import CacheRoom
from pinfold.admission.capacity import PODS, amounts, shortage
from pinfold.admission.cpu_manager import CPUWish, draft_for_container, draft_for_pod
from pinfold.admission.decision import Decision
from pinfold.admission.devices.classes import Bindings, class_refusal, ways_to_serve
from pinfold.admission.devices.manager import Answers, DeviceManager, wants_devices
from pinfold.admission.isolation import (
    IsolatedUse,
    Isolation,
    isolated_uses,
    isolation_refusal,
)
from pinfold.admission.load_driven import (
    LoadDrivenPod,
    load_driven_containers,
    load_driven_refusal,
)
from pinfold.admission.memory_manager import MemoryManager
from pinfold.admission.mixed import mixed_refusal
from pinfold.admission.nearness import NearAttempt, near_attempts, near_refusal
from pinfold.admission.pod_draft import PodDraft, first_admitted
from pinfold.admission.pod_level import (
    has_pod_scope,
    placed_names,
    whole_notes,
    whole_refusal,
)
from pinfold.admission.refusal import UnmetWishError
from pinfold.admission.smt_isolation import (
    SMTIsolation,
    alone_on_cores,
    smt_refusal,
    smt_shortage,
)
from pinfold.core.cpu.static_policy import StaticPolicy
from pinfold.core.devices.state import DeviceState
from pinfold.core.kubelet.faults import KUBELET, AllocationRules
from pinfold.core.machine.locality import Localities
from pinfold.core.memory.memory import Block, MemoryState
from pinfold.core.memory.policy import MemoryTransaction, StaticMemoryPolicy
from pinfold.core.moves.owners import Owner
from pinfold.core.pod.annotation import Annotation
from pinfold.core.pod.annotations import ISOLATED_CPUS, LOAD_DRIVEN, MIXED_CPUS, SMT_ISOLATE
from pinfold.core.pod.pod import CPU, Pod, pass_over_resources, unmixed
from pinfold.core.pod.pod_level import takes_part
from pinfold.core.topology_manager.manager import TopologyManager
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.ledger import Ledger

POOL_EMPTY: Final = (
    "no CPU would be left for the containers that share CPUs (strict-cpu-reservation)"
)

NO_ANSWERS: Final[Answers] = {}


class Node(Struct, frozen=True):
    """A configured node: the policies in force, and what pods may request in total.

    ``allocatable`` holds milli-CPUs for ``cpu`` and whole units for everything else; it names
    every resource that the node has, but for those of device plugins.  ``devices_managed`` says
    that pods may ask for no other extended resources than plugins offer: where no scheduler has
    looked at them before, a pod would start without the device that it needs.
    """

    cpu_policy: StaticPolicy | None
    topology_manager: TopologyManager
    allocatable: Mapping[str, int]
    max_pods: int = 110
    memory_policy: StaticMemoryPolicy | None = None
    devices_managed: bool = False
    localities: Localities | None = None
    """Where devices are; None where pods cannot wish to run near one (a kubelet knows no such)."""
    isolation: Isolation | None = None
    """The isolated CPUs; None where they are ignored, as by a kubelet."""
    mixes: bool = False
    """Whether containers may be mixed (:mod:`pinfold.admission.mixed`)."""
    cache: CacheRoom | None = None
    """The caches that are divided; None where no pod is rejected for them."""
    smt: SMTIsolation | None = None
    """The cores for those who are alone on theirs; None where nobody can be, as with a kubelet."""
    hints_by_devices: bool = True
    """Whether devices make hints only of the NUMA nodes that have some."""
    load_driven: bool = False
    """Whether containers may ask to have their CPUs by load (:mod:`~.load_driven`)."""
    pod_level: bool = False
    """Whether pods are served by resources of their own (gate ``PodLevelResourceManagers``)."""
    pod_resources: bool = True
    """Whether resources of a pod's own count at all (gate ``PodLevelResources``)."""
    rules: AllocationRules = KUBELET
    """Whether faults of the kubelet are shown as they are, or not made."""

    @property
    def heeded(self) -> tuple[Annotation[Any], ...]:
        """The annotations about exclusive CPUs that mean something here."""
        known: tuple[tuple[Annotation[Any], bool], ...] = (
            (MIXED_CPUS, self.mixes),
            (SMT_ISOLATE, self.smt is not None),
            (ISOLATED_CPUS, self.isolation is not None),
            (LOAD_DRIVEN, self.load_driven),
        )
        return tuple(row for row, is_known in known if is_known)

    def serves_whole(self, pod: Pod) -> bool:
        """Whether a pod is given CPUs and memory as a whole, for its containers to divide.

        Under another scope than ``pod``, and under policy none, its containers are given theirs
        one by one, as those of any other pod.
        """
        return self.pod_level and takes_part(pod) and has_pod_scope(self.topology_manager)

    @property
    def smt_remark(self) -> str:
        """What is to be said once of the siblings that stay idle on this node; "" for nothing."""
        return "" if self.smt is None else self.smt.remark(self.allocatable.get(CPU, 0))

    def seen(self, pod: Pod) -> Pod:
        """The pod without what this node passes over."""
        pod = pod if self.mixes else unmixed(pod)
        return pod if self.pod_resources else pass_over_resources(pod)

    def assignable(self, ledger: Ledger) -> CPUSet:
        """The CPUs that containers may own, or do; none under policy none.

        Nobody can have those that are idle beside SMT-isolated containers; and where everybody is
        isolated who does not say otherwise, a core that is free is one CPU to own.
        """
        if self.cpu_policy is None:
            return CPUSet()
        found = self.cpu_policy.assignable - ledger.idle_siblings
        if self.smt is None or not self.smt.isolates_all:
            return found
        return found & (ledger.exclusive | CPUSet.from_mask(self.smt.firsts(ledger.default.mask)))

    def allocatable_beside(self, idle: int) -> Mapping[str, int]:
        """What pods may request in total while so many siblings are idle."""
        if self.smt is None or CPU not in self.allocatable:
            return self.allocatable
        return {**self.allocatable, CPU: self.smt.allocatable(self.allocatable[CPU], idle)}


class NodeState(Struct, frozen=True):
    """What runs on the node: who has which CPUs, memory and devices; the sum of requests.

    CPUs that are ``offline`` keep their owners, and are given to nobody else.  ``memory`` is None
    under memory manager policy None.  ``load_driven`` are the pods with containers that have their
    CPUs by load, by uid; what such a container does not own is charged all the same.
    """

    ledger: Ledger
    requested: Mapping[str, int] = field(default_factory=dict)
    pods: int = 0
    offline: CPUSet = CPUSet()
    memory: MemoryState | None = None
    devices: DeviceState = DeviceState()
    load_driven: Mapping[str, LoadDrivenPod] = field(default_factory=dict)

    def memory_of(self, pod_uid: str) -> dict[str, tuple[Block, ...]]:
        """What the containers of a pod have of the memory manager."""
        return {} if self.memory is None else dict(self.memory.assignments.get(pod_uid, {}))


def decide(node: Node, state: NodeState, pod: Pod, answers: Answers = NO_ANSWERS) -> Decision:
    """Decide about a pod; nothing is changed.

    Raises:
        PreferenceNeededError: a device plugin has to be asked first, and its answer put into
            ``answers``.
    """
    pod = node.seen(pod)
    refusal = wish_refusal(node, pod) or class_refusal(state.devices, pod, node.allocatable)
    if refusal is not None:
        return Decision(pod, admitted=False, reason=refusal.reason, message=str(refusal))

    seen = charged(node, state)

    def draft(near: NearAttempt, use: IsolatedUse | None, bindings: Bindings) -> PodDraft:
        wishes = cpu_wishes(node, pod, use)
        return PodDraft(
            pod,
            cpus=draft_for_pod(node.cpu_policy, seen.ledger, state.offline, pod, wishes),
            memory=memory_draft(node, state.memory, pod.uid),
            devices=device_draft(node, state.devices, pod, near.manager, answers, bindings),
            nearness=near,
            pod_level=node.pod_level,
        )

    ways = ways_to_serve(state.devices, pod)
    attempts = product(
        near_attempts(node.topology_manager, node.localities, pod),
        isolated_uses(node.isolation, pod),
        ways.bindings,
    )
    decision = first_admitted(starmap(draft, attempts), pod.all_containers)
    if not decision.admitted:
        return replace(decision, notes=(*decision.notes, *ways.notes))
    short = lacking(node, state, decision)
    if short is not None:
        return decision.refused(*short)
    given, by_load = decision.allocations, load_driven_containers(pod) if node.load_driven else ()
    decision = replace(
        decision,
        requests=amounts(pod),
        allocations={name: one for name, one in given.items() if name not in by_load},
        load_driven={name: given[name] for name in by_load if name in given},
    )
    if node.serves_whole(pod):
        decision = replace(decision, notes=(*decision.notes, *whole_notes(pod, node.heeded)))
    if node.cache is None:
        return decision
    own = {name: one.claim for name, one in decision.allocations.items()}
    lack = node.cache.lack(state.ledger, pod, own)
    return decision if lack is None else decision.refused(*lack)


def wish_refusal(node: Node, pod: Pod) -> UnmetWishError | None:
    """Why a pod cannot run here whatever is free: an annotation asks for what cannot be."""
    if not pod.annotations:
        return None
    exclusive, is_whole = node.cpu_policy is not None, node.serves_whole(pod)
    placed = placed_names(node.cpu_policy, pod, is_whole=is_whole)
    return (
        (whole_refusal(pod, node.heeded) if is_whole else None)
        or near_refusal(node.localities, pod, placed=placed)
        or isolation_refusal(node.isolation, pod, exclusive=exclusive)
        or smt_refusal(node.smt, pod)
        or mixed_refusal(pod, heeded=node.mixes, exclusive=exclusive)
        or load_driven_refusal(pod, node.smt, heeded=node.load_driven)
    )


def lacking(node: Node, state: NodeState, decision: Decision) -> tuple[str, str] | None:
    """Reason and message where the node has too little in total for a pod; None where it fits."""
    pod, devices = decision.pod, state.devices
    requests, room = {PODS: 1, **amounts(pod)}, {PODS: node.max_pods}
    if not devices.is_empty:
        leaves_out = devices.classes.leaves_out
        requests = {name: n for name, n in requests.items() if not leaves_out(name)}
        room |= {**devices.allocatable(), **devices.class_allocatable()}

    def short_of(idle: int) -> tuple[str, str] | None:
        return shortage(
            requests,
            {**room, **node.allocatable_beside(idle)},
            {PODS: state.pods, **state.requested},
            critical=pod.is_critical,
            devices_managed=node.devices_managed,
        )

    kept_idle, more_idle = len(state.ledger.idle_siblings), 0
    if decision.idle:
        after = state.ledger.with_pod(pod.uid, decision.claims, decision.idle)
        more_idle = len(after.idle_siblings) - kept_idle
    short = short_of(kept_idle + more_idle)
    if short is not None and more_idle and short_of(kept_idle) is None:
        return smt_shortage(short[1], more_idle)
    return short


def charged(node: Node, state: NodeState, but: Owner | None = None) -> NodeState:
    """The state as a newcomer is shown it: load-driven containers have all that they may ask for.

    Those that share have what they would be given now, in the order of their admission.  It is
    nowhere on record, so it is theirs by its number only.

    Args:
        node: the policies in force.
        state: what runs.
        but: a container that is charged nothing: the one that is to be promoted.
    """
    for uid, one in state.load_driven.items():
        for name in one.counts():
            if state.ledger.cpus_of(uid, name) is not None or but == (uid, name):
                continue
            found = place(node, state, one.pod, name).allocations.get(name)
            claim = None if found is None else found.claim
            if claim is None and node.cpu_policy is not None:
                free = (state.ledger.default & node.cpu_policy.assignable) - state.offline
                claim = one.by_number(state.ledger, name, free)
            if claim:
                ledger = state.ledger.with_assignment(uid, name, claim)
                state = replace(state, ledger=ledger)
    return state


def place(node: Node, state: NodeState, pod: Pod, name: str) -> Decision:
    """The CPUs that a container of an admitted pod would be given; nothing is changed.

    Its pod keeps the memory and the devices that it has, which are aligned with.
    """
    container = next(one for one in pod.all_containers if one.name == name)
    held = state.ledger.assignments.get(pod.uid, {})
    ended = {one.name for one in pod.init_containers if not one.is_sidecar}
    idle = {other: cpus for other, cpus in held.items() if other in ended}

    def draft(near: NearAttempt, use: IsolatedUse | None) -> PodDraft:
        wishes = cpu_wishes(node, pod, use)
        asking = (pod, container)
        return PodDraft(
            pod,
            cpus=draft_for_container(
                node.cpu_policy, state.ledger, state.offline, asking, idle, wishes
            ),
            memory=memory_draft(node, state.memory, pod.uid),
            devices=device_draft(node, state.devices, pod, near.manager),
            nearness=near,
        )

    attempts = product(
        near_attempts(node.topology_manager, node.localities, pod),
        isolated_uses(node.isolation, pod),
    )
    return first_admitted(starmap(draft, attempts), (container,))


def decide_near(
    node: Node, state: NodeState, pod: Pod, near: CPUSet | None, *, required: bool = False
) -> Decision:
    """Decide with the CPUs of ``near`` alone; unless ``required``, with all where that fails."""
    if near is not None:
        elsewhere = state.ledger.default - near
        decision = decide(node, replace(state, offline=state.offline | elsewhere), pod)
        if decision.admitted or required:
            return decision
    return decide(node, state, pod)


def cpu_wishes(node: Node, pod: Pod, use: IsolatedUse | None) -> tuple[CPUWish, ...]:
    """What the containers of a pod want of their CPUs that a kubelet knows nothing of."""
    wishes: tuple[CPUWish | None, ...] = (alone_on_cores(node.smt, pod), use)
    return tuple(wish for wish in wishes if wish is not None)


def memory_draft(node: Node, memory: MemoryState | None, pod_uid: str) -> MemoryManager | None:
    """The memory manager for one admission; None where there is none."""
    if node.memory_policy is None or memory is None:
        return None
    return MemoryManager(node.memory_policy, MemoryTransaction(pod_uid, memory))


def device_draft(  # noqa: PLR0913, PLR0917 - the node, what there is, and how it is asked
    node: Node,
    devices: DeviceState,
    pod: Pod,
    manager: TopologyManager,
    answers: Answers = NO_ANSWERS,
    bindings: Bindings | None = None,
) -> DeviceManager | None:
    """The device manager for one admission; None where the pod asks for none."""
    if not wants_devices(devices, pod):
        return None
    return DeviceManager(
        devices,
        answers,
        manager.numa.nodes,
        bindings,
        by_devices=node.hints_by_devices,
        late=[] if node.rules == KUBELET else None,
    )
