"""From explanations to what the renderers draw: of a plan, and of an agent's history."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from pinfold.core.machine.topology import CPUTopology
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.control import LoadDrivenContainer
from pinfold.documents.explanation import (
    MEMORY_MANAGER,
    Ended,
    ExplainedBubble,
    ExplainedContainer,
    Explanation,
    Explanations,
    Hint,
    Hints,
    Step,
)
from pinfold.documents.status import Pod
from pinfold.render.explain_text import (
    AlikeView,
    ContainerExplanation,
    ExplainView,
    HintRow,
    ProviderHints,
    SeveralView,
    explain_lines,
)
from pinfold.render.plan_view import POD_POOL, extras
from pinfold.views.node import ENDED, alignment, kubelet_words

MAX_HINTS_SHOWN: Final = 24


class Printed(Struct, frozen=True):
    """How an explanation is to be printed."""

    color: bool | None
    hints: bool


def explain_view(
    explanation: Explanation, policy: str = "", topology: CPUTopology | None = None
) -> ExplainView:
    """An explanation as text wants it.

    Args:
        explanation: the decision.
        policy: the policies in force, where more is known of them than the decision tells.
        topology: the machine, where it is at hand: then it is told where CPUs were taken.
    """
    ended = explanation.ended or None
    policy = policy or alignment(
        explanation.topology_manager_policy, explanation.memory_manager_policy
    )
    if explanation.kubelet:
        policy = f"{kubelet_words(explanation.kubelet)} · {policy}"
    words = () if ended is None else (ended.reason or ended.phase, ended.message)
    return ExplainView(
        pod=f"{explanation.namespace}/{explanation.name}",
        qos=explanation.qos,
        admitted=explanation.admitted,
        policy=policy,
        reason=explanation.reason,
        message=explanation.message,
        whole=_whole(explanation.bubble, topology) if explanation.bubble else None,
        containers=tuple(_container(one, topology) for one in explanation.containers),
        remedies=tuple(explanation.remedies),
        notes=tuple(explanation.notes),
        ended=": ".join(filter(None, words)),
        failed=ended is not None and ended.phase == "Failed",
        moves=explanation.moves or None,
    )


def explained_lines(
    explanation: Explanation, policy: str = "", topology: CPUTopology | None = None
) -> tuple[str, ...]:
    """The words of ``pinfold explain`` for a page, the reasons first; see :func:`explain_view`."""
    return explain_lines(explain_view(explanation, policy, topology))


def several_view(
    document: Explanations, policy: str = "", topology: CPUTopology | None = None
) -> SeveralView:
    """Explanations of pods that were asked for, those alike once."""
    return SeveralView(
        admitted=document.admitted,
        rejected=document.rejected,
        policy=policy,
        found=tuple(
            AlikeView(tuple(one.pods), explain_view(one.explanation, policy, topology))
            for one in document.explanations
        ),
        notes=tuple(document.notes),
    )


def ended_since(explanation: Explanation, pod: Pod) -> Ended | None:
    """How a pod that was admitted has ended; None where it has not."""
    if not explanation.admitted or pod.phase not in ENDED:
        return None
    reason, message = pod.reason, pod.message
    if reason is None:
        codes = {c.name: c.exit_code for c in pod.containers if c.exit_code}
        message = ", ".join(f"container {name} exited with {code}" for name, code in codes.items())
    return Ended(phase=pod.phase, reason=reason, message=message or None)


def _whole(bubble: ExplainedBubble, topology: CPUTopology | None) -> ContainerExplanation:
    pool = f"{POD_POOL} {bubble.pool}" if bubble.pool and bubble.pool != bubble.cpus else ""
    return ContainerExplanation(
        name="",
        request=bubble.request,
        cpus=CPUSet.parse(bubble.cpus) if bubble.cpus else None,
        steps=tuple(_step(step, topology) for step in bubble.steps),
        extras=tuple(filter(None, (pool, *extras(bubble.memory, {})))),
    )


def _container(container: ExplainedContainer, topology: CPUTopology | None) -> ContainerExplanation:
    return ContainerExplanation(
        name=container.name,
        request=container.request,
        providers=tuple(row for hints in container.hints for row in _provider(hints)),
        merged=None if container.merged is None else _hint(container.merged),
        constraint=container.constraint,
        cpus=None if container.cpus is None else CPUSet.parse(container.cpus),
        steps=tuple(_step(step, topology) for step in container.steps),
        extras=tuple(extras(container.memory, container.devices)),
        now=tuple(_by_load(container.by_load)) if container.by_load else (),
    )


def _by_load(now: LoadDrivenContainer) -> Iterator[str]:
    """Where a container is that has its CPUs by load, why and since when, and what changes it."""
    where = f"CPUs {now.cpus} of its own"
    if not now.cpus:
        where = f"shared pool, {now.charged} CPU{'s' * (now.charged != 1)} charged and not held"
    since = "since its start"
    if now.since is not None:
        since = f"since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now.since))}"
    yield f"{where}, {since}: {now.because}"
    if now.why:
        yield f"its load asks for a change: {now.why}"
    yield f"next: {now.until}"


def _provider(answer: Hints) -> Iterator[ProviderHints]:
    if not answer.resources:
        fits = answer.resources is None or answer.provider != MEMORY_MANAGER
        remark = "no preference" if fits else "nothing fits: no preference"
        yield ProviderHints(answer.provider, "", remark=remark)
        return
    for resource, hints in answer.resources.items():
        if hints is None:
            yield ProviderHints(answer.provider, resource, remark="no preference")
            continue
        best_first = sorted(hints, key=lambda hint: not hint.preferred)
        left = len(best_first) - MAX_HINTS_SHOWN
        yield ProviderHints(
            answer.provider,
            resource,
            tuple(_hint(hint) for hint in best_first[:MAX_HINTS_SHOWN]),
            f"and {left} more" if left > 0 else "",
        )


def _hint(hint: Hint) -> HintRow:
    return HintRow(None if hint.numa_nodes is None else tuple(hint.numa_nodes), hint.preferred)


def _step(step: Step, topology: CPUTopology | None) -> str:
    """One step of an allocation in words."""
    if step.id is not None:
        whole = "" if step.kind.startswith("part") else "whole "
        return f"took {whole}{step.kind} {step.id}: {step.cpus}"
    if topology is None:
        return f"took {step.kind}: {step.cpus}"
    cpus = CPUSet.parse(step.cpus)
    nodes = sorted({topology.by_cpu[cpu].numa_node for cpu in cpus})
    place = f"NUMA node{'s' * (len(nodes) > 1)} {CPUSet(nodes)}"
    if step.kind == "cores":
        cores = len({topology.by_cpu[cpu].core for cpu in cpus})
        return f"took {cores} whole core{'s' * (cores > 1)} on {place}: {cpus}"
    return f"took {len(cpus)} single thread{'s' * (len(cpus) > 1)} on {place}: {cpus}"
