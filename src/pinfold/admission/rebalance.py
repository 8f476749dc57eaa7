"""Better places on a node as it is configured, and room for a pod that it rejects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Final

from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState, decide
from pinfold.admission.isolation import isolated_wish
from pinfold.admission.mixed import mixed_owners
from pinfold.admission.moves import moves_on, with_claims
from pinfold.admission.nearness import near_places
from pinfold.admission.pod_level import owned_counts
from pinfold.core.cpu.hints import cpu_hints, nodes_to_cpus
from pinfold.core.cpu.static_policy import StaticPolicy
from pinfold.core.moves.gathering import Gathered, gather
from pinfold.core.moves.objective import CORES, NUMA_NODES
from pinfold.core.moves.owners import MoveError, MoveOptions, Owner, Refusal, Wish
from pinfold.core.moves.planner import plan_moves
from pinfold.core.moves.rebalance import Rebalance, RebalanceOptions, make_room, plan_rebalance
from pinfold.core.pod.annotations import NEVER, REBALANCE
from pinfold.core.pod.grace import grace_of
from pinfold.core.pod.pod import Pod, most_at_once
from pinfold.core.pod.pod_level import cpu_budget
from pinfold.core.topology_manager.policy import Policy, Scope
from pinfold.core.values.cpuset import CPUSet

_STRICT: Final = (Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE)
_UNSETTLED: Final = "it is being started or ended"
_OPTED_OUT: Final = f'annotation {REBALANCE.key()}: "false"'
_OPT_IN: Final = f'optIn, and it does not say {REBALANCE.key()}: "true"'
_ALONE: Final = "it is SMT-isolated"
_IN_BUBBLE: Final = "its CPUs are of its pod's bubble, which stays where it is"


def rebalance(node: Node, state: NodeState, options: RebalanceOptions) -> Rebalance:
    """The best placements that can be had; see :func:`~.rebalance.plan_rebalance`.

    Args:
        node: the policies in force.
        state: what runs.
        options: what may move; the rest is filled in from the node, see :func:`options_of`.

    Raises:
        MoveError: there is no static policy, or the moves need a free CPU and there is none.
    """
    policy = _static(node)
    filled = options_of(node, state, options)
    return plan_rebalance(state.ledger, policy.topology, filled)


def gathered(node: Node, state: NodeState, options: RebalanceOptions, need: int) -> Gathered | None:
    """The fewest packages for all owners, and so many CPUs of the pool; see :func:`~.gather`.

    The rest is as for :func:`rebalance`.
    """
    policy = _static(node)
    filled = options_of(node, state, options)
    return gather(state.ledger, policy.topology, filled, need)


def make_room_for(
    node: Node,
    state: NodeState,
    pod: Pod,
    options: RebalanceOptions,
    admits: Callable[[NodeState], bool] | None = None,
) -> Rebalance:
    """The moves after which this node admits a pod that it rejects now.

    They are looked for where enough CPUs are free for it, and are not together.
    Its containers together get a place where that can be, else one after the other.  That the pod
    is admitted then was tried: by every manager, on the state of afterwards.

    Args:
        node: the policies in force.
        state: what runs.
        pod: the pod, whose devices need nobody to be asked.
        options: as for :func:`rebalance`.
        admits: whether it is admitted on such a state; None: :func:`~.admission.decide` says so.

    Raises:
        MoveError: no moves lead there.
    """
    policy = _static(node)
    filled = options_of(node, state, options)
    every, places = policy.topology.cpus, near_places(node.localities, pod)
    counts = owned_counts(policy, pod)
    near = {one.name: places.get(one.name, (0, None))[1] or every for one in pod.all_containers}
    each = [(count, near[name]) for name, count in counts.items()]
    together = most_at_once(pod, lambda one: counts.get(one.name, 0))
    together_at = reduce(and_, (cpus for _, cpus in each), every)
    if node.serves_whole(pod):
        each, together, together_at = [], cpu_budget(pod), reduce(and_, near.values(), every)
    wanted = (together, together_at)
    is_possible = 0 < together <= len((state.ledger.default & policy.assignable) - state.offline)
    for seats in filter(None, ([wanted], each)) if is_possible else ():
        try:
            found = _room(policy, state, seats, filled)
        except MoveError:
            continue
        ledger = with_claims(state.ledger, found.plan.end)
        after = replace(state, ledger=ledger)
        if decide(node, after, pod).admitted if admits is None else admits(after):
            return found
    raise MoveError(
        Refusal.NO_FREE_CPU,
        f"no moves make room for pod {pod.name!r}",
        "end or shrink something, or ask for fewer CPUs",
    )


def who_may_move(
    node: Node, state: NodeState, pods: Iterable[Pod], *, grace: float = 0.0, opt_in: bool = False
) -> RebalanceOptions:
    """What pods say about being moved: who stays, and for how long each is told beforehand.

    Who has isolated CPUs, or others, because it or the node wishes for that, keeps to its kind, and
    who wishes to be near a device goes nearer to it, or where that is required stays there.

    Args:
        node: the policies in force.
        state: what runs.
        pods: the pods that have something; others stay where they are.
        grace: seconds for which those are told that say nothing.
        opt_in: only those move that ask for it.
    """
    known = {pod.uid: pod for pod in pods}
    fixed: dict[Owner, str] = {}
    delays: dict[Owner, float] = {}
    near: dict[Owner, int] = {}
    within: dict[Owner, CPUSet] = {}
    for uid, containers in state.ledger.assignments.items():
        pod = known.get(uid)
        places = {} if pod is None else near_places(node.localities, pod)
        for name, cpus in containers.items():
            owner = Owner(uid, name)
            said = None if pod is None else REBALANCE.of(pod.annotations, name)
            if pod is None or not (said if said is not None else not opt_in):
                fixed[owner] = (
                    _UNSETTLED if pod is None else _OPTED_OUT if said is False else _OPT_IN
                )
                continue
            delays[owner] = grace_of(pod, name, grace)
            if name in places:
                near[owner], required = places[name]
                if required is not None:
                    within[owner] = required
            isolation = node.isolation
            if isolation is not None and isolated_wish(isolation, pod, name) != NEVER:
                kinds = (isolation.cpus, state.ledger.limits.machine - isolation.cpus)
                for kind in kinds:
                    if cpus <= kind:
                        within[owner] = kind & within.get(owner, kind)
    told = {owner: seconds for owner, seconds in delays.items() if seconds}
    moves = MoveOptions(mixed=mixed_owners(state.ledger, known.values()))
    return RebalanceOptions(moves=moves, fixed=fixed, near=near, within=within, delays=told)


def options_of(node: Node, state: NodeState, options: RebalanceOptions) -> RebalanceOptions:
    """The options, with what follows from the node.

    Moves are made as :func:`moves_on` says; what the policy's options spread is not held against
    it; under a strict topology manager nobody is spread further.  Who has memory at some NUMA nodes
    stays with it, unless it is to go along, and who has devices goes nearer to them.  Who is
    SMT-isolated stays, and so do bubbles.
    """
    policy = _static(node)
    chosen = policy.options
    passed_over = {CORES} if chosen.distribute_cpus_across_cores else set()
    passed_over |= {NUMA_NODES} if chosen.align_by_socket else set()
    near = dict(options.near)
    within = dict(options.within)
    for owner, nodes in _devices(state).items():
        near[owner] = near.get(owner, 0) | nodes
    strict = node.topology_manager.policy in _STRICT
    for owner, nodes in _memory(state):
        if owner in options.mems:
            continue
        near[owner] = near.get(owner, 0) | nodes
        if strict:
            cpus = CPUSet.from_mask(nodes_to_cpus(policy.topology, nodes))
            within[owner] = within.get(owner, cpus) & cpus
    isolated = (Owner(uid, name) for uid, idle in state.ledger.idle.items() for name in idle)
    alone = dict.fromkeys(isolated, _ALONE)
    whole = {Owner(u, n): _IN_BUBBLE for u in state.ledger.bubbles for n in state.ledger.used_by(u)}
    return replace(
        options,
        fixed={**options.fixed, **alone, **whole},
        moves=moves_on(node, state, options.moves),
        levels=tuple(level for level in options.levels if level not in passed_over),
        numa=options.numa or node.topology_manager.numa,
        near=near,
        within=within,
        strict=options.strict or strict,
        whole_pods=strict and node.topology_manager.scope is Scope.POD,
    )


def _static(node: Node) -> StaticPolicy:
    if node.cpu_policy is None:
        raise MoveError(
            Refusal.UNKNOWN_OWNER,
            "nobody has CPUs of his own under CPU manager policy none",
            "set cpuManagerPolicy to dynamic",
        )
    return node.cpu_policy


def _room(
    policy: StaticPolicy,
    state: NodeState,
    wanted: Sequence[tuple[int, CPUSet]],
    options: RebalanceOptions,
) -> Rebalance:
    """Room for so many CPUs each, of those that will do, one after the other."""
    ledger, room = state.ledger, CPUSet()
    wishes: dict[Owner, Wish] = {}
    steps: list[Rebalance] = []
    for count, those in wanted:
        # What was found is kept free: nobody may be brought there.
        moves = replace(options.moves, avoid=options.moves.avoid | room)
        among = [one & those - room for one in _places(policy, count)]
        step = make_room(ledger, policy.topology, count, among, replace(options, moves=moves))
        ledger = with_claims(ledger, step.plan.end)
        room |= step.room
        wishes |= {wish.owner: wish for wish in step.wishes}
        steps.append(step)
    plan = plan_moves(state.ledger, tuple(wishes.values()), options.moves)
    return Rebalance(tuple(wishes.values()), plan, steps[0].before, steps[-1].after, room)


def _places(policy: StaticPolicy, count: int) -> list[CPUSet]:
    """Where so many CPUs are best on an empty machine: the CPUs of NUMA nodes together."""
    topology = policy.topology
    hints = cpu_hints(topology, policy.assignable.mask, 0, count)
    return [
        CPUSet.from_mask(nodes_to_cpus(topology, hint.mask or 0) & policy.assignable.mask)
        for hint in hints
        if hint.preferred
    ]


def _memory(state: NodeState) -> Iterator[tuple[Owner, int]]:
    """The NUMA nodes of everybody's memory."""
    assignments = {} if state.memory is None else state.memory.assignments
    for uid, containers in assignments.items():
        for name, blocks in containers.items():
            nodes = 0
            for block in blocks:
                for one in block.numa_affinity or ():
                    nodes |= 1 << one
            if nodes:
                yield Owner(uid, name), nodes


def _devices(state: NodeState) -> Mapping[Owner, int]:
    """The NUMA nodes of everybody's devices."""
    near: dict[Owner, int] = {}
    for uid, containers in state.devices.allocations.pods.items():
        for name, held in containers.items():
            for resource, ids in held.items():
                listed = state.devices.last_listed(resource)
                for one in ids:
                    for place in listed[one].numa_nodes if one in listed else ():
                        if place >= 0:
                            owner = Owner(uid, name)
                            near[owner] = near.get(owner, 0) | 1 << place
    return near
