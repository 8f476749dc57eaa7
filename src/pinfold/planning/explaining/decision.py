"""Why a pod got its CPUs or was refused, and the nearest changes that would admit it.

Every change that is named has been tried: the same decision is made again with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.admission import NodeState, charged
from pinfold.admission.decision import Decision
from pinfold.admission.isolation import isolated_wish
from pinfold.admission.moves import NO_NAMES
from pinfold.admission.pod_level import owned_counts
from pinfold.admission.quota import FORBIDDEN
from pinfold.core.cpu.allocation import Step
from pinfold.core.memory.memory import Block
from pinfold.core.moves.rebalance import Rebalance
from pinfold.core.pod.annotations import NEVER, PREFER, REQUIRE
from pinfold.core.pod.named import pod_named
from pinfold.core.pod.pod import CPU, Container, Pod, QOSClass
from pinfold.core.topology_manager.hints import ResourceHints, TopologyHint, format_numa_mask
from pinfold.core.topology_manager.manager import AffinityDecision
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.explaining.whole import (
    ONLY_WHOLE,
    part_of_bubble,
    why_it_shares,
    why_not_whole,
    why_unsound,
)
from pinfold.planning.planner import Planner, admission_order
from pinfold.planning.quotas import Made
from pinfold.planning.remedies.changes import find_remedies
from pinfold.planning.remedies.quotas import quota_remedies
from pinfold.planning.wants import Wants, describe_left, describe_wants, is_memory, wants

_ISOLATED: Final = {
    PREFER: ", on isolated CPUs if they are enough",
    REQUIRE: ", on isolated CPUs",
}


class ContainerReason(Struct, frozen=True):
    """One container: what it asked for, what was offered, and what bound the outcome."""

    name: str
    request: str
    answers: tuple[tuple[str, ResourceHints | None], ...]
    merged: TopologyHint | None
    constraint: str
    cpus: CPUSet | None
    steps: tuple[Step, ...]
    memory: tuple[Block, ...]
    devices: Mapping[str, tuple[str, ...]]


class Explanation(Struct, frozen=True):
    """The decision about a pod, container by container; ``remedies`` are tried changes.

    ``moves`` of those who run would make room for it; ``names`` are those of their pods, by uid.
    """

    decision: Decision
    containers: tuple[ContainerReason, ...]
    remedies: tuple[str, ...]
    moves: Rebalance | None = None
    names: Mapping[str, str] = NO_NAMES


def explain_pod(planner: Planner, pods: Iterable[Pod], name: str) -> Explanation:
    """Explain the decision about the pod called ``name`` or ``namespace/name``.

    Raises:
        UnknownPodError: no pod is called that, or several are.
    """
    order = admission_order(pods)
    named = pod_named(name, order)
    upto = next(at for at, pod in enumerate(order, 1) if pod is named)
    return explain_last(planner, list(planner.decisions(order[:upto])))


def explain_last(planner: Planner, made: Sequence[Made]) -> Explanation:
    """Explain the last of some decisions that were made one after the other."""
    *before, last = made
    admitted = [earlier.decision for earlier in before if earlier.decision.admitted]
    explanation = explain_decision(planner, last.before, last.decision, admitted)
    if last.decision.reason != FORBIDDEN:
        return explanation
    created = [
        (one.decision.pod, one.decision.admitted)
        for one in before
        if one.decision.reason != FORBIDDEN
    ]
    remedies = quota_remedies(planner.quotas, last.quotas, last.decision.pod, created)
    return replace(explanation, remedies=tuple(remedies))


def explain_decision(
    planner: Planner,
    state: NodeState,
    decision: Decision,
    admitted: Sequence[Decision] = (),
    pods: Sequence[Pod] | None = None,
) -> Explanation:
    """Explain a decision that was made in ``state``, after those in ``admitted``.

    ``pods`` are those that run, where they are others than the admitted ones.
    """
    remedies: tuple[str, ...] = ()
    moves: Rebalance | None = None
    running = [one.pod for one in admitted] if pods is None else pods
    # What a quota refuses, no other node or configuration would admit.
    if not decision.admitted and decision.reason != FORBIDDEN:
        remedies = tuple(find_remedies(planner, state, decision, admitted))
        moves = planner.room_for(state, decision.pod, running)
    names = {} if moves is None else {p.uid: p.full_name for p in running}
    containers = tuple(_containers(planner, state, decision))
    return Explanation(decision, containers, remedies, moves, names)


def _containers(
    planner: Planner, state: NodeState, decision: Decision
) -> Iterator[ContainerReason]:
    merges = {merge.container: merge for merge in decision.affinities}
    for container in decision.pod.all_containers:
        merge = merges.get(container.name, merges.get(None))
        allocation = decision.allocations.get(container.name)
        yield ContainerReason(
            name=container.name,
            request=_request(container),
            answers=() if merge is None else _answers(decision, merge),
            merged=None if merge is None else merge.best,
            constraint=_Constraint(planner, state, decision).of(container, merge),
            cpus=None if allocation is None else allocation.cpus,
            steps=() if allocation is None else allocation.steps,
            memory=decision.memory.get(container.name, ()),
            devices=decision.devices.get(container.name, {}),
        )


def _answers(
    decision: Decision, merge: AffinityDecision
) -> tuple[tuple[str, ResourceHints | None], ...]:
    return tuple(zip(decision.providers, merge.answers, strict=True))


def _request(container: Container) -> str:
    parts = [f"{name} {quantity}" for name, quantity in container.requests.items()]
    return "requests " + ", ".join(parts) if parts else "requests nothing"


class _Constraint(Struct, frozen=True):
    """Says what bound the outcome of a decision, in a sentence for each container."""

    planner: Planner
    state: NodeState
    decision: Decision

    def of(self, container: Container, merge: AffinityDecision | None) -> str:
        decision = self.decision
        asked = owned_counts(self.planner.node.cpu_policy, decision.pod).get(container.name, 0)
        wanted = wants(self.planner.node, self.state, decision.pod, container)
        if not decision.admitted and decision.failed_container in (None, container.name):
            if merge is not None and merge.container is None:
                wanted = wants(self.planner.node, self.state, decision.pod, None)
            return self._why_refused(merge, wanted) + self._isolated_left(container, merge)
        if not decision.admitted:
            return f"{describe_wants(wanted)} asked for" if wanted else "nothing of its own"
        if (
            container.name not in decision.allocations
            and container.name not in decision.load_driven
        ):
            # Also one that asks for whole CPUs shares, where its pod's own are no whole number.
            wanted = {name: amount for name, amount in wanted.items() if name != CPU}
        part = part_of_bubble(decision, container)
        if part is not None:
            outcome = part
        elif container.name in decision.load_driven:
            wanted = {name: amount for name, amount in wanted.items() if name != CPU}
            outcome = (
                f"shared pool, {asked} CPU{'s' * (asked != 1)} charged and not held: nobody else "
                "is admitted on so many, and it gets them while its load asks for them"
            )
        elif CPU in wanted and container.name not in decision.allocations:
            wanted = {name: amount for name, amount in wanted.items() if name != CPU}
            outcome = "shared pool: it was decided that it has no CPUs of its own"
        elif CPU in wanted:
            plural = "s" * (asked != 1)
            outcome = f"{asked} exclusive CPU{plural}: Guaranteed pod with a whole cpu request"
            if decision.pod.has_pod_level_resources:
                outcome = f"{asked} exclusive CPU{plural}: its own requests are its limits"
            if container.name in decision.pod.mixed:
                outcome = (
                    f"{asked} exclusive CPU{plural} and the shared pool: a mixed container of a "
                    "Guaranteed pod owns the whole part of its cpu request"
                )
            outcome += self._isolated(container)
            if (given := decision.allocations.get(container.name)) and given.idle is not None:
                outcome += f", alone on {'its core' if asked == 1 else 'their cores'}"
        else:
            outcome = self._why_shared(container, asked)
        has_some = wanted or part is not None
        return f"{outcome}{self._affinity(merge, wanted)}" if has_some else outcome

    def _isolated(self, container: Container) -> str:
        isolation = self.planner.node.isolation
        wish = isolated_wish(isolation, self.decision.pod, container.name)
        if wish == NEVER and isolation is not None and isolation.use != NEVER:
            return ", on any CPUs as it asks for"
        return _ISOLATED.get(wish, "")

    def _isolated_left(self, container: Container, merge: AffinityDecision | None) -> str:
        """What a strict topology manager does not say: that few of the free CPUs would do."""
        node = self.planner.node
        isolation, policy = node.isolation, node.cpu_policy
        wish = isolated_wish(isolation, self.decision.pod, container.name)
        asked = owned_counts(policy, self.decision.pod).get(container.name, 0)
        if isolation is None or policy is None or wish != REQUIRE or not asked:
            return ""
        if merge is None or merge.admit:
            return ""
        free = (self.state.ledger.default & policy.assignable & isolation.cpus) - self.state.offline
        return f"; isolated CPUs are required: {len(free)} of {isolation.cpus} are free"

    def _why_shared(self, container: Container, asked: int) -> str:
        pod = self.decision.pod
        if self.planner.node.cpu_policy is None:
            return "CPU manager policy none: every container runs on the shared pool"
        if pod.has_pod_level_resources:
            manager = self.planner.node.topology_manager
            why = why_not_whole(self.planner.config, manager, pod)
            whole = self.planner.node.cpu_policy.heeds_pod_level(pod) and not asked
            if why is not None and whole:
                why = f"{why_it_shares(container)}, and {why}"
            return f"shared pool: {why or why_it_shares(container)}"
        return _why_shared(pod, container) if asked == 0 else "shared pool"

    def _affinity(self, merge: AffinityDecision | None, wanted: Wants) -> str:
        """Where everything that the container has to itself comes from."""
        others = describe_wants({name: n for name, n in wanted.items() if name != CPU})
        what = f"{',' if CPU in wanted else ';'} {others}" if others else ""
        if merge is None or merge.best.mask is None:
            return f"{what}; best fit over all that are free"
        kind = "preferred" if merge.best.preferred else "not preferred, accepted"
        policy = self.planner.config.topology_manager_policy
        how = f"{kind} under {policy}" if policy != "none" else f"{kind}, for a wish"
        return f"{what}; from NUMA nodes {format_numa_mask(merge.best.mask)} ({how})"

    def _why_refused(self, merge: AffinityDecision | None, wanted: Wants) -> str:
        decision = self.decision
        if decision.fault is not None:
            return f"{decision.fault.title}: {decision.fault.upstream}"
        if decision.reason == FORBIDDEN:
            why = (decision.message or "").partition("is forbidden: ")[2].partition(",")[0]
            return f"{why or 'a quota'}; no node was asked"
        if merge is None or merge.admit:
            message = decision.message or ""
            if decision.failed_container is None:
                return message
            told = {r: n for r, n in wanted.items() if _in_message(r) in message}
            return f"{message}{self._left(told)}"
        if (unsound := why_unsound(self.planner.node, decision.pod)) is not None:
            return f"{unsound}; request more for the pod as a whole, or less for these containers"
        policy = self.planner.config.topology_manager_policy
        blocking = merge.blocking()
        names = ", ".join(f"{decision.providers[i]} ({resource})" for i, resource in blocking)
        one = policy == "single-numa-node"
        whole = "one NUMA node" if one else "the fewest NUMA nodes possible"
        found = {r: n for r, n in wanted.items() if r in {resource for _, resource in blocking}}
        return (
            f"policy {policy} needs {whole} for {describe_wants(wanted) or 'the pod'}, and the "
            f"best affinity left is {format_numa_mask(merge.best.mask)}; in the way: "
            f"{names or 'the hints together'}{self._left(found or wanted)}"
        )

    def _left(self, wanted: Wants) -> str:
        planner = self.planner
        seen = charged(planner.node, self.state)
        told = (
            (name, describe_left(planner.view, planner.node, seen, (name, amount)))
            for name, amount in wanted.items()
        )
        left = "".join(f"; {resource}: {left}" for resource, left in told if left)
        by_load = len(self.state.ledger.default - seen.ledger.default)
        if CPU in wanted and by_load:
            left += f"; {by_load} more {'is' if by_load == 1 else 'are'} charged by load, not held"
        return left


def _in_message(resource: str) -> str:
    """The word by which a manager's message tells that it is about a resource."""
    if resource == CPU:
        return "not enough cpus"
    return "[memorymanager]" if is_memory(resource) else resource


def _why_shared(pod: Pod, container: Container) -> str:
    if pod.qos is not QOSClass.GUARANTEED:
        return (
            f"shared pool: the pod is {pod.qos.value}; exclusive CPUs need a Guaranteed pod "
            "(requests equal to limits, cpu and memory, in every container)"
        )
    return (
        f"shared pool: cpu {container.requests.get(CPU)} is no whole number of CPUs; {ONLY_WHOLE}"
    )
