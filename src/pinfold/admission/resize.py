"""What a node decides about a resize of a running container: all managers are asked again."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState, charged, device_draft, memory_draft
from pinfold.admission.capacity import amounts, shortage
from pinfold.admission.cpu_manager import CPUManager
from pinfold.admission.devices.locality import GivenDevices
from pinfold.admission.isolation import grow_attempts
from pinfold.admission.load_driven import shares_by_load
from pinfold.admission.moves import moves_on
from pinfold.admission.nearness import near_attempts
from pinfold.admission.pod_draft import PodDraft
from pinfold.admission.settling import recount
from pinfold.admission.smt_isolation import smt_stays
from pinfold.core.cpu.static_policy import CPUAllocation, PodTransaction, StaticPolicy
from pinfold.core.moves.owners import MoveError, MoveOptions, Owner
from pinfold.core.moves.planner import plan_moves
from pinfold.core.moves.resize import (
    INCONSISTENT,
    NOT_ALLOCATED,
    ResizeAsk,
    ResizedCPUs,
    ResizeDecision,
    resized,
)
from pinfold.core.moves.resize import decide_resize as decide
from pinfold.core.moves.steps import MovePlan
from pinfold.core.pod.annotations import KEEP_CPUS, RESIZE_BELOW_BASELINE
from pinfold.core.pod.grace import grace_of
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.topology_manager.hints import ResourceHints, TopologyHint
from pinfold.core.topology_manager.manager import Admission
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.podresources import PodDevices
from pinfold.state.ledger import Ledger


class Resize(Struct, frozen=True):
    """A container that is to have another number of CPUs; see :class:`~.resize.ResizeAsk`."""

    container: str
    cpus: int
    baseline: CPUSet | None
    coming: CPUSet | None = None
    keep: CPUSet = CPUSet()
    below_baseline: bool = False

    @classmethod
    def as_annotated(
        cls,
        pod: Pod,
        container: str,
        cpus: int,
        baseline: CPUSet | None,
        coming: CPUSet | None = None,
    ) -> Resize:
        """One with what the pod's annotations say of it."""
        keep = KEEP_CPUS.of(pod.annotations, container) or CPUSet()
        below = RESIZE_BELOW_BASELINE.of(pod.annotations, container)
        return cls(container, cpus, baseline, coming, keep, below)


def plan_resize(  # noqa: PLR0913 - what there is, what is asked for, and how it is made
    node: Node,
    state: NodeState,
    pod: Pod,
    resize: Resize,
    options: MoveOptions,
    *,
    grace: float,
    devices: PodDevices | None = None,
) -> tuple[ResizeDecision, MovePlan | None]:
    """Decide about a resize, and plan its moves; nothing is changed.

    The rest is as for :func:`decide_resize`; ``options`` are filled in by :func:`moves_on`, and a
    container that says nothing is told for ``grace`` seconds.  The plan is None where it is not
    feasible.
    """
    decision = decide_resize(node, state, pod, resize, devices)
    if not decision.feasible:
        return decision, None
    wish = decision.wish(grace_of(pod, resize.container, grace))
    try:
        return decision, plan_moves(state.ledger, [wish], moves_on(node, state, options))
    except MoveError as error:
        refused = replace(decision, reason=NOT_ALLOCATED, message=str(error), after=decision.before)
        return refused, None


def decide_resize(
    node: Node, state: NodeState, pod: Pod, resize: Resize, devices: PodDevices | None = None
) -> ResizeDecision:
    """Decide about a resize; nothing is changed.

    Args:
        node: the policies in force.
        state: what runs.
        pod: the pod as it is now; its containers keep the memory and the devices that they have.
        resize: what is asked for.
        devices: what a kubelet has given to the pod; None where this node gives devices itself.
    """
    policy, ledger = node.cpu_policy, state.ledger
    held = ledger.cpus_of(pod.uid, resize.container)
    if held is not None and ledger.idle_of(pod.uid, resize.container) is not None:
        baseline = resize.baseline or CPUSet()
        owner = Owner(pod.uid, resize.container)
        return ResizeDecision(owner, held, held, baseline, NOT_ALLOCATED, smt_stays(owner))
    by_load = state.load_driven.get(pod.uid)
    if held is None and by_load is not None and resize.container in by_load.names:
        owner, none = Owner(pod.uid, resize.container), CPUSet()
        count = by_load.counts().get(resize.container, 0)
        return ResizeDecision(owner, none, none, none, INCONSISTENT, shares_by_load(owner, count))
    ended = {one.name for one in pod.init_containers if not one.is_sidecar}
    others = {
        name: cpus
        for name, cpus in ledger.used_by(pod.uid).items()
        if name not in {resize.container, *ended}
    }
    # What load-driven containers may ask for is not free.
    newcomers = charged(node, state).ledger
    has, free = held or CPUSet(), _free(policy, newcomers, state.offline)
    more = resize.cpus - len(has)
    ask = ResizeAsk(
        pod,
        resize.container,
        resize.cpus,
        held,
        resize.baseline,
        free,
        others,
        resize.coming,
        resize.keep,
        resize.below_baseline,
    )

    gives = devices is None

    def admit(changed: Pod, container: Container, provider: ResizedCPUs) -> Admission:
        for attempt in near_attempts(node.topology_manager, node.localities, changed):
            draft = PodDraft(
                changed,
                cpus=_Resizing(provider),
                memory=memory_draft(node, state.memory, pod.uid),
                devices=device_draft(node, state.devices, changed, attempt.manager)
                if gives
                else None,
                nearness=attempt,
                given=None
                if devices is None
                else GivenDevices(devices, attempt.manager.numa.nodes),
            )
            admission = draft.admit((container,), tuple(draft.providers().values()))
            if admission.admitted:
                break
        return admission

    for one in grow_attempts(node.isolation, pod, resize.container, has, more, free):
        decision = decide(replace(ask, free=one), policy, admit)
        if decision.feasible:
            break
    # Whether it fits the node at all is a kubelet's question, where there is one.
    if not decision.feasible or not gives or resize.cpus <= len(decision.before):
        return decision
    return _within_capacity(node, state, pod, resize, decision)


def _within_capacity(
    node: Node, state: NodeState, pod: Pod, resize: Resize, decision: ResizeDecision
) -> ResizeDecision:
    before, after = amounts(pod), amounts(resized(pod, resize.container, resize.cpus))
    more = {name: after[name] - before.get(name, 0) for name in after}
    short = shortage(
        more,
        node.allocatable_beside(len(state.ledger.idle_siblings)),
        state.requested,
        critical=False,
    )
    if short is None:
        return decision
    return replace(
        decision,
        reason=NOT_ALLOCATED,
        message=": ".join(short),
        after=decision.before,
        kept=CPUSet(),
        allocation=None,
    )


def settle_resize(state: NodeState, pod: Pod, decision: ResizeDecision) -> NodeState:
    """The state of the node once a resize is done; an infeasible one changes nothing.

    Raises:
        InvariantError: the decision does not fit the ledger (it was made on another one).
    """
    if not decision.feasible:
        return state
    owner = decision.owner
    changed = resized(pod, owner.container, len(decision.after))
    ledger = state.ledger.with_assignment(*owner, decision.after)
    return replace(recount(state, pod, changed), ledger=ledger)


class _Resizing(CPUManager):
    """A CPU manager whose answers are those of a resize."""

    def __init__(self, provider: ResizedCPUs) -> None:
        super().__init__(provider.policy, PodTransaction("", 0))
        self._provider = provider

    def get_topology_hints(self, pod: Pod, container: Container) -> ResourceHints | None:
        """See the base class."""
        return self._provider.get_topology_hints(pod, container)

    def get_pod_topology_hints(self, pod: Pod) -> ResourceHints | None:
        """See the base class."""
        return self._provider.get_pod_topology_hints(pod)

    def allocate(self, pod: Pod, container: Container, affinity: TopologyHint) -> None:
        """See the base class."""
        self._provider.allocate(pod, container, affinity)
        self.allocations[container.name] = CPUAllocation(self._provider.after, CPUSet(), ())


def _free(policy: StaticPolicy | None, ledger: Ledger, offline: CPUSet) -> CPUSet:
    if policy is None:
        return CPUSet()
    return (ledger.default & policy.topology.cpus) - offline - policy.reserved
