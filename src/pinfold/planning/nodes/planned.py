"""Pods on several nodes: where a scheduler would bind each, and what that node decides then.

The scheduler sees sums, labels and taints, and of classes what an extender tells it: the functions
are the extender's.  The node decides by itself afterwards, and may refuse what the scheduler has
bound to it.  Neither pushes anybody out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from pinfold.admission.admission import NodeState, decide
from pinfold.admission.capacity import PODS, amounts, shortage
from pinfold.admission.quota import FORBIDDEN, NO_QUOTAS, Quotas
from pinfold.admission.settling import settle
from pinfold.core.classes.binding import NotBindableError
from pinfold.core.classes.bound import KEY_PREFIX
from pinfold.core.classes.compute_resource import ComputeResource
from pinfold.core.classes.names import class_of
from pinfold.core.classes.placing import (
    ClusterPool,
    Pool,
    Preference,
    Want,
    Wants,
    bound_of,
    cluster_misfit,
    cluster_pools,
    misfit,
    pools_of,
    score,
    wants_of,
)
from pinfold.core.classes.raw_names import raw_names
from pinfold.core.classes.resource_class import ResourceClass
from pinfold.core.pod.pod import CPU, MEMORY, Container, Pod, Resources
from pinfold.core.pod.scheduling import ANYWHERE, Scheduling, Taint
from pinfold.core.quota.charge import Refused
from pinfold.planning.nodes.binding import bind
from pinfold.planning.nodes.scores import least_allocated, scored_amounts
from pinfold.planning.planner import Plan, Planner, admission_order
from pinfold.planning.quotas import NOT_PLANNED, Made, PlannedQuotas

UNSCHEDULABLE: Final = "Unschedulable"
_SCORED: Final = (CPU, MEMORY)


class PlannedNode(Struct, frozen=True):
    """A node: its planner, without quotas and classes, and what its Node object says.

    ``allocatable`` is what the scheduler is told, where that is other than what the planner knows.
    """

    name: str
    planner: Planner
    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    allocatable: Resources = {}


class Outcome(Struct, frozen=True):
    """What became of a pod: on which node it is, or None; its node's reason, or why it has none.

    ``refused_by`` are the nodes that do not do, by the reason; ``binding`` is what each container
    has for its classes.
    """

    pod: Pod
    node: str | None = None
    admitted: bool = False
    reason: str | None = None
    message: str | None = None
    refused_by: Mapping[str, tuple[str, ...]] = {}
    binding: Mapping[str, str] = {}


class NodesPlan(Struct, frozen=True):
    """The pods in the order of their creation, and the plan of each node with those on it."""

    outcomes: tuple[Outcome, ...]
    plans: Mapping[str, Plan]
    quotas: Quotas = NO_QUOTAS


class Cluster(Struct, frozen=True):
    """Nodes, what is known of their devices, and what is asked of whoever comes."""

    nodes: tuple[PlannedNode, ...]
    classes: tuple[ResourceClass, ...] = ()
    resources: tuple[ComputeResource, ...] = ()
    quotas: PlannedQuotas = NOT_PLANNED
    scheduling: Mapping[str, Scheduling] = {}
    preference: Preference = Preference.PACK

    def plan(self, pods: Iterable[Pod]) -> NodesPlan:
        """Place the pods one after the other, oldest first, each before the next is created."""
        run = _Run(self)
        outcomes = tuple(map(run.create, admission_order(pods)))
        return NodesPlan(outcomes, run.plans(), run.quotas)


class _Live(Struct):
    """A node while pods come to it; ``taken`` are the devices that were asked for by raw name.

    ``scored`` is what its pods request as scores see it (:mod:`~pinfold.planning.nodes.scores`).
    """

    node: PlannedNode
    state: NodeState
    made: list[Made] = field(default_factory=list)
    taken: Counter[str] = field(default_factory=Counter)
    scored: Counter[str] = field(default_factory=Counter)

    @property
    def allocatable(self) -> dict[str, int]:
        """What the scheduler is told that it may give, in the units of :func:`amounts`."""
        node, idle = self.node.planner.node, len(self.state.ledger.idle_siblings)
        said = {
            name: quantity.milli_value() if name == CPU else quantity.value()
            for name, quantity in self.node.allocatable.items()
        }
        devices = self.state.devices.allocatable()
        return {PODS: node.max_pods, **devices, **node.allocatable_beside(idle), **said}


class _Run:
    """One plan in the making."""

    def __init__(self, cluster: Cluster) -> None:
        self._of = cluster
        self._nodes = {one.name: _Live(one, one.planner.empty) for one in cluster.nodes}
        self.quotas = cluster.quotas.empty
        self._pools = pools_of(cluster.classes, cluster.resources)
        by_resource: dict[str, dict[str, Pool]] = {}
        for (node, resource), pool in self._pools.items():
            by_resource.setdefault(resource, {})[node] = pool
        self._names = raw_names(cluster.classes, by_resource)
        self._cluster_pools: Mapping[str, ClusterPool] = cluster_pools(
            cluster.classes, cluster.resources
        )
        self._cluster_taken = Counter[str]()

    def create(self, asked: Pod) -> Outcome:
        """Have a pod created, bound to a node, and decided about there."""
        of = self._of
        wish = of.scheduling.get(asked.uid, ANYWHERE)
        try:
            pod = bind(asked, self._names)
        except NotBindableError as error:
            return Outcome(asked, reason=FORBIDDEN, message=str(error))
        charged = of.quotas.admit(self.quotas, pod)
        if isinstance(charged, Refused):
            return Outcome(asked, reason=FORBIDDEN, message=charged.message)
        wants = wants_of(pod, self._cluster_pools)
        found = self._found(pod, wish, wants)
        if found.node is None:
            # It waits, and is charged while it does.
            self.quotas = charged
            return found
        node = self._nodes[found.node]
        decision = decide(node.node.planner.node, node.state, _as_its_kubelet_sees(pod))
        self.quotas = of.quotas.after(self.quotas, charged, decision)
        node.made.append(Made(decision, node.state, NO_QUOTAS))
        node.state = settle(node.state, decision)
        if not decision.admitted:
            return replace(found, reason=decision.reason, message=decision.message)
        node.taken.update(amounts(pod))
        node.scored.update(scored_amounts(pod))
        self._cluster_taken.update(dict(wants.of_cluster))
        pools = {resource: pool for (on, resource), pool in self._pools.items() if on == found.node}
        bound = bound_of(pod, pools, self._cluster_pools) if wants.of_node else {}
        binding = {key.removeprefix(KEY_PREFIX): text for key, text in bound.items()}
        return replace(found, admitted=True, binding=binding)

    def plans(self) -> dict[str, Plan]:
        """The plan of each node as it is now."""
        return {
            name: replace(one.node.planner.collected(one.made), quotas=NO_QUOTAS)
            for name, one in self._nodes.items()
        }

    def _found(self, pod: Pod, wish: Scheduling, wants: Wants) -> Outcome:
        """The node that a pod is bound to."""
        if pod.node_name:
            if pod.node_name in self._nodes:
                return Outcome(pod, pod.node_name)
            problem = f"spec.nodeName: node {pod.node_name} is not among the nodes"
            return Outcome(pod, reason=UNSCHEDULABLE, message=problem)
        for name, count in wants.of_cluster:
            pool = self._cluster_pools.get(name)
            taken = sum(self._cluster_taken[one] for one in (pool.sharers if pool else ()))
            lacks = cluster_misfit(pool, taken, name, count)
            if lacks is not None:
                return self._nowhere(pod, dict.fromkeys(self._nodes, lacks))
        requests = {name: n for name, n in amounts(pod).items() if class_of(name) is None}
        scored = scored_amounts(pod)
        refused: dict[str, str] = {}
        best: tuple[int, int] | None = None
        chosen = None
        for name, one in self._nodes.items():
            allocatable = one.allocatable
            why = (
                _unwilling(one.node, wish)
                or self._misfit(one, wants)
                or _lacking(one, requests, allocatable)
            )
            if why:
                refused[name] = why
                continue
            found = (self._score(one, wants), _least_allocated(one, scored, allocatable))
            if best is None or found > best:
                best, chosen = found, name
        return self._nowhere(pod, refused) if chosen is None else Outcome(pod, chosen)

    def _misfit(self, one: _Live, wants: Wants) -> str:
        for want in wants.of_node:
            lacks = misfit(self._pool(one, want), one.taken[want.resource], want)
            if lacks is not None:
                return lacks
        return ""

    def _score(self, one: _Live, wants: Wants) -> int:
        found = 0
        for want in wants.of_node:
            pool = self._pool(one, want)
            if pool is not None:
                found += score(pool, one.taken[want.resource], want, self._of.preference)
        return found // max(1, len(wants.of_node))

    def _pool(self, one: _Live, want: Want) -> Pool | None:
        return self._pools.get((one.node.name, want.resource))

    def _nowhere(self, pod: Pod, refused: Mapping[str, str]) -> Outcome:
        by_reason: dict[str, list[str]] = {}
        for name, why in refused.items():
            by_reason.setdefault(why, []).append(name)
        ordered = sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
        told = ", ".join(f"{len(names)} {why}" for why, names in ordered)
        message = f"0/{len(self._nodes)} nodes are available: {told}"
        nodes = {why: tuple(names) for why, names in ordered}
        return Outcome(pod, reason=UNSCHEDULABLE, message=message, refused_by=nodes)


def _unwilling(node: PlannedNode, wish: Scheduling) -> str:
    """Why a node is not for a pod whatever is free: upstream's words."""
    for taint in node.taints:
        if taint.repels and not any(one.tolerates(taint) for one in wish.tolerations):
            return f"node(s) had untolerated taint {{{taint}}}"
    if any(node.labels.get(key) != value for key, value in wish.node_selector.items()):
        return "node(s) didn't match Pod's node affinity/selector"
    return ""


def _lacking(one: _Live, requests: Mapping[str, int], allocatable: Mapping[str, int]) -> str:
    """What there is too little of in all, as the scheduler says it."""
    used = {PODS: one.state.pods, **one.state.requested}
    found = shortage({PODS: 1, **requests}, allocatable, used, critical=False, devices_managed=True)
    if found is None:
        return ""
    resource = found[0].removeprefix("OutOf")
    return "Too many pods" if resource == PODS else f"Insufficient {resource}"


def _least_allocated(one: _Live, scored: Mapping[str, int], allocatable: Mapping[str, int]) -> int:
    """How much of CPU and memory stays free, from 0 to 100 (``LeastAllocated``)."""
    free = [
        least_allocated(one.scored[name] + scored.get(name, 0), has)
        for name in _SCORED
        if (has := allocatable.get(name, 0))
    ]
    return sum(free) // len(free) if free else 0


def _as_its_kubelet_sees(pod: Pod) -> Pod:
    """A pod without its classes: a kubelet leaves out what its node does not have by that name."""

    def bare(container: Container) -> Container:
        if not any(map(class_of, (*container.requests, *container.limits))):
            return container
        requests, limits = (
            {name: quantity for name, quantity in held.items() if class_of(name) is None}
            for held in (container.requests, container.limits)
        )
        return replace(container, requests=requests, limits=limits)

    return replace(
        pod,
        containers=tuple(map(bare, pod.containers)),
        init_containers=tuple(map(bare, pod.init_containers)),
    )
