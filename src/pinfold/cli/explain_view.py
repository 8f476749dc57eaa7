"""From an explanation to what text draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pinfold.admission.pod_draft import MEMORY_MANAGER
from pinfold.cli.plan_view import policies
from pinfold.core.cpu.allocation import Step
from pinfold.core.topology_manager.hints import TopologyHint
from pinfold.core.values.cpuset import CPUSet, iter_bits
from pinfold.planning.explain import ContainerReason, Explanation
from pinfold.planning.planner import Planner
from pinfold.render.explain_text import (
    ContainerExplanation,
    ExplainView,
    HintRow,
    ProviderHints,
)
from pinfold.render.plan_view import extras

MAX_HINTS_SHOWN: Final = 24


def explain_view(planner: Planner, explanation: Explanation) -> ExplainView:
    """An explanation as text wants it."""
    decision = explanation.decision
    return ExplainView(
        pod=f"{decision.pod.namespace}/{decision.pod.name}",
        qos=decision.pod.qos.value,
        admitted=decision.admitted,
        policy=policies(planner),
        reason=decision.reason,
        message=decision.message,
        containers=tuple(_container(planner, reason) for reason in explanation.containers),
        remedies=explanation.remedies,
        notes=decision.notes,
    )


def _container(planner: Planner, reason: ContainerReason) -> ContainerExplanation:
    return ContainerExplanation(
        name=reason.name,
        request=reason.request,
        providers=tuple(_providers(reason)),
        merged=None if reason.merged is None else _hint(reason.merged),
        constraint=reason.constraint,
        cpus=reason.cpus,
        steps=tuple(step_text(planner, step) for step in reason.steps),
        extras=tuple(extras(reason.memory, reason.devices)),
    )


def _providers(reason: ContainerReason) -> Iterator[ProviderHints]:
    for provider, answer in reason.answers:
        if not answer:
            fits = answer is None or provider != MEMORY_MANAGER
            remark = "no preference" if fits else "nothing fits: no preference"
            yield ProviderHints(provider, "", remark=remark)
            continue
        for resource, hints in answer.items():
            if hints is None:
                yield ProviderHints(provider, resource, remark="no preference")
                continue
            best_first = sorted(hints, key=lambda hint: not hint.preferred)
            left = len(best_first) - MAX_HINTS_SHOWN
            yield ProviderHints(
                provider,
                resource,
                tuple(_hint(hint) for hint in best_first[:MAX_HINTS_SHOWN]),
                f"and {left} more" if left > 0 else "",
            )


def _hint(hint: TopologyHint) -> HintRow:
    nodes = None if hint.mask is None else tuple(iter_bits(hint.mask))
    return HintRow(nodes, hint.preferred)


def step_text(planner: Planner, step: Step) -> str:
    """One step of an allocation in words."""
    cpus = CPUSet.from_mask(step.cpus)
    if step.id is not None:
        whole = "" if step.kind.startswith("part") else "whole "
        return f"took {whole}{step.kind} {step.id}: {cpus}"
    topology = planner.view.topology
    nodes = sorted({topology.by_cpu[cpu].numa_node for cpu in cpus})
    place = f"NUMA node{'s' if len(nodes) > 1 else ''} {CPUSet(nodes)}"
    if step.kind == "cores":
        cores = len({topology.by_cpu[cpu].core for cpu in cpus})
        return f"took {cores} whole core{'s' if cores > 1 else ''} on {place}: {cpus}"
    threads = len(cpus)
    return f"took {threads} single thread{'s' if threads > 1 else ''} on {place}: {cpus}"
