"""Why a pod got its CPUs or was refused, and the nearest changes that would admit it.

Every change that is named has been tried: the same decision is made again with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pinfold.core.allocation import Step
from pinfold.core.cpuset import CPUSet, iter_bits
from pinfold.core.hints import ResourceHints, TopologyHint, format_numa_mask
from pinfold.core.pod import CPU, Container, Pod, QOSClass, guaranteed_cpus
from pinfold.core.topology_manager import AffinityDecision
from pinfold.node.admission import Decision, NodeState
from pinfold.planning.planner import Planner
from pinfold.planning.remedies import find_remedies

VERSION: Final = 1


class UnknownPodError(ValueError):
    """There is no pod of that name among those that are planned."""


@dataclass(frozen=True, slots=True)
class ContainerReason:
    """One container: what it asked for, what was offered, and what bound the outcome."""

    name: str
    request: str
    answers: tuple[tuple[str, ResourceHints | None], ...]
    merged: TopologyHint | None
    constraint: str
    cpus: CPUSet | None
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The decision about a pod, container by container; ``remedies`` are tried changes."""

    decision: Decision
    containers: tuple[ContainerReason, ...]
    remedies: tuple[str, ...]


def explain_pod(planner: Planner, pods: Iterable[Pod], name: str) -> Explanation:
    """Explain the decision about the pod called ``name`` or ``namespace/name``.

    Raises:
        UnknownPodError: no pod is called that.
    """
    known = list(pods)
    admitted: list[Decision] = []
    for decision, state in planner.decisions(known):
        if name in (decision.pod.name, f"{decision.pod.namespace}/{decision.pod.name}"):
            return explain_decision(planner, state, decision, admitted)
        if decision.admitted:
            admitted.append(decision)
    raise UnknownPodError(
        f"no pod {name!r} in the manifests; there are {', '.join(p.name for p in known[:20])}"
    )


def explain_decision(
    planner: Planner, state: NodeState, decision: Decision, admitted: Sequence[Decision] = ()
) -> Explanation:
    """Explain one decision.

    Args:
        planner: the node.
        state: the state in which the decision was made.
        decision: the decision.
        admitted: those that were admitted before it, for the remedies.
    """
    remedies: tuple[str, ...] = ()
    if not decision.admitted:
        remedies = tuple(find_remedies(planner, state, decision, admitted))
    return Explanation(decision, tuple(_containers(planner, decision)), remedies)


def _containers(planner: Planner, decision: Decision) -> Iterator[ContainerReason]:
    merges = {merge.container: merge for merge in decision.affinities}
    for container in decision.pod.all_containers:
        merge = merges.get(container.name, merges.get(None))
        allocation = decision.allocations.get(container.name)
        yield ContainerReason(
            name=container.name,
            request=_request(container),
            answers=() if merge is None else _answers(decision, merge),
            merged=None if merge is None else merge.best,
            constraint=_constraint(planner, decision, container, merge),
            cpus=None if allocation is None else allocation.cpus,
            steps=() if allocation is None else allocation.steps,
        )


def _answers(
    decision: Decision, merge: AffinityDecision
) -> tuple[tuple[str, ResourceHints | None], ...]:
    return tuple(zip(decision.providers, merge.answers, strict=True))


def _request(container: Container) -> str:
    parts = [f"{name} {quantity}" for name, quantity in container.requests.items()]
    return "requests " + ", ".join(parts) if parts else "requests nothing"


def _constraint(
    planner: Planner, decision: Decision, container: Container, merge: AffinityDecision | None
) -> str:
    """What bound the outcome for this container, in one sentence."""
    asked = guaranteed_cpus(decision.pod, container)
    if planner.node.cpu_policy is None:
        outcome = "CPU manager policy none: every container runs on the shared pool"
    elif decision.pod.has_pod_level_resources:
        outcome = (
            "shared pool: the pod uses pod-level resources, which the static policy passes over"
        )
    elif asked == 0:
        outcome = _why_shared(decision.pod, container)
    elif decision.admitted:
        outcome = _why_exclusive(planner, asked, merge)
    else:
        outcome = f"{asked} exclusive CPUs asked for"
    if decision.admitted or decision.failed_container not in (None, container.name):
        return outcome
    return _why_refused(planner, decision, merge, asked)


def _why_shared(pod: Pod, container: Container) -> str:
    if pod.qos is not QOSClass.GUARANTEED:
        return (
            f"shared pool: the pod is {pod.qos.value}; exclusive CPUs need a Guaranteed pod "
            "(requests equal to limits, cpu and memory, in every container)"
        )
    return (
        f"shared pool: cpu {container.requests.get(CPU)} is no whole number of CPUs; "
        "only whole ones are exclusive"
    )


def _why_exclusive(planner: Planner, asked: int, merge: AffinityDecision | None) -> str:
    reason = f"{asked} exclusive CPUs: Guaranteed pod with a whole cpu request"
    if merge is None or merge.best.mask is None:
        return f"{reason}; best fit over the whole machine"
    nodes = format_numa_mask(merge.best.mask)
    policy = planner.config.topology_manager_policy
    kind = "preferred" if merge.best.preferred else "not preferred, accepted"
    return f"{reason}; from NUMA nodes {nodes} ({kind} under {policy})"


def _why_refused(
    planner: Planner, decision: Decision, merge: AffinityDecision | None, asked: int
) -> str:
    if decision.fault is not None:
        return f"{decision.fault.title}: {decision.fault.upstream}"
    if merge is None or merge.admit:
        return decision.message or ""
    policy = planner.config.topology_manager_policy
    names = decision.providers
    blocking = ", ".join(f"{names[i]} ({resource})" for i, resource in merge.blocking())
    whole = "one NUMA node" if policy == "single-numa-node" else "the fewest NUMA nodes possible"
    return (
        f"policy {policy} needs {whole} for {asked} CPUs, and the best affinity left is "
        f"{format_numa_mask(merge.best.mask)}; in the way: {blocking or 'the hints together'}"
    )


def explain_document(planner: Planner, explanation: Explanation) -> dict[str, Any]:
    """An explanation as a JSON document, version 1: what ``pinfold explain -o json`` prints."""
    decision = explanation.decision
    return {
        "version": VERSION,
        "namespace": decision.pod.namespace,
        "name": decision.pod.name,
        "qos": decision.pod.qos.value,
        "admitted": decision.admitted,
        "reason": decision.reason,
        "message": decision.message,
        "kubelet_fault": None if decision.fault is None else decision.fault.slug,
        "topologyManagerPolicy": planner.config.topology_manager_policy,
        "containers": [_container_document(reason) for reason in explanation.containers],
        "remedies": list(explanation.remedies),
    }


def _container_document(reason: ContainerReason) -> dict[str, Any]:
    return {
        "name": reason.name,
        "request": reason.request,
        "hints": [
            {
                "provider": provider,
                "resources": None
                if answer is None
                else {
                    resource: None if hints is None else [_hint_document(hint) for hint in hints]
                    for resource, hints in answer.items()
                },
            }
            for provider, answer in reason.answers
        ],
        "merged": None if reason.merged is None else _hint_document(reason.merged),
        "constraint": reason.constraint,
        "cpus": None if reason.cpus is None else str(reason.cpus),
        "steps": [
            {"kind": step.kind, "id": step.id, "cpus": str(CPUSet.from_mask(step.cpus))}
            for step in reason.steps
        ],
    }


def _hint_document(hint: TopologyHint) -> dict[str, Any]:
    nodes = None if hint.mask is None else list(iter_bits(hint.mask))
    return {"numa_nodes": nodes, "preferred": hint.preferred}
