"""The planner: a machine, a kubelet's configuration and pods in; the kubelet's placement out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState, decide
from pinfold.admission.decision import Decision
from pinfold.admission.kubelet_resize import resize_as_kubelet
from pinfold.admission.mixed import mixed_owners
from pinfold.admission.model import build_node, check_device_hints, empty_state
from pinfold.admission.pod_level import Bubble
from pinfold.admission.quota import FORBIDDEN, NO_QUOTAS, Quotas, forbidden
from pinfold.admission.rebalance import make_room_for, rebalance, who_may_move
from pinfold.admission.resize import Resize, plan_resize, settle_resize
from pinfold.admission.settling import settle
from pinfold.core.devices.classes import NO_CLASSES, DeviceClasses
from pinfold.core.devices.devices import DeviceInventory, devices_of_machine
from pinfold.core.devices.state import DeviceState
from pinfold.core.kubelet.faults import KUBELET, AllocationRules
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.kernel import Kernel
from pinfold.core.machine.kubelet_view import KubeletView, kubelet_view
from pinfold.core.machine.machine import Machine
from pinfold.core.moves.owners import MoveError, MoveOptions, Owner
from pinfold.core.moves.rebalance import Rebalance, RebalanceOptions
from pinfold.core.moves.resize import INCONSISTENT, ResizeDecision, resized
from pinfold.core.moves.resize_wish import ResizeWish
from pinfold.core.moves.steps import MovePlan
from pinfold.core.pod.pod import Pod, pods_only
from pinfold.core.quota.charge import Refused
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.errors import wrong_type
from pinfold.planning.placement import ContainerPlacement, placements
from pinfold.planning.quotas import NOT_PLANNED, Made, PlannedQuotas
from pinfold.state.ledger import Ledger


class PodPlacement(Struct, frozen=True):
    """The answer to one pod, and where its containers ended up when all pods were in.

    ``resized`` is the pod as it asks after a resize; None where it had none.  ``moves`` of others
    would have admitted it, under policy ``dynamic``.
    """

    decision: Decision
    containers: tuple[ContainerPlacement, ...]
    resized: Pod | None = None
    moves: Rebalance | None = None

    @property
    def bubble(self) -> Bubble | None:
        """What it has as a whole; of a refused pod what it keeps by a fault of the kubelet."""
        leaked = self.decision.leaked
        return Bubble(leaked) if leaked else self.decision.bubble

    @property
    def pod(self) -> Pod:
        """The pod as it is at the end."""
        return self.resized or self.decision.pod

    @property
    def admitted(self) -> bool:
        """Whether it runs."""
        return self.decision.admitted


class ResizedContainer(Struct, frozen=True):
    """The answer to one resize; ``moves`` are the steps of one that is feasible."""

    pod: Pod
    container: str
    cpus: int
    decision: ResizeDecision
    moves: MovePlan | None = None


class Plan(Struct, frozen=True):
    """The placement of some pods on a node, in the order of admission.

    ``shared`` is the kubelet's default CPU set at the end, ``reserved`` what is never exclusive,
    ``allocatable`` what may be exclusive (nothing under policy none); ``state`` is that of the node
    with all pods that were admitted, and after all ``resizes``.
    """

    planner: Planner
    pods: tuple[PodPlacement, ...]
    shared: CPUSet
    reserved: CPUSet
    allocatable: CPUSet
    state: NodeState
    resizes: tuple[ResizedContainer, ...] = ()
    quotas: Quotas = NO_QUOTAS

    @property
    def ledger(self) -> Ledger:
        """Who has which CPUs."""
        return self.state.ledger

    @property
    def pool(self) -> CPUSet:
        """Where the containers of the shared pool run: that may leave isolated CPUs out."""
        return self.planner.pool(self.ledger, (one.pod for one in self.pods if one.admitted))

    @property
    def admitted(self) -> tuple[PodPlacement, ...]:
        """The pods that run."""
        return tuple(pod for pod in self.pods if pod.admitted)

    @property
    def rejected(self) -> tuple[PodPlacement, ...]:
        """The pods that were refused."""
        return tuple(pod for pod in self.pods if not pod.admitted)


class Planner:
    """A configured node to try pods on.

    Args:
        machine: the hardware.
        config: the kubelet's settings.
        rules: the kubelet's allocation (the default), or the sound one.
        devices: what the device plugins list; None: what a machine's short form says of them.
            Whether they would rather give away other devices (GetPreferredAllocation) is not known
            to a plan.
        classes: the classes by which devices can be asked for.
        kernel: what is known of the machine's kernel.
        quotas: those of the pods' namespaces, and what of the pods decides about them.
        as_kubelet: whether resizes are a kubelet's to answer, also where nobody has asked for the
            answers of just this version.

    Raises:
        NodeError: a kubelet with this configuration would not start, or not serve, on the machine.
        MachineError: a kubelet would see no CPU.
        TypeError: no Machine, or no NodeConfig.

    >>> from pinfold import parse_short_form
    >>> planner = Planner(
    ...     parse_short_form("1s4c2t"),
    ...     NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0])),
    ... )
    >>> planner.plan([]).shared
    CPUSet('0-7')
    """

    def __init__(  # noqa: PLR0913 - what a node is, and what is in force around it
        self,
        machine: Machine,
        config: NodeConfig,
        *,
        rules: AllocationRules = KUBELET,
        devices: DeviceInventory | None = None,
        classes: DeviceClasses = NO_CLASSES,
        kernel: Kernel = Kernel(),  # noqa: B008 - frozen, of None
        quotas: PlannedQuotas = NOT_PLANNED,
        as_kubelet: bool = False,
    ) -> None:
        if not isinstance(machine, Machine):
            raise wrong_type("machine", "a Machine, as open_machine gives", machine)
        if not isinstance(config, NodeConfig):
            raise wrong_type("config", "a NodeConfig", config)
        self.quotas = quotas
        self.as_kubelet = as_kubelet
        self.machine = machine
        self.config = config
        self.rules = rules
        self.kernel = kernel
        self.classes = classes
        self.view: KubeletView = kubelet_view(machine)
        self.node: Node = build_node(machine, config, view=self.view, rules=rules)
        if devices is None:
            devices = devices_of_machine(machine)
        if devices:
            check_device_hints(self.node, self.view, devices)
        self.devices: DeviceInventory = {
            name: replace(resource, preferred_allocation=False)
            for name, resource in devices.items()
        }

    @property
    def resizes_as_kubelet(self) -> bool:
        """Whether resizes are answered as by the kubelet, and not by KEP-5554."""
        return self.config.own is None and (self.as_kubelet or self.config.version_is_explicit)

    @property
    def empty(self) -> NodeState:
        """The node with nothing on it."""
        empty = empty_state(self.node, self.view.topology.cpus)
        if not self.devices and self.classes is NO_CLASSES:
            return empty
        return replace(empty, devices=DeviceState(self.devices, classes=self.classes))

    def follow(self, machine: Machine, view: KubeletView, node: Node) -> None:
        """Go on with a machine that has changed, and with a node that has followed it."""
        self.machine, self.view = machine, view
        self.node = replace(
            self.node, allocatable=node.allocatable, memory_policy=node.memory_policy
        )

    def empty_with(self, offline: CPUSet) -> NodeState:
        """The node with nothing on it, and with some CPUs offline."""
        return replace(self.empty, offline=offline)

    def decisions(self, pods: Iterable[Pod]) -> Iterator[Made]:
        """Decide about the pods one after the other; each with the state it was made in.

        A quota applies before the node does, when a pod is created; a pod that the node rejects
        has ended, and is charged no more than its object.
        """
        state, quotas = self.empty, self.quotas.empty
        for pod in admission_order(pods):
            charged = self.quotas.admit(quotas, pod)
            if isinstance(charged, Refused):
                decision = forbidden(pod, charged)
            else:
                decision = decide(self.node, state, pod)
                quotas = self.quotas.after(quotas, charged, decision)
            yield Made(decision, state, quotas)
            state = settle(state, decision)

    def pool(self, ledger: Ledger, pods: Iterable[Pod]) -> CPUSet:
        """Where the containers of the shared pool run while these pods do."""
        isolation = self.node.isolation
        return ledger.default if isolation is None else isolation.shared(ledger.default, pods)

    def plan(self, pods: Iterable[Pod]) -> Plan:
        """Place the pods, oldest first, in the order given where they are equally old.

        Raises:
            TypeError: anything but pods; those of manifests are their ``pods``.
        """
        return self.collected(self.decisions(pods))

    def collected(self, made: Iterable[Made]) -> Plan:
        """The plan of decisions that were made about this node, one after the other."""
        decisions: list[Decision] = []
        moves: list[Rebalance | None] = []
        state, quotas = self.empty, self.quotas.empty
        for decision, before, after in made:
            refused = not decision.admitted and decision.reason != FORBIDDEN
            possible = self.config.dynamic is not None and refused
            running = (one.pod for one in decisions if one.admitted)
            moves.append(self.room_for(before, decision.pod, running) if possible else None)
            decisions.append(decision)
            state, quotas = settle(before, decision), after
        ledger = state.ledger
        policy = self.node.cpu_policy
        pool = self.pool(ledger, (one.pod for one in decisions if one.admitted))
        return Plan(
            planner=self,
            pods=tuple(
                PodPlacement(decision, placements(decision, pool), moves=possible_moves)
                for decision, possible_moves in zip(decisions, moves, strict=True)
            ),
            shared=ledger.default,
            reserved=self.config.reserved_system_cpus if policy is None else policy.reserved,
            allocatable=self.node.assignable(ledger),
            state=state,
            quotas=quotas,
        )

    def resize(self, plan: Plan, wish: ResizeWish) -> Plan:
        """Resize a container of a plan: the plan as it is afterwards, with the answer in it.

        It is answered by KEP-5554, whatever the policy is called; a node with a section
        ``pinfold`` heeds the annotations ``keep-cpus`` and ``resize-below-baseline``.  Where a
        version of the kubelet is asked for, and there is no such section, its answer is given
        (:attr:`resizes_as_kubelet`).

        Args:
            plan: one of this planner's.
            wish: which container, and how many CPUs.

        Raises:
            ResizeError: there is no such pod or container.
        """
        pods = [one.pod for one in plan.pods]
        wish = wish.meant_among(pods)
        named = wish.pod_among(pods)
        placed = next(one for one in plan.pods if one.pod is named)
        pod, container = placed.pod, wish.container_of(placed.pod).name
        if not placed.admitted:
            problem = f"the pod was rejected ({placed.decision.reason}), and has nothing to resize"
            nothing = CPUSet()
            refused = ResizeDecision(
                Owner(pod.uid, container), nothing, nothing, nothing, INCONSISTENT, problem
            )
            return _answered(plan, ResizedContainer(pod, container, wish.cpus, refused))
        [cpus] = [one.cpus for one in placed.containers if one.name == container]
        denied = self.quotas.denied(plan.quotas, pod, Owner(pod.uid, container), wish.cpus, cpus)
        if denied is not None:
            return _answered(plan, ResizedContainer(pod, container, wish.cpus, denied))
        if self.resizes_as_kubelet:
            decision, state = resize_as_kubelet(
                self.node, plan.state, self.config, pod, (container, wish.cpus)
            )
            if decision.feasible:
                asks = resized(pod, container, wish.cpus)
                plan = _with_resize(plan, placed, decision, state, asks)
            return _answered(plan, ResizedContainer(pod, container, wish.cpus, decision))
        baseline = _baseline(plan, placed, container)
        if self.config.own is None:
            ask = Resize(container, wish.cpus, baseline)
        else:
            ask = Resize.as_annotated(pod, container, wish.cpus, baseline)
        mixed = mixed_owners(plan.ledger, (one.pod for one in plan.admitted))
        decision, moves = plan_resize(
            self.node,
            plan.state,
            pod,
            ask,
            MoveOptions(mixed=mixed, pool_may_be_empty=True),
            grace=self.config.scale_down_grace_period,
        )
        if moves is not None:
            state = settle_resize(plan.state, pod, decision)
            asks = resized(pod, container, len(decision.after))
            plan = _with_resize(plan, placed, decision, state, asks)
        return _answered(plan, ResizedContainer(pod, container, wish.cpus, decision, moves))

    def who_may_move(self, state: NodeState, pods: Iterable[Pod]) -> RebalanceOptions:
        """Who of these pods may move, and for how long each is told beforehand."""
        grace, dynamic = self.config.scale_down_grace_period, self.config.dynamic
        opt_in = dynamic is not None and dynamic.opt_in
        return who_may_move(self.node, state, pods, grace=grace, opt_in=opt_in)

    def rebalance(self, plan: Plan) -> Rebalance:
        """The moves after which the containers of a plan are as well placed as can be.

        Raises:
            MoveError: nobody has CPUs of his own, or the moves need a free CPU and there is none.
        """
        pods = (placed.pod for placed in plan.admitted)
        return rebalance(self.node, plan.state, self.who_may_move(plan.state, pods))

    def room_for(self, state: NodeState, pod: Pod, running: Iterable[Pod]) -> Rebalance | None:
        """The fewest moves after which a pod is admitted that is rejected now; None without any."""
        try:
            return make_room_for(self.node, state, pod, self.who_may_move(state, running))
        except MoveError:
            return None


def _answered(plan: Plan, answer: ResizedContainer) -> Plan:
    return replace(plan, resizes=(*plan.resizes, answer))


def _baseline(plan: Plan, placed: PodPlacement, container: str) -> CPUSet | None:
    """What a container was given at its admission, as far as it still has it."""
    owner = Owner(placed.pod.uid, container)
    for earlier in reversed(plan.resizes):
        if earlier.decision.owner == owner and earlier.decision.feasible:
            return earlier.decision.baseline
    given = placed.decision.allocations.get(container)
    return None if given is None else given.cpus


def _with_resize(
    plan: Plan, placed: PodPlacement, decision: ResizeDecision, state: NodeState, asks: Pod
) -> Plan:
    """The plan with other CPUs for one container, and the shared pool as it is then."""
    name, cpus = decision.owner.container, decision.after
    owns = state.ledger.cpus_of(*decision.owner) is not None
    after = replace(plan, state=state, shared=state.ledger.default)
    pool = after.pool

    def placement(pod: PodPlacement) -> PodPlacement:
        if not pod.admitted:
            return pod
        here = pod is placed
        containers = tuple(
            replace(one, cpus=cpus, exclusive=True)
            if owns and here and one.name == name
            else (replace(one, cpus=pool) if one.is_on_nodes_pool else one)
            for one in pod.containers
        )
        return replace(pod, containers=containers, resized=asks if here else pod.resized)

    pods = tuple(map(placement, plan.pods))
    there = ((one.pod, one.admitted) for one in pods if one.decision.reason != FORBIDDEN)
    return replace(after, pods=pods, quotas=plan.planner.quotas.used_by(there))


def admission_order(pods: Iterable[Pod]) -> list[Pod]:
    """The order in which a kubelet that starts admits pods: by creation, else as given.

    Those that are bound to no node yet come to it after those that are.

    Raises:
        TypeError: anything but pods.
    """
    return sorted(
        pods_only(pods), key=lambda pod: (not pod.node_name, pod.creation_timestamp or "")
    )
